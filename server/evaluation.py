"""Evaluation: metrics of all rows, pooled over all clients, or of each client's own rows.

A mean of the clients' own metrics is not the metric of the pooled rows, and for AUC it is not even defined where shards
hold one class. It is taken where clients have tests of their own, on which each client's own model is evaluated.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raysim.data import Split
from raysim.errors import ConfigError
from raysim.exchange import Block, Order, clients_of
from raysim.fleet import Fleet, Memory
from raysim.point import Point
from raysim.problems import Curve, Evaluated, HasFigures, Problem, require
from raysim.problems.evaluation import evaluated, settled
from raysim.registry import nearest

Metrics = Mapping[Split, Mapping[str, float | None]]
MutableMetrics = dict[Split, dict[str, float | None]]
Curves = Mapping[Split, Mapping[str, Curve]]


@dataclass(frozen=True)
class Target:
    """A value of a metric at which a run may stop."""

    metric: str
    split: Split
    value: float
    higher_is_better: bool

    def reached(self, value: float | None) -> bool:
        """Returns True if a value of the metric is at the target or beyond; an undefined value, None, is not."""
        if value is None:
            return False
        return value >= self.value if self.higher_is_better else value <= self.value

    def reached_in(self, metrics: Metrics) -> bool:
        """Returns True if the metrics of an evaluation are at the target or beyond."""
        return self.reached(metrics.get(self.split, {}).get(self.metric))


@dataclass(frozen=True)
class PersonalModels:
    """The clients' own models that are to be evaluated.

    Attributes:
        order: the phase whose uploads are the models, and its message.
        blocks: the work of all clients with rows.
        memory: handles of the clients' memory.
        asked_N: (N,) True for clients that have ever taken part.
    """

    order: Order
    blocks: Sequence[Block]
    memory: Memory
    asked_N: NDArray[np.bool_]

    @property
    def clients(self) -> list[int]:
        """The clients' numbers, in order."""
        return clients_of(self.blocks)


@dataclass(frozen=True)
class Measured:
    """The result of an evaluation.

    Attributes:
        metrics: the metrics, by split and name.
        clients: a row per client, split and metric, in the ledger's columns; none without clients' own models.
    """

    metrics: Metrics
    clients: Sequence[Mapping[str, Any]] = ()


def evaluate(
    problem: Problem, fleet: Fleet, splits: Sequence[Split], points: Mapping[str, Point], models: PersonalModels | None
) -> Callable[[], Measured]:
    """Begins to evaluate points on all rows of each split, and clients' own models on their own rows.

    Args:
        problem: the problem whose metrics are taken.
        fleet: computes them.
        splits: the splits whose rows are evaluated on.
        points: the points, by a prefix of their metrics' names.
        models: the clients' own models, whose metrics have no prefix; None where only points are evaluated.

    Returns:
        A function that waits for the result. It raises ConfigError where the problem cannot be evaluated, or its
        headline is none of its metrics.
    """

    def measured() -> Measured:
        metrics: MutableMetrics = {split: {} for split in splits}
        pools = {split: fleet.pool(split) for split in splits}
        for prefix, point in points.items():
            of_point = evaluated(problem, point, fleet.pool("train"), pools)
            for split, values in metrics.items():
                values |= {f"{prefix}{name}": value for name, value in of_point[split].items()}
        rows: list[Mapping[str, Any]] = []
        evaluable = require(problem, Evaluated)
        if models is not None:
            asked_N = models.asked_N
            by_client = fleet.evaluate_models(models.order, models.blocks, models.memory, splits)
            for split, values in metrics.items():
                values |= _over_clients(evaluable, [of.get(split, {}) for of in by_client])
                values["never_took_part"] = float(np.count_nonzero(~asked_N[models.clients]))
            rows = [
                {"split": split, "client": client, "took_part": asked_N[client], "metric": name, "value": value}
                for client, of in zip(models.clients, by_client, strict=True)
                for split, values in of.items()
                for name, value in values.items()
            ]
        for values in metrics.values():
            if evaluable.headline not in values:
                headline = f"{evaluable.headline!r}{nearest(evaluable.headline, values)}"
                raise ConfigError("problem.name", f"{type(problem).__name__} has the headline {headline}")
        return Measured(metrics, rows)

    return fleet.in_background(measured)


def _over_clients(problem: Evaluated, by_client: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """Returns means over the clients for which a metric is defined; for the headline also the worst and deviation."""
    summary: dict[str, float | None] = {}
    for name in dict.fromkeys(name for values in by_client for name in values):
        defined = np.array([values[name] for values in by_client if values.get(name) is not None], np.float64)
        summary[name] = float(defined.mean()) if len(defined) else None
        if name == problem.headline:
            worst = np.min if problem.higher_is_better else np.max
            summary[f"{name}_worst"] = float(worst(defined)) if len(defined) else None
            summary[f"{name}_std"] = float(defined.std()) if len(defined) else None
    return summary


def curves_of(problem: Problem, fleet: Fleet, splits: Sequence[Split], z: Point) -> Curves:
    """Returns the curves of z, by split and name; none where the problem has nothing to draw."""
    if not isinstance(problem, HasFigures):
        return {}

    def curves() -> Curves:
        pools = settled(problem, z, fleet.pool("train"), {split: fleet.pool(split) for split in splits})
        return {split: problem.curves(z, pool) for split, pool in pools.items()}

    return fleet.in_background(curves)()
