"""How the time of a round grows with clients per round, local steps, all clients and actors; and memory over rounds.

    RAYSIM_DATA_ROOT=data python -m tests.benchmarks.bench_scaling

Federated averaging on Fashion-MNIST as in bench_rounds; the number of all clients on the quadratic problem, whose shard
file has a row per client. Times are medians in milliseconds.
"""

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import ray
import torch

from clients.fleet import InProcessFleet
from cluster.config import load_config
from cluster.experiment import Experiment
from server.rounds import Server
from tests.benchmarks.bench_rounds import B, K, Raysim, actors, experiment

ROUNDS, WARM_UP = 8, 2
MEMORY_ROUNDS = 1_000


def median(program: Raysim, rounds: int = ROUNDS) -> float:
    """Of the rounds after the first."""
    return statistics.median([program.play(t) for t in range(rounds)][WARM_UP:])


def quadratic(N: int, **sections: Any) -> Experiment:
    """CD-MAGE with S = 100 of N clients of one row each."""
    tree: dict[str, Any] = {
        "name": "bench",
        "rounds": 1,
        "data": {"name": "quadratic", "clients": N, "rows": 1},
        "partition": {"name": "natural"},
        "problem": {"name": "quadratic"},
        "algorithm": {"name": "cd_mage", "S": 100, "K": K, "batch": B, "eta": 0.01, "gamma": 0.01},
    }
    return Experiment.build(load_config(tree | sections))


def sweep(folder: Path) -> None:
    """S and K, over one and two actors."""
    _say(f"{'S':>5}{'K':>5}{'1 actor':>10}{'2 actors':>10}{'ms per client and step, 2 actors':>36}")
    for S, steps in [*((S, K) for S in (8, 16, 32, 64, 128, 256)), *((32, steps) for steps in (1, 4, 12, 25, 50))]:
        made, times = experiment("mlp", S, two_phases=False, steps=steps), []
        for n in (1, 2):
            with actors(made, n) as fleet:
                times.append(median(Raysim(Server(made.job(folder), fleet))))
        _say(f"{S:>5}{steps:>5}{times[0]:>10.1f}{times[1]:>10.1f}{times[1] / S / steps:>36.3f}")


def population(folder: Path) -> None:
    """All clients, turn by turn, and what those cost that are not sampled."""
    sizes = (500, 20_000, 1_000_000)
    programs, memory = {}, {}
    for N in sizes:
        before = _own_bytes()
        made = quadratic(N)
        programs[N] = Raysim(Server(made.job(folder), InProcessFleet(made.engine())))
        programs[N].play(0)
        memory[N] = _own_bytes() - before
    times = np.median([[programs[N].play(t) for N in sizes] for t in range(1, 41)], axis=0)
    _say(f"{'N':>10}{'ms':>8}{'private bytes per client':>28}")
    for N, ms in zip(sizes, times, strict=True):
        _say(f"{N:>10}{ms:>8.1f}{memory[N] / N:>28.0f}")


def memory(folder: Path) -> None:
    """Of this process and of an actor, over many rounds of next to no work."""
    made = quadratic(500)
    with actors(made, 1) as fleet:
        program = Raysim(Server(made.job(folder), fleet))
        _say(f"{'round':>7}{'server MB':>11}{'actor MB':>10}")
        for t in range(MEMORY_ROUNDS):
            program.play(t)
            if t + 1 in (100, 250, 500, 750, MEMORY_ROUNDS):
                worker = next(
                    p for p in psutil.Process().children(recursive=True) if "ClientActor" in "".join(p.cmdline())
                )
                used = [p.memory_full_info().uss / 1e6 for p in (psutil.Process(), worker)]
                _say(f"{t + 1:>7}{used[0]:>11.0f}{used[1]:>10.0f}")


def main() -> None:
    torch.set_num_threads(1)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    with tempfile.TemporaryDirectory() as name:
        for part in (sweep, population, memory):
            part(Path(name))
    ray.shutdown()


def _own_bytes() -> int:
    """Memory of this process that is no part of a mapped file."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty:"))


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
