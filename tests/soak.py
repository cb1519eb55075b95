"""A long run whose processes are killed all the time, beside an undisturbed one: same bits, and nothing left behind.

    python -m tests.soak [--rounds 1000] [--pause 3] [--apart 0] [--seed 0]

CODASCA, whose clients keep memory, on digits over two client actors. After 0.5 to 1.5 times `pause` seconds, again and
again, one of Ray's processes of the run gets SIGKILL: a client actor, or one time in twenty the server; with `apart`
not before so many rounds were played since the last time, so that a slow machine gets on. It prints what was in memory
on the way, and ends with a status other than 0 if a number differs from the undisturbed run's or a process, an actor,
an object in the store, a file or an open file is left.
"""

import argparse
import contextlib
import gc
import logging
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import ray

from cluster import Result, load_config, run
from server.job import Progress
from tests.cluster.store import in_store
from tests.contracts.table import settings
from tests.same import differences
from tests.toys_faults import workers

ROLES = ("ClientActor", "ServerActor")
SERVER_SHARE = 0.05


def config(rounds: int, folder: Path, **clients: Any) -> dict[str, Any]:
    return {
        "name": "soak",
        "rounds": rounds,
        "data": {"name": "digits"},
        "partition": {"name": "by_label", "clients": 40},
        "problem": {"name": "auc"},
        "model": {"name": "mlp", "hidden": [64]},
        "algorithm": settings("codasca", S=10),
        "evaluate": {"every": 25},
        "clients": clients,
        "output": {"folder": str(folder)},
    }


@dataclass
class Killer:
    """Kills workers at random instants, in a thread of its own, until it is told to stop."""

    pause_s: float
    apart: int
    random: random.Random
    played: int = 0  # rounds, some of them again
    killed: Counter[str] = field(default_factory=Counter)
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> "Killer":
        self._thread = threading.Thread(target=self._kill, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        assert self._thread is not None
        self._thread.join()

    def _kill(self) -> None:
        last = -self.apart
        while not self._over.wait(self.pause_s * self.random.uniform(0.5, 1.5)):
            if self.played < last + self.apart:
                continue
            last = self.played
            role = ROLES[self.random.random() < SERVER_SHARE]
            if there := workers(role):
                os.kill(self.random.choice(there).pid, signal.SIGKILL)
                self.killed[role] += 1


def open_files() -> set[str]:
    """Of this process; sockets to Ray's own processes come and go."""
    return {file.path for file in psutil.Process().open_files()}


def left_behind(result: Result, open_before: set[str]) -> list[str]:
    """What a run should not have left, a little after it."""
    deadline = time.monotonic() + 60
    while True:
        gc.collect()
        found = [f"{len(there)} {role}" for role in ROLES if (there := workers(role))]
        if used := in_store()["used"]:
            found.append(f"{used} MiB in the object store")
        found += [f"{path} open" for path in sorted(open_files() - open_before)]
        if not found or time.monotonic() > deadline:
            break
        time.sleep(1)
    found += [str(path) for path in result.folder.rglob(".*")]
    if len(manifests := list((result.folder / "checkpoints").glob("*.json"))) > 3:
        found.append(f"{len(manifests)} checkpoints")
    return found


def megabytes(there: list[psutil.Process]) -> list[int]:
    found = []
    for process in there:
        with contextlib.suppress(psutil.Error):  # it has ended
            found.append(round(process.memory_full_info().pss / 1e6))
    return found


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--pause", type=float, default=3.0)
    parser.add_argument("--apart", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    killer = Killer(given.pause, given.apart, random.Random(given.seed))

    def watch(report: Progress) -> None:
        killer.played += 1
        if report.round % max(1, given.rounds // 10) == 0:
            say(
                f"round {report.round}: killed {dict(killer.killed)}; MB: driver {megabytes([psutil.Process()])}, "
                f"server {megabytes(workers('ServerActor'))}, clients {megabytes(workers('ClientActor'))}, "
                f"store {in_store()['used']}"
            )

    with tempfile.TemporaryDirectory() as folder:
        undisturbed = run(load_config(config(given.rounds, Path(folder) / "a", fleet="in_process")))
        # What libraries open once stays open.
        run(load_config(config(1, Path(folder) / "warm", actors=2, num_cpus=0.5)))
        open_before = open_files()
        with killer:
            # Actors may well be killed as they start, ten times in a row.
            clients = {"actors": 2, "num_cpus": 0.5, "retries": 50}
            disturbed = run(load_config(config(given.rounds, Path(folder) / "b", **clients)), watch=watch)
        wrong = differences(undisturbed.folder, disturbed.folder)
        left = left_behind(disturbed, open_before)
    say(f"killed {dict(killer.killed)} in {given.rounds} rounds")
    say(f"not the same: {', '.join(wrong) or 'nothing'}; left behind: {', '.join(left) or 'nothing'}")
    sys.exit(bool(wrong or left or not killer.killed))


if __name__ == "__main__":
    main()
