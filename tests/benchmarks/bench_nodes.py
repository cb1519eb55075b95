"""What a second node costs, and what rounds of many clients on many nodes would: docs/cluster.md.

    RAYSIM_DATA_ROOT=data python -m tests.benchmarks.bench_nodes [--repeats 5]

Two clusters stand side by side, with the same actors: one node of two processors, and two nodes of one. Runs go to them
in turn; times are medians over the rounds of all repeats, in milliseconds. Then the constants of that page's model are
measured, each by itself.
"""

import argparse
import math
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch

from clients.actors import fleet as ray_fleet
from cluster import load_config, yaml12
from cluster.experiment import Experiment
from raysim.errors import RaysimError
from raysim.exchange import Block, Order
from tests.benchmarks.bench_rounds import actors
from tests.cluster import heads
from tests.same import log

ROOT = Path(__file__).parent.parent.parent
ROUNDS, WARM_UP = 30, 5
PARTS = ("plan_s", "clients_s", "server_s")

DIGITS: dict[str, Any] = {
    "data": {"name": "digits"},
    "partition": {"name": "by_label", "clients": 100},
    "problem": {"name": "auc"},
}
CD_MAGE = {"name": "cd_mage", "S": 20, "K": 4, "batch": 2, "eta": 0.01, "gamma": 0.01}
# Hardly any computation: what is left is messages and sums, of a small and of a large model.
HIDDEN = (8, 20_000)
# Tasks under way at a time, on a cluster of some hundred actors.
CROWD = 1000


def played(head: heads.Head, tree: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """The phases of a run on a cluster, its first rounds left out, with `server_s`."""
    path = folder / "experiment.yaml"
    path.write_text(yaml12.dump(tree))
    done = head.run(
        sys.executable, "-m", "cluster", "run", str(path), "-o", f"output.folder={folder}/runs",
        cwd=ROOT, RAY_ADDRESS=f"{head.ip}:{head.port}",
    )  # fmt: skip
    if done.returncode:
        raise RaysimError(done.stdout + done.stderr)
    latest = max((folder / "runs").iterdir(), key=lambda run: run.stat().st_mtime)
    events = [event for event in log(latest) if event["event"] == "round" and event["round"] > WARM_UP]
    phases = [phase for event in events for phase in event["phases"]]
    return [phase | {"server_s": phase["wall_s"] - phase["plan_s"] - phase["clients_s"]} for phase in phases]


def nodes(repeats: int, folder: Path) -> None:
    """The same rounds on one node and on two."""
    fixed = {"name": "bench", "rounds": ROUNDS, "evaluate": {"every": 1000}, "checkpoint": {"every": 1000},
             "clients": {"actors": 2, "num_cpus": 1.0}}  # fmt: skip
    took: dict[tuple[int, str, int], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with heads.started(num_cpus=2) as one, heads.started(num_cpus=1) as two:
        for head in (one, two):
            heads.until(head.alive)
        two.join("--num-cpus=1")
        heads.until(lambda: len(two.alive()) == 2)
        for _ in range(repeats):
            for hidden in HIDDEN:
                tree = fixed | DIGITS | {"model": {"name": "mlp", "hidden": [hidden]}, "algorithm": CD_MAGE}
                floats = Experiment.build(load_config(tree)).problem.init(0).x.numel()
                for n, head in ((1, one), (2, two)):
                    for phase in played(head, tree, folder):
                        for part in ("wall_s", *PARTS):
                            took[floats, phase["phase"], n][part].append(1000 * phase[part])
    _say(f"{'floats':>10}  {'phase':<10}{'nodes':>6}{'phase':>10}{'plan':>8}{'clients':>10}{'server':>8}   ms")
    for (floats, phase, n), parts in sorted(took.items()):
        medians = [statistics.median(parts[part]) for part in ("wall_s", *PARTS)]
        cells = f"{medians[0]:>10.1f}{medians[1]:>8.2f}{medians[2]:>10.1f}{medians[3]:>8.2f}"
        _say(f"{floats:>10}  {phase:<10}{n:>6}{cells}")


@dataclass(frozen=True)
class Line:
    """Time as base_s + slope * size, through two measured points."""

    base_s: float
    slope: float

    @classmethod
    def through(cls, sizes: Sequence[float], times_s: Sequence[float]) -> "Line":
        slope, base = np.polyfit(sizes, times_s, 1)
        return cls(float(base), float(slope))


def server_cost() -> Line:
    """Processor time of the server a task, by the bytes of the sum that comes back from it."""
    sizes, times = [], []
    for hidden in (8, 2_000, 10_000, 20_000):
        work = {"algorithm": CD_MAGE | {"name": "cd_ma", "S": 90, "K": 1}, "clients": {"block": 1}}
        tree = DIGITS | work | {"model": {"name": "mlp", "hidden": [hidden]}, "name": "bench", "rounds": 1}
        made = Experiment.build(load_config(tree))
        order, blocks = ordered(made)
        with actors(made, 2) as fleet:
            took = []
            for _ in range(6):
                started = time.process_time()
                fleet.run(order, blocks, {})
                took.append((time.process_time() - started) / len(fleet._grouped(blocks)))
        sizes.append(8.0 * order.message.x.numel())
        times.append(statistics.median(took[1:]))
        _say(f"server, a task with a sum of {sizes[-1] / 1e6:6.3f} MB: {1000 * times[-1]:.2f} ms of a processor")
    return Line(crowded(), Line.through(sizes, times).slope)


def crowded() -> float:
    """Processor time of the server a task with a sum of next to nothing, while CROWD of them are under way."""
    tree = {
        "name": "bench", "rounds": 1, "problem": {"name": "quadratic"}, "partition": {"name": "natural"},
        "data": {"name": "quadratic", "clients": 4 * CROWD, "rows": 2}, "clients": {"block": 1},
        "algorithm": {"name": "cd_ma", "S": 4 * CROWD, "K": 1, "batch": 2, "eta": 0.01, "gamma": 0.01},
    }  # fmt: skip
    made = Experiment.build(load_config(tree))
    order, blocks = ordered(made)
    usual = ray_fleet.IN_FLIGHT, ray_fleet.TASKS_PER_ACTOR
    ray_fleet.IN_FLIGHT, ray_fleet.TASKS_PER_ACTOR = CROWD // 2, len(blocks)  # over two actors, and one block a task
    with actors(made, 2) as fleet:
        started = time.process_time()
        fleet.run(order, blocks, {})
        took = (time.process_time() - started) / len(blocks)
    ray_fleet.IN_FLIGHT, ray_fleet.TASKS_PER_ACTOR = usual
    _say(f"server, a task among {CROWD} under way: {1000 * took:.2f} ms of a processor")
    return took


def ordered(made: Experiment) -> tuple[Order, list[Block]]:
    """The first phase of an experiment."""
    phase = made.algorithm.phases(0)[0]
    state = made.algorithm.init(made.problem.init(0))
    cohort = made.planner.cohort(phase.cohort, 0, phase.name, None)
    return Order(0, phase, phase.sends(state)), made.planner.blocks(phase.works, 0, phase.name, cohort)


def plan_cost() -> float:
    """Seconds a client to draw a phase's cohort and minibatches."""
    for S in (10_000, 100_000):
        tree = {
            "name": "bench", "rounds": 1, "problem": {"name": "quadratic"}, "partition": {"name": "natural"},
            "data": {"name": "quadratic", "clients": S, "rows": 120},
            "algorithm": {"name": "cd_ma", "S": S, "K": 12, "batch": 10, "eta": 0.01, "gamma": 0.01},
        }  # fmt: skip
        made = Experiment.build(load_config(tree))
        started = time.perf_counter()
        _, blocks = ordered(made)
        took = time.perf_counter() - started
        n_bytes = sum(
            block.minibatches[0].rows_CKB.nbytes for block in blocks if block.minibatches[0].rows_CKB is not None
        )
        _say(f"plan of {S:>6} clients, 12 minibatches of 10: {took:.2f} s, {n_bytes / 1e6:.0f} MB of row numbers")
    return took / S


def client_cost() -> tuple[float, int]:
    """Seconds of a core that a client's local steps take, and floats of the model: CD-MA, LeNet-5, MNIST, K = 12."""
    config = ROOT / "configs" / "cd_mage" / "auc_mnist_cd_ma.yaml"
    made = Experiment.build(load_config(config, ["algorithm.S=40"]))
    order, blocks = ordered(made)
    engine, took = made.engine(), []
    for _ in range(5):
        started = time.perf_counter()
        engine.run_all(order, blocks, {})
        took.append((time.perf_counter() - started) / 40)
    floats = order.message.x.numel() + order.message.y.numel()
    _say(f"client, {floats} floats, 12 steps of 10 rows: {1000 * statistics.median(took[1:]):.1f} ms of a core")
    return statistics.median(took[1:]), floats


def estimate(gbit: float, cores: int) -> None:
    """The model of docs/cluster.md with the constants measured here: seconds a phase, by part."""
    task, per_client_s, (client_s, floats) = server_cost(), plan_cost(), client_cost()
    _say(f"server: {1000 * task.base_s:.2f} ms a task + {1e9 * task.slope:.2f} ms a MB")
    bytes_per_s = gbit * 1e9 / 8
    _say(f"{'clients':>9}{'nodes':>7}{'actors':>8}{'plan':>9}{'broadcast':>11}{'compute':>9}{'sums, network':>15}"
         f"{'sums, processor':>17}  s")  # fmt: skip
    for S, n in ((10_000, 32), (1_000_000, 256)):
        pool = min(n * cores, S)
        # As the fleet does: blocks of ten at most, a power of two of them, in runs of 2^k, at least two runs an actor.
        blocks = 1 << (math.ceil(S / 10) - 1).bit_length()
        runs = blocks
        while math.ceil(runs / 2) >= ray_fleet.TASKS_PER_ACTOR * pool:
            runs //= 2
        parts = [
            S * per_client_s,
            math.ceil(math.log2(n)) * 4 * floats / bytes_per_s,
            S * client_s / min(pool, runs),
            runs * 8 * floats / bytes_per_s,
            runs * (task.base_s + task.slope * 8 * floats),
        ]
        _say(
            f"{S:>9}{n:>7}{pool:>8}{parts[0]:>9.2f}{parts[1]:>11.3f}{parts[2]:>9.2f}{parts[3]:>15.2f}{parts[4]:>17.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--gbit", type=float, default=10.0, help="per second, into and out of a node")
    parser.add_argument("--cores", type=int, default=64, help="of a node, each with a client actor")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        nodes(given.repeats, Path(folder))
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    estimate(given.gbit, given.cores)
    ray.shutdown()


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
