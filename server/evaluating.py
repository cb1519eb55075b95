"""The evaluation of a run: which rounds are evaluated, and the evaluation that goes on while the next is played."""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from raysim.errors import noted
from raysim.exchange import Order
from raysim.fleet import Fleet, Memory
from raysim.problems import Evaluated
from server.evaluation import Measured, PersonalModels, evaluate
from server.exhibits import save_pictures
from server.job import Job, Progress
from server.ledger import Ledger
from server.saving import Saving
from server.watch import Watch


@dataclass(frozen=True)
class _UnderWay:
    """An evaluation under way, with the report and the costs that belong to it."""

    measured: Callable[[], Measured]
    report: Progress
    so_far: Mapping[str, float | None]


@dataclass
class Evaluating:
    """Evaluates points and clients' own models, one evaluation at a time.

    Attributes:
        job, fleet, ledger, saving, watch: those of the server.
    """

    job: Job
    fleet: Fleet
    ledger: Ledger
    saving: Saving
    watch: Watch
    _under_way: _UnderWay | None = None

    @property
    def under_way(self) -> bool:
        """True if an evaluation has begun and is not booked."""
        return self._under_way is not None

    def due(self, rounds: int) -> bool:
        """Returns True if there is an evaluation after so many rounds."""
        return rounds % self.job.evaluate_every == 0 or rounds == self.job.rounds

    def begin(self, state: Any, memory: Memory, report: Progress) -> None:
        """Begins an evaluation of the run as it stands.

        Args:
            state: the algorithm's state.
            memory: handles of the clients' memory.
            report: the report of the round, still without metrics.
        """
        job, rounds = self.job, report.round
        point = job.algorithm.point(state)
        if rounds % (job.evaluate_every * job.pictures_every) == 0:
            save_pictures(job.folder, rounds, job.problem, point)
        with noted(f"in the evaluation after {rounds} rounds"):
            points = {f"{name}_": extra for name, extra in job.algorithm.extra_points(state).items()}
            models = self._models(rounds, state, memory) if job.by_client else None
            if not job.algorithm.personal:
                points = {"pooled_" if models else "": point} | points
            measured = evaluate(job.problem, self.fleet, job.splits, points, models)
        self._under_way = _UnderWay(measured, report, self.ledger.so_far(report.sim_s))

    def finish(self) -> Progress:
        """Waits for the evaluation under way, books it, and returns its report with the metrics."""
        assert self._under_way is not None
        under_way, self._under_way = self._under_way, None
        report = under_way.report
        with noted(f"in the evaluation after {report.round} rounds"):
            measured = under_way.measured()
        # A user's own problem may return NumPy's or torch's numbers.
        metrics = {
            split: {name: v if v is None else float(v) for name, v in values.items()}
            for split, values in measured.metrics.items()
        }
        warnings = (*report.warnings, *self.watch.troubles(self.job.problem, metrics.values()))
        self.ledger.evaluation(report.round, replace(measured, metrics=metrics), under_way.so_far)
        self.ledger.write(self.job.folder)
        self.saving.finish()  # the checkpoint that is being written may be the best one
        problem, checkpoints = self.job.problem, self.job.checkpoints
        if self.job.splits and isinstance(problem, Evaluated):
            split, among = self.job.splits[-1], checkpoints.rounds
            checkpoints.best = self.ledger.best(problem.headline, split, among, problem.higher_is_better)
        return replace(report, metrics=metrics, warnings=warnings)

    def abandon(self) -> None:
        """Books the evaluation under way, if it succeeds, where another exception is being raised already."""
        if self._under_way is not None:
            with contextlib.suppress(Exception):
                self.finish()

    def _models(self, rounds: int, state: Any, memory: Memory) -> PersonalModels:
        """Returns the clients' own models after so many rounds, to be evaluated."""
        phase, planner = self.job.algorithm.personal_model(state), self.job.planner
        blocks = planner.blocks(phase.works, rounds, phase.name, planner.population)
        order = Order(rounds, phase, phase.sends(state))
        return PersonalModels(order, blocks, dict(memory), self.ledger.asked_N)
