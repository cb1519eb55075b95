"""The round loop: plan, send, fold, absorb, book; now and then evaluate."""

import contextlib
import copy
import io
import math
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import torch

from raysim.data import Split
from raysim.errors import ConfigError, Diverged, noted
from raysim.fleet import Fleet
from raysim.output import write_whole
from raysim.phase import Algorithm, Block, Order, Phase
from raysim.point import Point
from raysim.problems import Problem
from raysim.wire import Traffic
from server.checkpoint import Checkpoints, Standing
from server.dispatch import Dispatcher, Outcome
from server.evaluation import Measured, Metrics, Own, Target, curves_of, evaluate
from server.exhibits import save_curves, save_pictures
from server.ledger import Ledger, Row, Spent
from server.participation import Grouping
from server.plan import Planner

# Rounds between checkpoints, at least, and the share of the time that writing them may take, if nothing is asked for.
PAUSE_ROUNDS = 10
CHECKPOINT_SHARE = 0.02
# Rounds in a row without any movement that are told of; some methods spend one on their estimators alone.
STILL_ROUNDS = 3


@dataclass(frozen=True)
class Job:
    """Everything the server needs to know of an experiment.

    Attributes:
        algorithm, problem: built.
        planner: draws the minibatches.
        dispatcher: decides who takes part.
        splits: what is evaluated on; each has rows.
        by_client: clients' own models are evaluated on their own rows.
        groupings: of the clients, for the ledger.
        rounds: T.
        stop_at: the run is over at the first evaluation that finds it, if that is before T; rounds wait for those then.
        evaluate_every: rounds between evaluations; the first is before round 0, the last after round T-1.
        pictures_every: evaluations between pictures, of which there are some at the first and the last too.
        checkpoint_every: rounds between checkpoints; there is one after the last round too. None is PAUSE_ROUNDS, or
            more so that they take no more than CHECKPOINT_SHARE of the time.
        dtype: of the point and all vectors on the wire.
        folder: where the ledger and the model are written.
        checkpoints: where a run goes on from if it is broken off.
    """

    algorithm: Algorithm[Any]
    problem: Problem
    planner: Planner
    dispatcher: Dispatcher[Any]
    splits: Sequence[Split]
    by_client: bool
    groupings: Mapping[str, Grouping]
    rounds: int
    stop_at: Target | None
    evaluate_every: int
    pictures_every: int
    checkpoint_every: int | None
    dtype: torch.dtype
    folder: Path
    checkpoints: Checkpoints


@dataclass(frozen=True)
class Progress:
    """What a watcher is told after each round: rounds done, the latest metrics, totals so far, and what is wrong.

    Attributes:
        phases: of the round, as rows of rounds.parquet without what was not booked; none before the first.
        warnings: what has come up since the last report; of the same several times in a row, the first.
    """

    round: int
    rounds: int
    metrics: Metrics
    evaluated: bool
    bytes_down: int
    bytes_up: int
    sim_s: float | None
    warnings: tuple[str, ...] = ()
    phases: tuple[Row, ...] = ()


@dataclass
class Server:
    """Holds what passes from round to round.

    Attributes:
        job, fleet: given.
        ledger: what was booked so far.
        state: the algorithm's.
        memory: handles of clients' memory, by client.
        clock: the dispatcher's.
        done: rounds that have been played.
    """

    job: Job
    fleet: Fleet
    ledger: Ledger = field(init=False)
    state: Any = field(init=False)
    memory: dict[int, Any] = field(default_factory=dict)
    clock: Any = field(init=False)
    done: int = 0
    _changed: set[int] = field(default_factory=set)  # clients whose memory the last checkpoint does not have
    _pause: "_Pause" = field(default_factory=lambda: _Pause(0, time.perf_counter()))
    _writing: Future[None] | None = None  # a checkpoint
    _stopping: bool = False
    _trouble: str | None = None  # that the last evaluation found
    _notices: list[str] = field(default_factory=list)  # for the next report
    _rejected: bool = False  # whether results ever were
    _phases: tuple[Row, ...] = ()  # of the last round
    _still: int = 0  # rounds in a row that have left the point as it was

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.job.planner.rows_N, self.job.groupings)
        self.state = self.job.algorithm.init(self.job.problem.init(self.job.planner.seed).to(self.job.dtype))
        self.clock = self.job.dispatcher.start()

    @property
    def point(self) -> Point:
        """The point the algorithm stands for now."""
        return self.job.algorithm.point(self.state)

    def restore(self, standing: Standing) -> None:
        """Goes on from where a run stood, instead of from the beginning."""
        self.state, self.clock, self.done = standing.state, standing.clock, standing.rounds
        self.memory = dict(self.fleet.keep(standing.memory))
        self._pause = _Pause(self.done, time.perf_counter())
        measured = standing.tables["metrics"]
        # The last round is evaluated in any case, and need not be the last any more.
        due = [self._is_evaluated(rounds) for rounds in measured["round"].to_pylist()]
        self.ledger.restore({**standing.tables, "metrics": measured.filter(pa.array(due, pa.bool_()))})
        rounds = standing.tables["rounds"]
        self._phases = tuple(rounds.filter(pc.equal(rounds["round"], self.done - 1)).to_pylist())

    def stop(self) -> None:
        """Has `run` end after the round that is being played, with a checkpoint. It may be called from any thread."""
        self._stopping = True

    def run(self) -> Generator[Progress, None, None]:
        """Plays all rounds; yields before the first and after each. What was booked is written however it ends.

        Rounds do not wait for evaluations, unless one may be the end: that of one round is under way while the next is
        played, and reported then.
        """
        under_way: _Evaluation | None = None
        try:
            reported = self._progress(self.done, self.ledger.latest(), evaluated=False)
            if self._is_evaluated(self.done) and not self.ledger.has_evaluation(self.done):
                reported = self._evaluated(self._evaluation(self.done))
            yield reported
            while not self._over(reported) and not self._stopping:
                self.play(self.done)
                if under_way:
                    reported, under_way = self._evaluated(under_way), None
                    yield reported
                evaluated = self._is_evaluated(self.done)
                if evaluated:
                    under_way = self._evaluation(self.done)
                if under_way and self.job.stop_at:
                    reported, under_way = self._evaluated(under_way), None
                    yield reported
                if self._is_written(self.done):
                    self._checkpoint()
                if not evaluated:
                    yield self._progress(self.done, reported.metrics, evaluated=False)
            if under_way:
                reported, under_way = self._evaluated(under_way), None
                yield reported
            self._written()
            if self.done not in self.job.checkpoints.rounds:
                self._checkpoint()
                self._written()
        finally:
            if self._writing is not None:
                with contextlib.suppress(Exception):  # one is being raised
                    self._written()
            if under_way:
                with contextlib.suppress(Exception):  # one is being raised, of which this is the consequence
                    self._evaluated(under_way)
            self.ledger.write(self.job.folder)
        if self._over(reported):
            self._save()

    def play(self, t: int) -> None:
        """Round t, phase by phase. A phase without enough results undoes the round; its costs stay booked."""
        state, memory, point = self.state, dict(self.memory), self.point
        exchange, self._phases = None, ()
        for phase in self.job.algorithm.phases(t):
            with noted(f"in round {t}, phase {phase.name!r}, on the server"):
                exchange = self._exchange(t, phase, exchange)
            self._phases += (exchange.row,)
            if not exchange.outcome.valid:
                self.state, self.memory = state, memory
                self.ledger.undone(t)
                break
        assert exchange is not None, "a round has a phase"
        self.job.dispatcher.round_ended(self.clock, t, exchange.outcome)
        if exchange.outcome.valid:
            self._look(t, point)
        self.done = t + 1

    def _over(self, latest: Progress) -> bool:
        stop_at = self.job.stop_at
        return self.done >= self.job.rounds or (stop_at is not None and stop_at.reached_in(latest.metrics))

    def _look(self, t: int, before: Point) -> None:
        """Looks at where round t has led. Raises Diverged."""
        now = self.point
        if not math.isfinite(now.norm()):
            raise Diverged(
                f"round {t} has led to a point that is not finite, although the clients' results are: the server's own "
                f"step is too large; look at the steps of {type(self.job.algorithm).__name__}"
            )
        unmoved = torch.equal(now.x, before.x) and torch.equal(now.y, before.y)
        # Where clients have models of their own, the server's need not move.
        self._still = self._still + 1 if unmoved and not self.job.algorithm.personal else 0
        if self._still == STILL_ROUNDS:
            self._notices.append(
                f"the point is where it was {STILL_ROUNDS} rounds ago, to the bit: gradients have vanished, or steps "
                "are too small for the precision; look at the steps and at whether the model has saturated"
            )

    def _exchange(self, t: int, phase: Phase[Any, Any, Any, Any], before: "_Exchange | None") -> "_Exchange":
        started = time.perf_counter()
        message = phase.sends(self.state)
        traffic = Traffic.of(phase, message, before.message if before else None)
        outcome = self.job.dispatcher.dispatch(self.clock, phase, t, traffic, before.outcome if before else None)
        blocks: list[Block] = []
        if outcome.valid:
            blocks = self.job.planner.blocks(phase.works, t, phase.name, outcome.accepted)
        planned = time.perf_counter()
        if outcome.valid:
            total, kept = self.fleet.run(Order(t, phase, message), blocks, self.memory)
            _require_booked(phase, t, total.bytes_up, traffic.up * len(outcome.accepted))
            if total.rejected:
                outcome = outcome.without(total.rejected)
                kept = {client: memory for client, memory in kept.items() if client not in total.rejected}
                self._tell_of_rejected(phase, outcome)
        summed = time.perf_counter()
        if outcome.valid:
            self.state = phase.absorb(self.state, total.mean(self.job.dtype), len(outcome.accepted))
            self.memory |= kept  # only now: what a failed phase would have left behind is never seen
            self._changed |= kept.keys()
        spent = Spent(time.perf_counter() - started, planned - started, summed - planned)
        return _Exchange(message, outcome, self.ledger.phase(t, phase.name, blocks, outcome, spent))

    def _tell_of_rejected(self, phase: Phase[Any, Any, Any, Any], outcome: Outcome) -> None:
        if not self._rejected:
            self._rejected = True
            n, clients = len(outcome.rejected), ", ".join(map(str, outcome.rejected[:10].tolist()))
            self._notices.append(
                f"results of {n} of {n + len(outcome.accepted)} clients in phase {phase.name!r} could not be used and "
                f"were left out ({clients}{', ...' if n > 10 else ''}); those of later rounds are told of in "
                "rounds.parquet and participation.parquet alone"
            )

    def _checkpoint(self) -> None:
        """Begins to write where the run stands, beside the next round, once the checkpoint before is written."""
        checkpoints = self.job.checkpoints
        self._written()
        whole = checkpoints.needs_all(len(self._changed), len(self.memory))
        memory = {c: m for c, m in self.memory.items() if whole or c in self._changed}
        # Only the clock is changed in place.
        standing = Standing(self.done, self.state, copy.deepcopy(self.clock), memory, self.ledger.tables())
        self._changed = set()

        self._pause = _Pause(self.done, time.perf_counter())

        def write(pause: _Pause) -> None:
            checkpoints.save(replace(standing, memory=self.fleet.fetch(memory)), whole)
            pause.cost_s = time.perf_counter() - pause.since_s

        executor = ThreadPoolExecutor(max_workers=1)
        self._writing = executor.submit(write, self._pause)
        executor.shutdown(wait=False)

    def _written(self) -> None:
        """Waits for the checkpoint that is being written. Raises what it failed with."""
        if self._writing is not None:
            writing, self._writing = self._writing, None
            writing.result()

    def _is_written(self, rounds: int) -> bool:
        """Whether there is to be a checkpoint."""
        if rounds == self.job.rounds or self.job.checkpoint_every is not None:
            return rounds == self.job.rounds or rounds % (self.job.checkpoint_every or 1) == 0
        writes = self._writing is not None and not self._writing.done()
        enough = rounds - self._pause.rounds >= PAUSE_ROUNDS and not writes
        return enough and CHECKPOINT_SHARE * (time.perf_counter() - self._pause.since_s) >= self._pause.cost_s

    def _is_evaluated(self, rounds: int) -> bool:
        return rounds % self.job.evaluate_every == 0 or rounds == self.job.rounds

    def _evaluation(self, rounds: int) -> "_Evaluation":
        """The evaluation of the present point, under way."""
        if rounds % (self.job.evaluate_every * self.job.pictures_every) == 0:
            save_pictures(self.job.folder, rounds, self.job.problem.pictures(self.point))
        with noted(f"in the evaluation after {rounds} rounds"):
            points = {f"{name}_": point for name, point in self.job.algorithm.beside(self.state).items()}
            own = self._own(rounds) if self.job.by_client else None
            if not self.job.algorithm.personal:
                points = {"pooled_" if own else "": self.point} | points
            metrics = evaluate(self.job.problem, self.fleet, self.job.splits, points, own)
        progress = self._progress(rounds, {}, evaluated=True)
        return _Evaluation(metrics, progress, self.ledger.so_far(progress.sim_s))

    def _own(self, rounds: int) -> Own:
        """The clients' own models after so many rounds."""
        phase, planner = self.job.algorithm.own(self.state), self.job.planner
        blocks = planner.blocks(phase.works, rounds, phase.name, planner.population)
        order = Order(rounds, phase, phase.sends(self.state))
        return Own(order, blocks, dict(self.memory), self.ledger.asked_N)

    def _evaluated(self, evaluation: "_Evaluation") -> Progress:
        """Waits for it and books it."""
        with noted(f"in the evaluation after {evaluation.progress.round} rounds"):
            found = evaluation.metrics()
        # A problem of a user's may give numbers of NumPy's or torch's.
        plain = {
            split: {name: v if v is None else float(v) for name, v in of.items()} for split, of in found.metrics.items()
        }
        progress = replace(evaluation.progress, metrics=plain)
        troubles = (self.job.problem.trouble(values) for values in progress.metrics.values())
        trouble = next((text for text in troubles if text), None)
        if trouble and trouble != self._trouble:
            progress = replace(progress, warnings=(*progress.warnings, trouble))
        self._trouble = trouble
        self.ledger.evaluation(progress.round, replace(found, metrics=plain), evaluation.so_far)
        self.ledger.write(self.job.folder)
        self._written()  # it may be the best one
        if self.job.splits:
            problem, among = self.job.problem, self.job.checkpoints.rounds
            split = self.job.splits[-1]
            self.job.checkpoints.best = self.ledger.best(problem.headline, split, among, problem.higher_is_better)
        return progress

    def _progress(self, done: int, metrics: Metrics, evaluated: bool) -> Progress:
        ledger = self.ledger
        sim_s = self.job.dispatcher.now_s(self.clock)
        warnings, self._notices = tuple(self._notices), []
        return Progress(
            done, self.job.rounds, metrics, evaluated, ledger.bytes_down, ledger.bytes_up, sim_s, warnings, self._phases
        )

    def _save(self) -> None:
        """Writes pictures and curves of the final point, and its parts by name into model.pt, for torch.load."""
        save_pictures(self.job.folder, self.done, self.job.problem.pictures(self.point))
        curves = curves_of(self.job.problem, self.fleet, self.job.splits, self.point)
        save_curves(self.job.folder, curves)
        parts = self.job.problem.parts(self.point)
        file = io.BytesIO()
        torch.save({name: part.clone() for name, part in parts.items()}, file)
        write_whole(self.job.folder / "model.pt", file.getvalue(), durable=True)


def _require_booked(phase: Phase[Any, Any, Any, Any], t: int, sent: int, booked: int) -> None:
    """Raises ConfigError where clients put other bytes on the wire than were booked before they were computed."""
    if sent != booked:
        raise ConfigError(
            "algorithm.name",
            f"in round {t}, phase {phase.name!r}, the accepted clients uploaded {sent:,} bytes together, and "
            f"{booked:,} are booked; {type(phase).__name__}.finish must return tensors whose shapes and types depend "
            "on the message alone, never on data or memory",
        )


@dataclass
class _Pause:
    """Since the last checkpoint, or the start: after how many rounds and when it was, and how long it took to write."""

    rounds: int
    since_s: float
    cost_s: float = 0.0


@dataclass(frozen=True)
class _Evaluation:
    """An evaluation under way, and what is to be reported and booked with it."""

    metrics: Callable[[], Measured]
    progress: Progress
    so_far: Mapping[str, float | None]


@dataclass(frozen=True)
class _Exchange:
    """A phase that has been played, as the next one of its round needs it."""

    message: Any
    outcome: Outcome
    row: Row
