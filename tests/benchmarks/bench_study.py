"""What a study's trials cost beside their own running times: python -m tests.benchmarks.bench_study

Twenty small trials are played as plain runs by as many processes as there are workers, side by side, each of which
times its runs and not what it takes to begin; and as a study, whose time includes that of Ray's start. Data are built
before.
"""

import argparse
import multiprocessing
import sys
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from cluster import trials
from cluster.experiment import Experiment
from cluster.run import run
from cluster.study import Study, rows

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.yaml"


def study(folder: str, rounds: int, workers: int, n: int) -> Study:
    return Study.load(
        {
            "name": "twenty",
            "base": str(QUICKSTART),
            "set": {"rounds": rounds},
            "grid": {"algorithm.S": [5, 10], "seed": list(range(n // 2))},
            "concurrency": workers,
            "folder": folder,
        }
    )


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def plain(given: tuple[str, int, int, int, int]) -> list[float]:
    """Seconds of every run of one of the workers."""
    folder, rounds, workers, n, worker = given
    found = []
    for trial in study(folder, rounds, workers, n).trials[worker::workers]:
        output = trial.config.output.model_copy(update={"folder": folder})
        begun = time.perf_counter()
        run(trial.config.model_copy(update={"output": output}))
        found.append(time.perf_counter() - begun)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=300, help="of a trial")
    parser.add_argument("--workers", type=int, default=2)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        made = study(folder, asked.rounds, asked.workers, asked.trials)
        for trial in made.trials:
            Experiment.build(trial.config)
        given = [(folder, asked.rounds, asked.workers, asked.trials, worker) for worker in range(asked.workers)]
        with ProcessPoolExecutor(asked.workers, mp_context=multiprocessing.get_context("spawn")) as pool:
            alone = [seconds for of_worker in pool.map(plain, given) for seconds in of_worker]
        told: list[float] = []
        begun = time.perf_counter()
        where = trials.begin(made, lambda line: told.append(time.perf_counter() - begun), threading.Event())
        took = time.perf_counter() - begun
        assert all(row.status == "finished" for row in rows(where))
        first = told[1] - next(row.wall_s for row in rows(where) if row.wall_s)  # told[0] is before any trial
    share, mean = sum(alone) / asked.workers, sum(alone) / len(alone)
    say(f"{len(alone)} trials of {mean:.2f} s alone: {sum(alone):.1f} s / {asked.workers} = {share:.1f} s")
    say(f"as a study {took:.1f} s: {took / share:.2f} times as long, of which {first:.1f} s before the first trial")


if __name__ == "__main__":
    main()
