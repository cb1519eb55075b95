"""The round loop: plan, send, fold, absorb, book; now and then evaluate."""

import functools
import operator
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from raysim import wire
from raysim.data import Split
from raysim.fleet import Fleet
from raysim.phase import Algorithm, Order, Partial, Phase
from raysim.point import Point
from raysim.problems import Problem
from server.evaluation import Metrics, evaluate
from server.ledger import Ledger
from server.plan import Planner


@dataclass(frozen=True)
class Job:
    """Everything the server needs to know of an experiment.

    Attributes:
        algorithm, problem: built.
        planner: draws the cohorts and batches.
        labels: of each evaluation split, in the file's order.
        rounds: T.
        evaluate_every: rounds between evaluations; the first is before round 0, the last after round T-1.
        dtype: of the point and all vectors on the wire.
        folder: where the ledger and the model are written.
    """

    algorithm: Algorithm[Any]
    problem: Problem
    planner: Planner
    labels: Mapping[Split, NDArray[np.int64]]
    rounds: int
    evaluate_every: int
    dtype: torch.dtype
    folder: Path


@dataclass(frozen=True)
class Progress:
    """What a watcher is told after each round: rounds done, the latest metrics, and totals so far."""

    round: int
    rounds: int
    metrics: Metrics
    evaluated: bool
    bytes_down: int
    bytes_up: int


@dataclass
class Server:
    """Holds the state between rounds and nothing else that matters."""

    job: Job
    fleet: Fleet
    ledger: Ledger = field(init=False)
    memory: dict[int, Any] = field(default_factory=dict)
    state: Any = field(init=False)

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.job.planner.rows_N)
        self.state = self.job.algorithm.init(self.job.problem.init(self.job.planner.seed).to(self.job.dtype))

    @property
    def point(self) -> Point:
        """The point the algorithm stands for now."""
        return self.job.algorithm.point(self.state)

    def run(self) -> Iterator[Progress]:
        """Plays all rounds; yields before the first and after each."""
        metrics = self._evaluate(0)
        yield self._progress(0, metrics, evaluated=True)
        for t in range(self.job.rounds):
            self.play(t)
            due = (t + 1) % self.job.evaluate_every == 0 or t + 1 == self.job.rounds
            if due:
                metrics = self._evaluate(t + 1)
                self.ledger.write(self.job.folder)
            yield self._progress(t + 1, metrics, evaluated=due)
        self._save()

    def play(self, t: int) -> None:
        """Round t, phase by phase."""
        cohort = None
        for phase in self.job.algorithm.phases(t):
            cohort = self.job.planner.cohort(phase.cohort, t, phase.name, cohort)
            self._exchange(t, phase, cohort)

    def _exchange(self, t: int, phase: Phase[Any, Any, Any, Any], cohort: NDArray[np.int64]) -> None:
        started = time.perf_counter()
        blocks = self.job.planner.blocks(phase.work, t, phase.name, cohort)
        order = Order(t, phase, phase.sends(self.state))
        total, kept = self._fold(order, blocks)
        self.state = phase.absorb(self.state, total.mean(self.job.dtype))
        self.memory |= kept  # only now: what a failed phase would have left behind is never seen
        down = len(cohort) * wire.size_bytes(order.message)
        self.ledger.phase(t, phase.name, blocks, down, total.bytes_up, time.perf_counter() - started)

    def _fold(self, order: Order, blocks: Any) -> tuple[Partial, dict[int, Any]]:
        kept: dict[int, Any] = {}

        def partials() -> Iterator[Partial]:
            for partial, memory in self.fleet.run(order, blocks, self.memory):
                kept.update(memory)
                yield partial

        return functools.reduce(operator.add, partials()), kept

    def _evaluate(self, rounds: int) -> Metrics:
        metrics = evaluate(self.job.problem, self.fleet, self.job.labels, self.point)
        self.ledger.evaluation(rounds, metrics)
        return metrics

    def _progress(self, done: int, metrics: Metrics, evaluated: bool) -> Progress:
        return Progress(done, self.job.rounds, metrics, evaluated, self.ledger.bytes_down, self.ledger.bytes_up)

    def _save(self) -> None:
        """Writes model.pt, for torch.load(..., weights_only=True): the point's parts by name."""
        parts = self.job.problem.parts(self.point)
        torch.save({name: part.clone() for name, part in parts.items()}, self.job.folder / "model.pt")
