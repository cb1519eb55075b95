"""Processes that end at chosen moments of a run, once each; named in configurations by tests.toys_faults:Name."""

import contextlib
import os
import signal
import time
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from torch import Tensor

from raysim.algorithm import Algorithm
from raysim.algorithms import ALGORITHMS
from raysim.batch import Batch
from raysim.phase import Cohort, Pass, Phase, Reply
from raysim.point import Point
from raysim.problems import Problem, Quadratic


def workers(name: str) -> list[psutil.Process]:
    """Processes of this name, `ClientActor` or `ServerActor`, of the Ray that this process has started or works for."""
    mine = psutil.Process()
    if " ".join(mine.cmdline()).startswith("ray::"):
        raylet = mine.parent()
        assert raylet is not None
        mine = raylet
    found = []
    for process in mine.children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has ended
            if " ".join(process.cmdline()).startswith(f"ray::{name}"):
                found.append(process)
    return found


def pids(name: str) -> list[int]:
    """Of the workers of this name."""
    return sorted(process.pid for process in workers(name))


def first(marks: str, moment: str) -> bool:
    """Whether nobody was told so of this moment before: each blow falls once, whoever's turn it is."""
    try:
        (Path(marks) / moment).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def struck(marks: str) -> set[str]:
    """Moments that have come."""
    return {path.name for path in Path(marks).iterdir()}


@dataclass(frozen=True)
class StruckPhase(Phase[Any, Any, Any, Any]):
    """A phase of another algorithm's, in which processes end.

    Attributes:
        of: the phase.
        moment: `before`: two client actors, as the message is made; `during`: the one that computes first, in its first
            step; `after`: all of them, and `server`: the server, when the phase's results have come.
        marks: a folder that says which blows have fallen.
    """

    of: Phase[Any, Any, Any, Any]
    moment: str
    marks: str

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.of.name

    @property
    def remembers(self) -> bool:  # type: ignore[override]
        return self.of.remembers

    @property
    def cohort(self) -> Cohort:  # type: ignore[override]
        return self.of.cohort

    @property
    def passes(self) -> list[Pass[Any, Any]]:
        return [replace(each, step=partial(self._step, each)) for each in self.of.passes]

    def sends(self, state: Any) -> Any:
        if self._now("before"):
            for pid in pids("ClientActor")[:2]:
                os.kill(pid, signal.SIGKILL)
        return self.of.sends(state)

    def start(self, sent: Any, memory: Any) -> Any:
        return self.of.start(sent, memory)

    def _step(self, of: Pass[Any, Any], problem: Problem, sent: Any, carry: Any, batch: Batch) -> Any:
        here = " ".join(psutil.Process().cmdline())
        if here.startswith("ray::ClientActor") and self._now("during"):  # not in the server's dry run
            os.kill(os.getpid(), signal.SIGKILL)
        return of.step(problem, sent, carry, batch)

    def finish(self, sent: Any, carry: Any) -> Reply[Any]:
        return self.of.finish(sent, carry)

    def absorb(self, state: Any, mean: Any, accepted: int) -> Any:
        if self._now("after"):
            for pid in pids("ClientActor"):
                os.kill(pid, signal.SIGKILL)
        if self._now("server"):
            os.kill(os.getpid(), signal.SIGKILL)
        return self.of.absorb(state, mean, accepted)

    def _now(self, moment: str) -> bool:
        return self.moment == moment and first(self.marks, f"{moment} {self.name}")


@dataclass(frozen=True, kw_only=True)
class Struck(Algorithm[Any]):
    """Another algorithm, in some of whose rounds processes end, in each of their phases.

    Attributes:
        of: its name and settings.
        moments: of round 1, 2, ..., see StruckPhase.
        marks: see StruckPhase.
    """

    of: dict[str, Any]
    moments: list[str]
    marks: str
    clients: int
    seed: int
    inner: Algorithm[Any] = field(init=False)

    def __post_init__(self) -> None:
        own = {key: value for key, value in self.of.items() if key != "name"}
        made = ALGORITHMS.build(self.of["name"], own, "algorithm", clients=self.clients, seed=self.seed)
        object.__setattr__(self, "inner", made)

    def init(self, z: Point) -> Any:
        return self.inner.init(z)

    def phases(self, t: int) -> tuple[Phase[Any, Any, Any, Any], ...]:
        phases = self.inner.phases(t)
        if not 1 <= t <= len(self.moments):
            return phases
        return tuple(StruckPhase(phase, self.moments[t - 1], self.marks) for phase in phases)

    def point(self, state: Any) -> Point:
        return self.inner.point(state)


@dataclass(frozen=True, kw_only=True)
class Hungry(Quadratic):
    """A problem whose gradient once takes more and more memory, until somebody ends its process.

    Attributes:
        most_bytes: at which it gives up.
        marks: as of StruckPhase.
    """

    most_bytes: int
    marks: str

    def value(self, z: Point, batch: Batch) -> Tensor:
        if first(self.marks, "hungry"):
            taken: list[bytearray] = []
            while sum(map(len, taken)) < self.most_bytes:
                taken.append(bytearray(b"x" * 100_000_000))
                time.sleep(0.05)
            time.sleep(10)
            (Path(self.marks) / "lived on").touch()
        return super().value(z, batch)
