"""Evaluation: outputs of every row, pooled over all clients, before any metric is taken; or client by client.

A mean of the clients' own metrics is another number, and for AUC is not even defined where shards hold one class. It is
taken where clients have tests of their own, on which each client's own model is evaluated.
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
Found = dict[Split, dict[str, float | None]]
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


@dataclass(frozen=True)
class PersonalModels:
    """Clients' own models that are to be evaluated.

    Attributes:
        order: the phase that makes them.
        blocks: the work of all clients with rows.
        memory: handles of their memory.
        asked_N: for each client, whether it has ever taken part.
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
        metrics: by split and name.
        clients: a row per client, split and metric, as the ledger has them; none where it was not by client.
    """

    metrics: Metrics
    clients: Sequence[Mapping[str, Any]] = ()


def evaluate(
    problem: Problem, fleet: Fleet, splits: Sequence[Split], points: Mapping[str, Point], models: PersonalModels | None
) -> Callable[[], Measured]:
    """Begins to evaluate points on all rows of each split, and clients' own models on their own rows.

    Args:
        problem, fleet, splits: whose metrics, who computes them, and on which rows.
        points: by a prefix of their metrics' names.
        models: the names of their metrics have no prefix; None where only points are evaluated.

    Returns:
        A call that waits for the result. It raises ConfigError where the problem cannot be evaluated, or its headline
        is none of its metrics.
    """

    def measured() -> Measured:
        found: Found = {split: {} for split in splits}
        pools = {split: fleet.pool(split) for split in splits}
        for prefix, point in points.items():
            given = evaluated(problem, point, fleet.pool("train"), pools)
            for split, values in found.items():
                values |= {f"{prefix}{name}": value for name, value in given[split].items()}
        rows: list[Mapping[str, Any]] = []
        judged = require(problem, Evaluated)
        if models is not None:
            asked_N = models.asked_N
            for_each = fleet.evaluate_models(models.order, models.blocks, models.memory, splits)
            for split, values in found.items():
                values |= _spread(judged, [of.get(split, {}) for of in for_each])
                values["never_took_part"] = float(np.count_nonzero(~asked_N[models.clients]))
            rows = [
                {"split": split, "client": client, "took_part": asked_N[client], "metric": name, "value": value}
                for client, of in zip(models.clients, for_each, strict=True)
                for split, values in of.items()
                for name, value in values.items()
            ]
        for values in found.values():
            if judged.headline not in values:
                headline = f"{judged.headline!r}{nearest(judged.headline, values)}"
                raise ConfigError("problem.name", f"{type(problem).__name__} has the headline {headline}")
        return Measured(found, rows)

    return fleet.in_background(measured)


def _spread(problem: Evaluated, for_each: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """Takes means over the clients for which a metric is defined; for the headline also the worst and the deviation."""
    found: dict[str, float | None] = {}
    for name in dict.fromkeys(name for values in for_each for name in values):
        there = np.array([values[name] for values in for_each if values.get(name) is not None], np.float64)
        found[name] = float(there.mean()) if len(there) else None
        if name == problem.headline:
            worst = np.min if problem.higher_is_better else np.max
            found[f"{name}_worst"] = float(worst(there)) if len(there) else None
            found[f"{name}_std"] = float(there.std()) if len(there) else None
    return found


def curves_of(problem: Problem, fleet: Fleet, splits: Sequence[Split], z: Point) -> Curves:
    """Returns the curves of z, by split and name; none where the problem has nothing to draw."""
    if not isinstance(problem, HasFigures):
        return {}

    def curves() -> Curves:
        pools = settled(problem, z, fleet.pool("train"), {split: fleet.pool(split) for split in splits})
        return {split: problem.curves(z, pool) for split, pool in pools.items()}

    return fleet.in_background(curves)()
