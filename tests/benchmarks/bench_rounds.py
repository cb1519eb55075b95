"""Rounds of raysim and of its peers on the same work: shards, models, sampled clients, minibatches, one thread each.

    RAYSIM_DATA_ROOT=data python -m tests.benchmarks.bench_rounds [--pfl PYTHON] [--flower PYTHON]

Fashion-MNIST sorted by label into 500 shards of 120 rows, K = 12 local steps on 10 rows. Federated averaging on two
models, for which pfl 0.6 and Flower 1.42 take part where the interpreters of their environments are given, and CD-MAGE
for AUC. All programs play a round in turn, so that what else the machine does hits them alike. `x` is a program's time
over raysim's with two actors, `peak` the multiplications and additions that gradients need, per second, as a share of
what its cores reach in large matrix products. `loss` is the final point's on all rows, which must agree, and `apart`
how far its weights are from the plain loop's, as a share of how far they have come.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import psutil
import ray
import torch
from numpy.typing import NDArray

from clients.actors.fleet import RayFleet
from clients.fleet import InProcessFleet
from clients.placement import ClientsConfig, Placement
from cluster.config import load_config
from cluster.experiment import Experiment
from raysim.batch import Batch
from raysim.point import Point
from server.rounds import Server

K, B, ETA = 12, 10, 0.05
MODELS = {"mlp": "tests.benchmarks.peers.task:MLP", "lenet5": "tests.benchmarks.peers.task:LeNet5"}
WARM_UP = 2  # rounds that are not counted


class Program(Protocol):
    """Something that plays rounds."""

    def play(self, t: int) -> float:
        """Milliseconds of round t."""

    def memory_bytes(self) -> int:
        """Of its processes, memory that several share counted in proportion."""

    def weights(self) -> NDArray[np.float32]:
        """The final ones. Nothing can be played after."""


@dataclass
class Raysim:
    """raysim, in this process or over Ray's actors."""

    server: Server

    def play(self, t: int) -> float:
        started = time.perf_counter()
        self.server.play(t)
        return 1e3 * (time.perf_counter() - started)

    def memory_bytes(self) -> int:
        """With Ray's processes, which this one has started, but without other programs."""
        here = psutil.Process()
        ours = [child for child in here.children() if "tests.benchmarks.peers" not in " ".join(child.cmdline())]
        return here.memory_full_info().pss + sum(_pss(child) for child in ours)

    def weights(self) -> NDArray[np.float32]:
        z = self.server.point
        return torch.cat((z.x, z.y)).numpy()


@dataclass
class Peer:
    """A program of tests.benchmarks.peers in a process of its own."""

    name: str
    process: "subprocess.Popen[str]"
    task: Path

    @classmethod
    def start(cls, name: str, task: Path, *command: str, arguments: Sequence[str] = ()) -> "Peer":
        """`command` runs a module: an interpreter, or torchrun."""
        command = (*command, "-m", f"tests.benchmarks.peers.{name}", str(task), *arguments)
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=environment
        )
        made = cls(name, process, task)
        assert made._read() == "ready"
        return made

    def play(self, t: int) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{t}\n")
        self.process.stdin.flush()
        return float(self._read())

    def memory_bytes(self) -> int:
        return _pss(psutil.Process(self.process.pid))

    def weights(self) -> NDArray[np.float32]:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=120)
        found: NDArray[np.float32] = np.load(f"{self.task}.{self.name.removesuffix('_peer')}.npy")
        return found

    def _read(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        if not line:
            raise SystemExit(f"{self.name} ended before its time; run {' '.join(map(str, self.process.args))}")
        return line


def experiment(model: str, S: int, two_phases: bool, steps: int = K, **clients: Any) -> Experiment:
    """The work, as raysim is told of it."""
    step = {"S": S, "K": steps, "batch": B, "eta": ETA, "gamma": ETA}
    problem = "auc" if two_phases else "tests.benchmarks.classification:Classification"
    tree = {
        "name": "bench",
        "rounds": 1,
        "data": {"name": "fashion_mnist"},
        "partition": {"name": "by_label", "clients": 500},
        "problem": {"name": problem},
        "model": {"name": MODELS[model]},
        "algorithm": {"name": "cd_mage" if two_phases else "cd_ma", **step},
        "clients": clients,
    }
    return Experiment.build(load_config(tree))


def write_task(path: Path, made: Experiment, model: str, rounds: int) -> None:
    """The same work for programs that know nothing of raysim."""
    shards, phases = made.shards, made.algorithm.phases(0)

    def drawn(phase: Any, t: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        cohort = made.planner.cohort(phase.cohort, t, phase.name, None)
        blocks = made.planner.blocks(phase.works, t, phase.name, cohort)
        if blocks[0].minibatches[0].rows_CKB is None:
            return cohort, np.zeros((len(cohort), 0, 0), np.int64)
        rows = np.concatenate(
            [block.minibatches[0].rows_CKB for block in blocks if block.minibatches[0].rows_CKB is not None]
        )
        return cohort, rows + shards.offsets_N1[cohort][:, None, None]

    played: dict[str, NDArray[np.int64]] = {
        "second": np.zeros((rounds, 0), np.int64),
        "second_rows": np.zeros((rounds, 0)),
    }
    for phase, names in zip(phases, (("cohorts", "rows"), ("second", "second_rows")), strict=False):
        for name, parts in zip(names, zip(*(drawn(phase, t) for t in range(rounds)), strict=True), strict=True):
            played[name] = np.stack(parts)
    everything = np.arange(len(shards.train))
    size = made.problem.net.size  # type: ignore[attr-defined]
    data = {"features": shards.inputs(everything).numpy(), "labels": shards.labels(everything).numpy()}
    start = made.problem.init(made.config.seed).x[:size].numpy()
    np.savez(path, model=model, eta=ETA, offsets=shards.offsets_N1, start=start, **data, **played)


@contextmanager
def actors(made: Experiment, n: int) -> Iterator[RayFleet]:
    """A pool of n."""
    fleet = RayFleet.start(made.engine(), ClientsConfig(), Placement(n, None), "benchmark")
    try:
        yield fleet
    finally:
        for actor in fleet.actors:
            ray.kill(actor)


def loss(made: Experiment, weights: NDArray[np.float32]) -> float:
    """F on all rows of all clients, which have equally many."""
    z = made.problem.init(0)
    z = Point(*torch.from_numpy(weights.astype(np.float32)).split((len(z.x), len(z.y))))
    rows = np.arange(len(made.shards.train))
    share = torch.full((len(rows),), 1 / len(rows))
    with torch.no_grad():
        return float(made.problem.value(z, Batch(made.shards.inputs(rows), made.shards.labels(rows), share)))


def gradients(made: Experiment) -> float:
    """Of one row each, in a round."""
    phases = made.algorithm.phases(1)
    rows_C = made.planner.samples
    clients = [(phase, made.planner.population[: phase.cohort.S]) for phase in phases]  # type: ignore[union-attr]
    return sum(
        each.evaluations * float(rows_C(each.work, cohort).sum()) for phase, cohort in clients for each in phase.passes
    )


def compare(
    folder: Path, model: str, S: int, two_phases: bool, rounds: int, pythons: dict[str, str], peak: float
) -> None:
    """Plays the rounds and prints a line per program; `peak` is of one core, in GFLOP/s."""
    made = experiment(model, S, two_phases)
    task = folder / f"{model}-{S}-{two_phases}.npz"
    write_task(task, made, model, rounds)
    with ExitStack() as stack:
        fleet = stack.enter_context(actors(made, 2))
        programs: dict[str, Program] = {
            "raysim, 2 actors": Raysim(Server(made.job(folder), fleet)),
            "raysim, this process": Raysim(Server(made.job(folder), InProcessFleet(made.engine()))),
            "plain PyTorch loop": Peer.start("plain", task, sys.executable),
        }
        if "pfl" in pythons and not two_phases:
            programs["pfl"] = Peer.start("pfl_peer", task, pythons["pfl"])
            torchrun = str(Path(pythons["pfl"]).with_name("torchrun"))
            programs["pfl, 2 processes"] = Peer.start("pfl_peer", task, torchrun, "--nproc_per_node=2")
        if "flower" in pythons and not two_phases:
            programs["Flower, 2 workers"] = Peer.start("flower_peer", task, pythons["flower"], arguments=["2"])
        times: dict[str, list[float]] = {name: [] for name in programs}
        for t in range(rounds):
            for name, program in programs.items():
                times[name].append(program.play(t))
        medians = {name: statistics.median(ms[WARM_UP:]) for name, ms in times.items()}
        memory = {name: program.memory_bytes() for name, program in programs.items()}
        final = {name: program.weights() for name, program in programs.items()}
    ours = medians["raysim, 2 actors"]
    reference = final["plain PyTorch loop"]
    moved = float(np.abs(reference[: len(made.problem.init(0).x)] - made.problem.init(0).x.numpy()).max())
    gflop = gflop_per_row(model) * gradients(made)
    work = "CD-MAGE, AUC" if two_phases else "FedAvg"
    for name, ms in medians.items():
        off = float(np.abs(final[name] - reference).max()) / moved
        share = gflop / (1e-3 * ms * peak * (2 if "2" in name else 1))
        _say(
            f"{work:<14}{model:<8}{S:>5}  {name:<22}{ms:>9.1f}{ms / ours:>7.1f}{share:>7.0%}{memory[name] / 1e6:>9.0f}"
            f"{loss(made, final[name]):>11.6f}{off:>10.0e}"
        )


def peak_gflops() -> float:
    """Of one thread in a large float32 matrix product."""
    a = torch.rand(2048, 2048)
    best = min(_timed(lambda: a @ a) for _ in range(5))
    return float(2 * 2048**3 / best / 1e9)


def gflop_per_row(model: str) -> float:
    """Multiplications and additions of one gradient on one row, in 1e9."""
    from torch.utils.flop_counter import FlopCounterMode

    module = experiment(model, 10, False).problem.net.module  # type: ignore[attr-defined]
    with FlopCounterMode(display=False) as counter:
        module(torch.rand(1, 1, 28, 28)).sum().backward()
    return float(counter.get_total_flops()) / 1e9


def overhead(folder: Path) -> None:
    """Ray's own cost: a phase of work too small to matter, over actors and in this process."""
    tree = {
        "name": "bench",
        "rounds": 1,
        "data": {"name": "digits"},
        "partition": {"name": "by_label", "clients": 100},
        "problem": {"name": "auc"},
        "model": {"name": "mlp", "hidden": [8]},
        "algorithm": {"name": "cd_ma", "S": 10, "K": 1, "batch": 4, "eta": ETA, "gamma": ETA},
    }
    made = Experiment.build(load_config(tree))
    with actors(made, 2) as fleet:
        pair = [Raysim(Server(made.job(folder), f)) for f in (fleet, InProcessFleet(made.engine()))]
        times = np.array([[program.play(t) for program in pair] for t in range(60)])[10:]
    over_ray, alone = np.median(times, axis=0)
    _say(f"A phase of next to no work, S = 10: {over_ray:.1f} ms over two actors, {alone:.1f} ms in this process.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--sizes", nargs="+", type=int, default=[10, 100], metavar="S")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--pfl", metavar="PYTHON", help="interpreter of an environment with pfl")
    parser.add_argument("--flower", metavar="PYTHON", help="interpreter of an environment with flwr[simulation]")
    asked = parser.parse_args()
    pythons = {name: path for name in ("pfl", "flower") if (path := getattr(asked, name))}
    torch.set_num_threads(1)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        peak = peak_gflops()
        _say(f"One thread multiplies large matrices at {peak:.0f} GFLOP/s.")
        for model in asked.models:
            _say(f"{model}: {1e3 * gflop_per_row(model):.2f} MFLOP per gradient and row.")
        overhead(folder)
        numbers = f"{'ms':>9}{'x':>7}{'peak':>7}{'MB':>9}{'loss':>11}{'apart':>10}"
        _say(f"{'work':<14}{'model':<8}{'S':>5}  {'program':<22}{numbers}")
        for two_phases in (False, True):
            for model in asked.models:
                for S in asked.sizes:
                    compare(folder, model, S, two_phases, asked.rounds, pythons, peak)
    ray.shutdown()


def _timed(work: Any) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _pss(root: psutil.Process) -> int:
    processes = [root, *root.children(recursive=True)]
    return sum(p.memory_full_info().pss for p in processes if p.is_running())


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
