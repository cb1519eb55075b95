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
from raysim.fleet import Fleet, Memory
from raysim.phase import Block, Order, clients_of
from raysim.point import Point
from raysim.problems import Curve, Problem
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
class Own:
    """Clients' own models that are to be evaluated.

    Attributes:
        order: the phase that makes them.
        blocks: of all clients with rows.
        memory: theirs.
        asked_N: which of all clients have ever taken part.
    """

    order: Order
    blocks: Sequence[Block]
    memory: Memory
    asked_N: NDArray[np.bool_]

    @property
    def clients(self) -> list[int]:
        """Their numbers, in order."""
        return clients_of(self.blocks)


@dataclass(frozen=True)
class Measured:
    """What an evaluation gave.

    Attributes:
        metrics: by split and name.
        clients: a row per client, split and metric, as the ledger has them; none where it was not by client.
    """

    metrics: Metrics
    clients: Sequence[Mapping[str, Any]] = ()


def evaluate(
    problem: Problem, fleet: Fleet, splits: Sequence[Split], points: Mapping[str, Point], own: Own | None
) -> Callable[[], Measured]:
    """Starts to evaluate points on all rows of each split, and clients' own models on theirs.

    Args:
        problem, fleet, splits: whose metrics, who computes them, on what.
        points: by a prefix of their metrics' names.
        own: the names of its metrics have no prefix; None where only points are evaluated.

    Returns:
        What waits for the result. It raises ConfigError where the problem's headline is none of its metrics.
    """

    def measured() -> Measured:
        found: Found = {split: {} for split in splits}
        for prefix, point in points.items():
            seen = problem.settled(point, fleet.pool("train"))
            for split, values in found.items():
                given = problem.evaluate(point, seen(fleet.pool(split)))
                values |= {f"{prefix}{name}": value for name, value in given.items()}
        rows: list[Mapping[str, Any]] = []
        if own is not None:
            for_each = fleet.own(own.order, own.blocks, own.memory, splits)
            for split, values in found.items():
                values |= _spread(problem, [of.get(split, {}) for of in for_each])
                values["never_took_part"] = float(np.count_nonzero(~own.asked_N[own.clients]))
            rows = [
                {"split": split, "client": client, "took_part": own.asked_N[client], "metric": name, "value": value}
                for client, of in zip(own.clients, for_each, strict=True)
                for split, values in of.items()
                for name, value in values.items()
            ]
        for values in found.values():
            if problem.headline not in values:
                headline = f"{problem.headline!r}{nearest(problem.headline, values)}"
                raise ConfigError("problem.name", f"{type(problem).__name__} has the headline {headline}")
        return Measured(found, rows)

    return fleet.beside(measured)


def _spread(problem: Problem, for_each: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """Means over the clients for which a metric is defined; of the headline the worst and standard deviation too."""
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
    """What is drawn of z, by split and name."""

    def curves() -> Curves:
        seen = problem.settled(z, fleet.pool("train"))
        return {split: problem.curves(z, seen(fleet.pool(split))) for split in splits}

    return fleet.beside(curves)()
