"""The watch over a run: it notices divergence, standstill, unusable results and metrics that look wrong."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from raysim.algorithm import Algorithm
from raysim.errors import Diverged
from raysim.phase import Phase
from raysim.point import Point
from raysim.problems import Evaluated, Problem
from server.dispatch import Outcome

# Rounds in a row without movement after which there is a notice; some methods spend one on their estimators alone.
STILL_ROUNDS = 3


@dataclass
class Watch:
    """Collects notices for the next report, one for each kind of trouble."""

    _notices: list[str] = field(default_factory=list)
    _still: int = 0  # rounds in a row that have left the point as it was
    _rejected: bool = False  # True once results were rejected
    _trouble: str | None = None  # the trouble that the last evaluation found

    def take(self) -> tuple[str, ...]:
        """Returns the notices since the last call."""
        notices, self._notices = tuple(self._notices), []
        return notices

    def look(self, t: int, before: Point, now: Point, algorithm: Algorithm[Any]) -> None:
        """Compares the points before and after round t. Raises Diverged where the new one is not finite."""
        if not math.isfinite(now.norm()):
            raise Diverged(
                f"round {t} has led to a point that is not finite, although the clients' results are: the server's own "
                f"step is too large; look at the steps of {type(algorithm).__name__}"
            )
        unmoved = torch.equal(now.x, before.x) and torch.equal(now.y, before.y)
        # Where clients have models of their own, the server's point need not move.
        self._still = self._still + 1 if unmoved and not algorithm.personal else 0
        if self._still == STILL_ROUNDS:
            self._notices.append(
                f"the point is where it was {STILL_ROUNDS} rounds ago, to the bit: gradients have vanished, or steps "
                "are too small for the precision; look at the steps and at whether the model has saturated"
            )

    def rejected(self, phase: Phase[Any, Any, Any, Any], outcome: Outcome) -> None:
        """Adds a notice for the first results that were left out because they could not be used."""
        if not self._rejected:
            self._rejected = True
            n, clients = len(outcome.rejected), ", ".join(map(str, outcome.rejected[:10].tolist()))
            self._notices.append(
                f"results of {n} of {n + len(outcome.accepted)} clients in phase {phase.name!r} could not be used and "
                f"were left out ({clients}{', ...' if n > 10 else ''}); those of later rounds are told of in "
                "rounds.parquet and participation.parquet alone"
            )

    def troubles(self, problem: Problem, metrics: Iterable[Mapping[str, float | None]]) -> tuple[str, ...]:
        """Returns the trouble with an evaluation's metrics, given split by split: one line, or nothing if not new."""
        if not isinstance(problem, Evaluated):
            return ()
        trouble = next((text for text in map(problem.trouble, metrics) if text), None)
        new = () if trouble is None or trouble == self._trouble else (trouble,)
        self._trouble = trouble
        return new
