"""The round loop: plan, send, sum, absorb and book each phase; evaluate and save after some rounds."""

import copy
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from raysim.dry_run import DryRun
from raysim.errors import ConfigError, noted
from raysim.exchange import Block, Order
from raysim.fleet import Fleet
from raysim.phase import Phase
from raysim.point import Point
from server.checkpoint import Standing
from server.dispatch import Outcome
from server.evaluating import Evaluating
from server.evaluation import Metrics
from server.exhibits import save_final
from server.job import Job, Progress
from server.ledger import Ledger, Row, Spent
from server.saving import Saving
from server.watch import Watch


@dataclass
class Server:
    """Plays rounds and holds the state that passes from one round to the next.

    Attributes:
        job: the experiment.
        fleet: computes the clients' halves.
        ledger: the ledger of the run.
        state: the algorithm's state.
        memory: handles of clients' memory, by client number.
        clock: the dispatcher's clock.
        done: number of rounds that have been played.
        saving, evaluating, watch, dry_run: see their classes.
    """

    job: Job
    fleet: Fleet
    ledger: Ledger = field(init=False)
    state: Any = field(init=False)
    memory: dict[int, Any] = field(default_factory=dict)
    clock: Any = field(init=False)
    done: int = 0
    saving: Saving = field(init=False)
    evaluating: Evaluating = field(init=False)
    watch: Watch = field(default_factory=Watch)
    dry_run: DryRun = field(init=False)
    _stopping: bool = False
    _phases: tuple[Row, ...] = ()  # the ledger's rows of the last round

    def __post_init__(self) -> None:
        job = self.job
        self.ledger = Ledger(job.planner.rows_N, job.groupings)
        self.state = job.algorithm.init(job.problem.init(job.planner.seed).to(job.dtype))
        self.clock = job.dispatcher.start()
        self.saving = Saving(job.checkpoints, job.checkpoint_every, job.rounds)
        self.evaluating = Evaluating(job, self.fleet, self.ledger, self.saving, self.watch)
        self.dry_run = DryRun(job.problem, job.row_shape)

    @property
    def point(self) -> Point:
        """The algorithm's point in its present state."""
        return self.job.algorithm.point(self.state)

    def stop(self) -> None:
        """Lets `run` end after the round that is being played, with a checkpoint. Any thread may call it."""
        self._stopping = True

    def run(self) -> Generator[Progress, None, None]:
        """Plays all rounds and yields a report before the first and after each.

        Rounds do not wait for evaluations, unless an evaluation may end the run: an evaluation goes on while the next
        round is played, and is reported after that. The ledger is written however the run ends.
        """
        evaluating, saving = self.evaluating, self.saving
        try:
            report = self._report(self.ledger.latest())
            if evaluating.due(self.done) and not self.ledger.has_evaluation(self.done):
                self._evaluate()
                report = evaluating.finish()
            yield report
            while not self._over(report) and not self._stopping:
                self.play(self.done)
                if evaluating.under_way:
                    report = evaluating.finish()
                    yield report
                if evaluating.due(self.done):
                    self._evaluate()
                if evaluating.under_way and self.job.stop_at:
                    report = evaluating.finish()
                    yield report
                if saving.due(self.done):
                    self._save()
                if not evaluating.due(self.done):
                    yield self._report(report.metrics)
            if evaluating.under_way:
                report = evaluating.finish()
                yield report
            saving.finish()
            if self.done not in self.job.checkpoints.rounds:
                self._save()
                saving.finish()
        finally:
            saving.abandon()
            evaluating.abandon()
            self.ledger.write(self.job.folder)
        if self._over(report):
            save_final(self.job, self.fleet, self.point, self.done)

    def play(self, t: int) -> None:
        """Plays round t, phase by phase. A phase without enough results undoes the round; its costs stay booked."""
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
            self.watch.look(t, point, self.point, self.job.algorithm)
        self.done = t + 1

    def _exchange(self, t: int, phase: Phase[Any, Any, Any, Any], before: "_Exchange | None") -> "_Exchange":
        """Plays one phase of round t, whose phase before was `before`."""
        started = time.perf_counter()
        message = phase.sends(self.state)
        traffic = self.dry_run.traffic(phase, message, before.message if before else None)
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
                self.watch.rejected(phase, outcome)
        summed = time.perf_counter()
        if outcome.valid:
            self.state = phase.absorb(self.state, total.mean(self.job.dtype), len(outcome.accepted))
            self.memory |= kept  # only now, so that a failed phase leaves nothing behind
            self.saving.remembered(kept)
        spent = Spent(time.perf_counter() - started, planned - started, summed - planned)
        return _Exchange(message, outcome, self.ledger.phase(t, phase.name, blocks, outcome, spent))

    def restore(self, standing: Standing) -> None:
        """Sets the server to the standing of a run, from which it goes on."""
        self.state, self.clock, self.done = standing.state, standing.clock, standing.rounds
        self.memory = dict(self.fleet.keep(standing.memory))
        self.saving.restart(self.done)
        metrics, rounds = standing.tables["metrics"], standing.tables["rounds"]
        # An evaluation after the last round of the earlier run is dropped where no evaluation is due any more.
        due = [self.evaluating.due(measured) for measured in metrics["round"].to_pylist()]
        self.ledger.restore({**standing.tables, "metrics": metrics.filter(pa.array(due, pa.bool_()))})
        self._phases = tuple(rounds.filter(pc.equal(rounds["round"], self.done - 1)).to_pylist())

    def _over(self, latest: Progress) -> bool:
        stop_at = self.job.stop_at
        return self.done >= self.job.rounds or (stop_at is not None and stop_at.reached_in(latest.metrics))

    def _evaluate(self) -> None:
        self.evaluating.begin(self.state, self.memory, self._report({}, evaluated=True))

    def _save(self) -> None:
        # Only the clock is changed in place, so that only the clock is copied.
        standing = Standing(self.done, self.state, copy.deepcopy(self.clock), {}, self.ledger.tables())
        self.saving.begin(standing, dict(self.memory), self.fleet)

    def _report(self, metrics: Metrics, evaluated: bool = False) -> Progress:
        return Progress(
            self.done, self.job.rounds, metrics, evaluated, self.ledger.bytes_down, self.ledger.bytes_up,
            self.job.dispatcher.now_s(self.clock), self.watch.take(), self._phases,
        )  # fmt: skip


@dataclass(frozen=True)
class _Exchange:
    """A phase that has been played, with everything that the next phase of its round needs."""

    message: Any
    outcome: Outcome
    row: Row


def _require_booked(phase: Phase[Any, Any, Any, Any], t: int, sent: int, booked: int) -> None:
    """Raises ConfigError where clients uploaded another number of bytes than was booked before they computed."""
    if sent != booked:
        raise ConfigError(
            "algorithm.name",
            f"in round {t}, phase {phase.name!r}, the accepted clients uploaded {sent:,} bytes together, and "
            f"{booked:,} are booked; {type(phase).__name__}.finish must return tensors whose shapes and types depend "
            "on the message alone, never on data or memory",
        )
