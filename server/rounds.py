"""The round loop: plan, send, fold, absorb, book; now and then evaluate."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from raysim.data import Split
from raysim.errors import ConfigError
from raysim.fleet import Fleet
from raysim.phase import Algorithm, Block, Order, Phase
from raysim.point import Point
from raysim.problems import Problem
from raysim.wire import Traffic
from server.dispatch import Dispatcher, Outcome
from server.evaluation import Metrics, curves_of, evaluate
from server.exhibits import save_curves, save_pictures
from server.ledger import Ledger
from server.participation import Grouping
from server.plan import Planner


@dataclass(frozen=True)
class Job:
    """Everything the server needs to know of an experiment.

    Attributes:
        algorithm, problem: built.
        planner: draws the minibatches.
        dispatcher: decides who takes part.
        splits: what is evaluated on; each has rows.
        groupings: of the clients, for the ledger.
        rounds: T.
        evaluate_every: rounds between evaluations; the first is before round 0, the last after round T-1.
        pictures_every: evaluations between pictures, of which there are some at the first and the last too.
        dtype: of the point and all vectors on the wire.
        folder: where the ledger and the model are written.
    """

    algorithm: Algorithm[Any]
    problem: Problem
    planner: Planner
    dispatcher: Dispatcher[Any]
    splits: Sequence[Split]
    groupings: Mapping[str, Grouping]
    rounds: int
    evaluate_every: int
    pictures_every: int
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
    sim_s: float | None


@dataclass
class Server:
    """Holds what passes from round to round.

    Attributes:
        job, fleet: given.
        ledger: what was booked so far.
        state: the algorithm's.
        memory: handles of clients' memory, by client.
        clock: the dispatcher's.
    """

    job: Job
    fleet: Fleet
    ledger: Ledger = field(init=False)
    state: Any = field(init=False)
    memory: dict[int, Any] = field(default_factory=dict)
    clock: Any = field(init=False)

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.job.planner.rows_N, self.job.groupings)
        self.state = self.job.algorithm.init(self.job.problem.init(self.job.planner.seed).to(self.job.dtype))
        self.clock = self.job.dispatcher.start()

    @property
    def point(self) -> Point:
        """The point the algorithm stands for now."""
        return self.job.algorithm.point(self.state)

    def run(self) -> Iterator[Progress]:
        """Plays all rounds; yields before the first and after each. What was booked is written however it ends.

        Rounds do not wait for evaluations: that of one round is under way while the next is played, and reported then.
        """
        under_way: _Evaluation | None = None
        try:
            reported = self._evaluated(self._evaluation(0))
            yield reported
            for t in range(self.job.rounds):
                self.play(t)
                if under_way:
                    reported, under_way = self._evaluated(under_way), None
                    yield reported
                if (t + 1) % self.job.evaluate_every == 0 or t + 1 == self.job.rounds:
                    under_way = self._evaluation(t + 1)
                else:
                    yield self._progress(t + 1, reported.metrics, evaluated=False)
            if under_way:
                reported, under_way = self._evaluated(under_way), None
                yield reported
        finally:
            if under_way:
                with contextlib.suppress(Exception):  # one is being raised, of which this is the consequence
                    self._evaluated(under_way)
            self.ledger.write(self.job.folder)
        self._save()

    def play(self, t: int) -> None:
        """Round t, phase by phase. A phase without enough results undoes the round; its costs stay booked."""
        state, memory = self.state, dict(self.memory)
        exchange = None
        for phase in self.job.algorithm.phases(t):
            exchange = self._exchange(t, phase, exchange)
            if not exchange.outcome.valid:
                self.state, self.memory = state, memory
                self.ledger.undone(t)
                break
        self.job.dispatcher.round_ended(self.clock, t, exchange is None or exchange.outcome.valid)

    def _exchange(self, t: int, phase: Phase[Any, Any, Any, Any], before: "_Exchange | None") -> "_Exchange":
        started = time.perf_counter()
        message = phase.sends(self.state)
        traffic = Traffic.of(phase, message, before.message if before else None)
        outcome = self.job.dispatcher.dispatch(self.clock, phase, t, traffic, before.outcome if before else None)
        blocks: list[Block] = []
        if outcome.valid:
            blocks = self.job.planner.blocks(phase.work, t, phase.name, outcome.accepted)
            total, kept = self.fleet.run(Order(t, phase, message), blocks, self.memory)
            _require_booked(phase, t, total.bytes_up, traffic.up * len(outcome.accepted))
            self.state = phase.absorb(self.state, total.mean(self.job.dtype), len(outcome.accepted))
            self.memory |= kept  # only now: what a failed phase would have left behind is never seen
        self.ledger.phase(t, phase.name, blocks, outcome, time.perf_counter() - started)
        return _Exchange(message, outcome)

    def _evaluation(self, rounds: int) -> "_Evaluation":
        """The evaluation of the present point, under way."""
        if rounds == self.job.rounds or rounds % (self.job.evaluate_every * self.job.pictures_every) == 0:
            save_pictures(self.job.folder, rounds, self.job.problem.pictures(self.point))
        metrics = evaluate(self.job.problem, self.fleet, self.job.splits, self.point)
        progress = self._progress(rounds, {}, evaluated=True)
        return _Evaluation(metrics, progress, self.ledger.so_far(progress.sim_s))

    def _evaluated(self, evaluation: "_Evaluation") -> Progress:
        """Waits for it and books it."""
        progress = replace(evaluation.progress, metrics=evaluation.metrics())
        self.ledger.evaluation(progress.round, progress.metrics, evaluation.so_far)
        self.ledger.write(self.job.folder)
        return progress

    def _progress(self, done: int, metrics: Metrics, evaluated: bool) -> Progress:
        ledger = self.ledger
        sim_s = self.job.dispatcher.now_s(self.clock)
        return Progress(done, self.job.rounds, metrics, evaluated, ledger.bytes_down, ledger.bytes_up, sim_s)

    def _save(self) -> None:
        """Writes curves of the final point, and model.pt for torch.load(..., weights_only=True): its parts by name."""
        curves = curves_of(self.job.problem, self.fleet, self.job.splits, self.point)
        save_curves(self.job.folder, curves)
        parts = self.job.problem.parts(self.point)
        torch.save({name: part.clone() for name, part in parts.items()}, self.job.folder / "model.pt")


def _require_booked(phase: Phase[Any, Any, Any, Any], t: int, sent: int, booked: int) -> None:
    """Raises ConfigError where clients put other bytes on the wire than were booked before they were computed."""
    if sent != booked:
        raise ConfigError(
            "algorithm.name",
            f"in round {t}, phase {phase.name!r}, the accepted clients uploaded {sent:,} bytes together, and "
            f"{booked:,} are booked; {type(phase).__name__}.finish must return tensors whose shapes and types depend "
            "on the message alone, never on data or memory",
        )


@dataclass(frozen=True)
class _Evaluation:
    """An evaluation under way, and what is to be reported and booked with it."""

    metrics: Callable[[], Metrics]
    progress: Progress
    so_far: Mapping[str, float | None]


@dataclass(frozen=True)
class _Exchange:
    """A phase that has been played, as the next one of its round needs it."""

    message: Any
    outcome: Outcome
