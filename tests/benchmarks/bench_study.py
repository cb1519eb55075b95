"""What a study's trials cost beside their own running times: python -m tests.benchmarks.bench_study

Twenty small trials are played by themselves, one after another in this process, and as a study over two workers, whose
time includes that of Ray's start. The trials play what `raysim run` does, plots included; data are built before.
"""

import argparse
import json
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from cluster import trials
from cluster.experiment import Experiment
from cluster.run import run
from cluster.study import Study

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
        alone: list[float] = []
        for trial in made.trials:
            output = trial.config.output.model_copy(update={"folder": folder})
            begun = time.perf_counter()
            run(trial.config.model_copy(update={"output": output}))
            alone.append(time.perf_counter() - begun)
        told: list[tuple[float, str]] = []
        begun = time.perf_counter()
        where = trials.begin(made, lambda line: told.append((time.perf_counter() - begun, line)), threading.Event())
        took = time.perf_counter() - begun
        found: dict[str, Any] = json.loads(next(where.rglob("summary.json")).read_text())
        assert found["rounds"] == asked.rounds
    share = sum(alone) / asked.workers
    mean = sum(alone) / len(alone)
    say(f"{len(alone)} trials of {mean:.2f} s alone: {sum(alone):.1f} s / {asked.workers} = {share:.1f} s")
    say(f"as a study {took:.1f} s: {took / share:.2f} times as long; the first trial ended after {told[0][0]:.1f} s")


if __name__ == "__main__":
    main()
