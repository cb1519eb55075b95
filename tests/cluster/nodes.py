"""A run on a cluster of several nodes on this machine, two of which leave without notice in the middle of it.

    python -m tests.cluster.nodes FOLDER ROUNDS

It is a program of its own, since a process has one connection to Ray. It leaves the runs `undisturbed-*`, in this
process, and `cluster-*` in FOLDER.
"""

import logging
import os
import sys
from typing import Any

import ray
from ray.cluster_utils import Cluster

from cluster import load_config, run
from server.job import Progress
from tests.contracts.table import settings

# Memories and sums of 500 kB and more, which lie in the store of the node that made them.
BASE: dict[str, Any] = {
    "precision": "float64",
    "data": {"name": "digits"},
    "partition": {"name": "by_label", "clients": 20},
    "problem": {"name": "auc"},
    "model": {"name": "mlp", "hidden": [1000]},
    "algorithm": settings("codasca", S=10),
    "evaluate": {"every": 5},
    "checkpoint": {"every": 1000},  # so that memories are lost with their node, and all is played again
}


def main(folder: str, rounds: str) -> None:
    tree = BASE | {"rounds": int(rounds), "output": {"folder": folder}}
    run(load_config(tree | {"name": "undisturbed", "clients": {"fleet": "in_process"}}))

    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # A node that is killed refuses connections, five times before it counts as gone.
    os.environ.setdefault("RAY_health_check_period_ms", "1000")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    nodes = [cluster.add_node(num_cpus=2) for _ in range(3)]
    ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    left: list[str] = []

    def watch(report: Progress) -> None:
        """A third of the way one node leaves, and another after two thirds."""
        if report.round >= (len(left) + 1) * int(rounds) // 3 and len(left) < 2:
            cluster.remove_node(nodes[0], allow_graceful=False)
            left.append(nodes.pop(0).unique_id)

    run(load_config(tree | {"name": "cluster", "clients": {"actors": 4, "num_cpus": 1.0}}), watch=watch)
    ray.shutdown()
    cluster.shutdown()
    assert len(left) == 2, f"{len(left)} nodes have left"


if __name__ == "__main__":
    main(*sys.argv[1:])
