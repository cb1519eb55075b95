"""Early stopping of trials by asynchronous successive halving."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from ray.tune.schedulers import FIFOScheduler

from cluster.plots import Curve
from cluster.study import TRIALS, Early, Study
from cluster.trial import defined
from raysim.errors import DataError


@dataclass(frozen=True)
class Judged:
    """A trial that is to be played, and how it is judged.

    Attributes:
        trial: the trial's name.
        headline, higher_is_better: the metric that judges it, and its direction.
    """

    trial: str
    headline: str
    higher_is_better: bool


class Halving(FIFOScheduler):
    """ASHA among trials that differ in the keys of `early.over` only (Li et al. 2020, arXiv 1810.05934, algorithm 2).

    A trial that comes to a rung, `grace` times a power of `reduction` rounds, goes on if it is among the best
    1/`reduction` of those that have come there. Where a study goes on, the scheduler is told of the evaluations that
    there are, in their order.
    """

    def __init__(self, early: Early, study: Study, where: Path, played: Sequence[Judged]) -> None:
        super().__init__()
        self._early, self._names = early, [one.trial for one in played]
        self._groups = {trial.name: trial.without(early.over) for trial in study.trials}
        judged = {self._groups[one.trial]: one for one in played}
        self._sign = {group: 1 if one.higher_is_better else -1 for group, one in judged.items()}
        self._rungs: dict[tuple[str, int], dict[str, float]] = {}
        for trial in study.trials:
            if like := judged.get(self._groups[trial.name]):
                with contextlib.suppress(DataError):  # it has no evaluation yet
                    curve = Curve.read(where / TRIALS / trial.name, like.headline, trial.config.evaluate.splits[-1])
                    for rounds, value in zip(curve.axes["round"].tolist(), curve.value.tolist(), strict=True):
                        self._goes_on(trial.name, rounds, defined(value, like.higher_is_better))

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Tells Tune whether a trial goes on after an evaluation."""
        if "rounds" not in result:  # the last report gives the trial's fate, no metrics
            return str(self.CONTINUE)
        goes_on = self._goes_on(self._names[trial.config["place"]], result["rounds"], result["value"])
        return str(self.CONTINUE if goes_on else self.STOP)

    def _goes_on(self, trial: str, rounds: float, value: float) -> bool:
        group, rung = self._groups[trial], self._early.grace
        if rounds < rung:
            return True
        while rung * self._early.reduction <= rounds:
            rung *= self._early.reduction
        values = self._rungs.setdefault((group, rung), {})
        if trial in values:
            return True
        values_so_far = [*values.values()]
        values[trial] = self._sign[group] * value
        cutoff = np.percentile(values_so_far, 100 * (1 - 1 / self._early.reduction)) if values_so_far else -np.inf
        return bool(values[trial] >= cutoff)
