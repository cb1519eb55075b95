"""Pools: the rows of a split, pooled over all clients, on which an evaluation computes functions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from raysim.batch import Batch
from raysim.models.normalisation import normalised
from raysim.point import Point

# Maps (problem, point, batch) to a tensor.
Function = Callable[[Any, Point, Batch], Tensor]


class Pool(Protocol):
    """All rows of a split, in this process or on actors. A pool can be asked several times.

    Functions are given the problem, the point and a batch of rows, whose weights are 1/N over the N rows of the split
    and whose noise is the same each time. They are pickled where actors compute them.
    """

    @property
    def labels(self) -> NDArray[np.int64]:
        """The labels (N,), in the split's order."""

    def spread(self, rows: int) -> "Pool":
        """Returns at most `rows` rows of the split, evenly spread, and at least half of that if there are as many."""

    def each(self, f: Function, z: Point) -> NDArray[np.float64]:
        """Returns f's results (B, ...) on all batches, one after another: (N, ...)."""

    def total(self, f: Function, z: Point) -> Tensor:
        """Returns the sum of f's results on all batches."""


@dataclass(frozen=True)
class Normalised:
    """A function that is called while BatchNorm layers take the statistics of a population.

    Attributes:
        f: the function.
        modules: returns the modules that have the layers, from the problem. It is pickled.
        moments: (2, M) statistics, see raysim.models.normalisation.
    """

    f: Function
    modules: Callable[[Any], Sequence[nn.Module]]
    moments: Tensor

    def __call__(self, problem: Any, z: Point, batch: Batch) -> Tensor:
        with normalised(self.modules(problem), self.moments):
            return self.f(problem, z, batch)


@dataclass(frozen=True)
class NormalisedPool:
    """A pool whose functions are called while BatchNorm layers take the statistics of a population.

    Attributes:
        pool: the rows.
        modules, moments: see Normalised.
    """

    pool: Pool
    modules: Callable[[Any], Sequence[nn.Module]]
    moments: Tensor

    @property
    def labels(self) -> NDArray[np.int64]:
        return self.pool.labels

    def spread(self, rows: int) -> "NormalisedPool":
        return NormalisedPool(self.pool.spread(rows), self.modules, self.moments)

    def each(self, f: Function, z: Point) -> NDArray[np.float64]:
        return self.pool.each(Normalised(f, self.modules, self.moments), z)

    def total(self, f: Function, z: Point) -> Tensor:
        return self.pool.total(Normalised(f, self.modules, self.moments), z)
