"""Runs on a Ray whose object store is small and whose disk, by its own rule, is full.

    RAY_local_fs_capacity_threshold=0.01 python -m tests.cluster.store FOLDER

It is a program of its own, since the tests' Ray has a store of the usual size. The last line that it prints is JSON:
what was in the store after each evaluation of a run that frees what it has used, and how two other runs end.
"""

import json
import logging
import os
import re
import sys
import time
from typing import Any

import ray
from ray._private.internal_api import memory_summary

from cluster import load_config, run
from raysim.errors import RaysimError
from server.job import Progress
from tests.contracts.table import settings

STORE_BYTES = 80_000_000


def tree(folder: str, hidden: int, name: str) -> dict[str, Any]:
    return {
        "name": name,
        "rounds": 20,
        "data": {"name": "digits"},
        "partition": {"name": "by_label", "clients": 64},
        "problem": {"name": "auc"},
        "model": {"name": "mlp", "hidden": [hidden]},
        "algorithm": settings(name, S=64),
        "evaluate": {"every": 5},
        "clients": {"actors": 2, "timeout_s": 20},
        "output": {"folder": folder},
    }


def in_store() -> dict[str, int]:
    """MiB that are needed of what is in it, and MiB that were put on disk."""
    text = memory_summary(ray.get_runtime_context().gcs_address, stats_only=True)
    used = re.search(r"Plasma memory usage (\d+) MiB", text)
    spilled = re.search(r"Spilled (\d+) MiB", text)
    return {"used": int(used[1]) if used else 0, "spilled": int(spilled[1]) if spilled else 0}


def main(folder: str) -> None:
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(
        address="local", num_cpus=2, object_store_memory=STORE_BYTES, include_dashboard=False, log_to_driver=False,
        logging_level=logging.ERROR,
    )  # fmt: skip
    seen: list[dict[str, int]] = []

    def watch(report: Progress) -> None:
        if report.evaluated:
            seen.append(in_store())

    run(load_config(tree(folder, 7600, "cd_ma")), watch=watch)  # messages of 2 MB
    ends, told = {}, []
    for hidden, name in ((400_000, "cd_ma"), (7600, "codasca")):  # messages of 120 MB; memories of 2.28 MB
        try:
            run(load_config(tree(folder, hidden, name)), notice=told.append)
        except RaysimError as error:
            ends[name] = [type(error).__name__, str(error)]
    deadline = time.monotonic() + 60
    while in_store()["used"] and time.monotonic() < deadline:
        time.sleep(1)  # what nobody refers to any more is removed a little later
    print(json.dumps({"seen": seen, "used_after": in_store()["used"], "ends": ends, "told": told}))  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1])
