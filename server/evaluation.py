"""Evaluation: outputs of every row, pooled over all clients, before any metric is taken.

A mean of the clients' own metrics would be another number, and for AUC is not even defined: most shards hold one class.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from raysim.data import Split
from raysim.errors import ConfigError
from raysim.fleet import Fleet
from raysim.point import Point
from raysim.problems import Curve, Problem
from raysim.registry import nearest

Metrics = Mapping[Split, Mapping[str, float | None]]
Curves = Mapping[Split, Mapping[str, Curve]]


@dataclass(frozen=True)
class Target:
    """A value of a metric that a run is to come to."""

    metric: str
    split: Split
    value: float
    higher_is_better: bool

    def reached(self, value: float | None) -> bool:
        """Whether a value of the metric is there; one that is undefined is not."""
        if value is None:
            return False
        return value >= self.value if self.higher_is_better else value <= self.value

    def reached_in(self, metrics: Metrics) -> bool:
        """Whether an evaluation found it."""
        return self.reached(metrics.get(self.split, {}).get(self.metric))


def evaluate(
    problem: Problem, fleet: Fleet, splits: Sequence[Split], z: Point, beside: Mapping[str, Point]
) -> Callable[[], Metrics]:
    """Starts to evaluate z; what it returns waits for the metrics by split and name, on all rows of each split.

    Those of the points `beside` are among them, under their points' names.

    It raises ConfigError where the problem's headline is none of its metrics.
    """

    def metrics() -> Metrics:
        found: dict[Split, dict[str, float | None]] = {split: {} for split in splits}
        for prefix, point in {"": z, **{f"{name}_": point for name, point in beside.items()}}.items():
            seen = problem.settled(point, fleet.pool("train"))
            for split, values in found.items():
                measured = problem.evaluate(point, seen(fleet.pool(split)))
                values |= {f"{prefix}{name}": value for name, value in measured.items()}
        for values in found.values():
            if problem.headline not in values:
                headline = f"{problem.headline!r}{nearest(problem.headline, values)}"
                raise ConfigError("problem.name", f"{type(problem).__name__} has the headline {headline}")
        return found

    return fleet.beside(metrics)


def curves_of(problem: Problem, fleet: Fleet, splits: Sequence[Split], z: Point) -> Curves:
    """What is drawn of z, by split and name."""

    def curves() -> Curves:
        seen = problem.settled(z, fleet.pool("train"))
        return {split: problem.curves(z, seen(fleet.pool(split))) for split in splits}

    return fleet.beside(curves)()
