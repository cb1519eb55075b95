"""All rows of a split, as a problem's evaluation may ask for what functions make of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from raysim.models.normalisation import normalised
from raysim.phase import Batch
from raysim.point import Point

if TYPE_CHECKING:
    from raysim.problems.problem import Problem

Function = Callable[[Any, Point, Batch], Tensor]


class Pool(Protocol):
    """All rows of a split, wherever they are computed on. It can be asked several times.

    Functions are given the problem, the point and a batch of rows, whose weights are 1/N over the N rows of the split
    and whose noise is the same each time. They are pickled where rows are computed on elsewhere.
    """

    @property
    def labels(self) -> NDArray[np.int64]:
        """(N,), in the split's order."""

    def spread(self, rows: int) -> "Pool":
        """At most so many rows of the split and at least half of that, evenly spread; all where there are no more."""

    def each(self, f: Function, z: Point) -> NDArray[np.float64]:
        """f's results (B, ...) of all batches, one after another: (N, ...)."""

    def total(self, f: Function, z: Point) -> Tensor:
        """f's results of all batches, added up."""


@dataclass(frozen=True)
class Normalised:
    """A function of the problem, a point and a batch, with BatchNorm's statistics those of a population.

    Attributes:
        f: the function.
        moments: as raysim.models.normalisation has them, of the problem's networks.
    """

    f: Function
    moments: Tensor

    def __call__(self, problem: "Problem", z: Point, batch: Batch) -> Tensor:
        with normalised([net.module for net in problem.networks], self.moments):
            return self.f(problem, z, batch)


@dataclass(frozen=True)
class NormalisedPool:
    """A pool whose functions are run so."""

    pool: Pool
    moments: Tensor

    @property
    def labels(self) -> NDArray[np.int64]:
        return self.pool.labels

    def spread(self, rows: int) -> "NormalisedPool":
        return NormalisedPool(self.pool.spread(rows), self.moments)

    def each(self, f: Function, z: Point) -> NDArray[np.float64]:
        return self.pool.each(Normalised(f, self.moments), z)

    def total(self, f: Function, z: Point) -> Tensor:
        return self.pool.total(Normalised(f, self.moments), z)
