"""The rows of a split in this process, on which an evaluation computes functions."""

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from raysim.data import Sample, Shards
from raysim.point import Point
from raysim.problems.pool import Function

# Rows of one evaluation task: a multiple of the engine's chunk and a constant, so that no number depends on how many
# actors share the work.
SPAN_ROWS = 2_000


def spans(rows: int) -> list[tuple[int, int]]:
    """Returns the evaluation tasks (start, stop) that a split of so many rows is cut into."""
    return [(i, min(i + SPAN_ROWS, rows)) for i in range(0, rows, SPAN_ROWS)]


@dataclass(frozen=True)
class InProcessPool:
    """The rows of a sample, on which functions are computed in this process.

    Attributes:
        shards: the data.
        part: the sample.
        compute_each, compute_total: return a function's results on the rows start..stop-1 of a sample, one after
            another or added up, from (function, point, sample, start, stop).
    """

    shards: Shards
    part: Sample
    compute_each: Callable[[Function, Point, Sample, int, int], NDArray[np.float64]]
    compute_total: Callable[[Function, Point, Sample, int, int], Tensor]

    @property
    def labels(self) -> NDArray[np.int64]:
        return self.part.labels(self.shards)

    def spread(self, rows: int) -> "InProcessPool":
        return replace(self, part=self.part.spread(rows, len(self.labels)))

    def each(self, f: Function, z: Point) -> NDArray[np.float64]:
        return np.concatenate([self.compute_each(f, z, self.part, *span) for span in spans(len(self.labels))])

    def total(self, f: Function, z: Point) -> Tensor:
        sums = (self.compute_total(f, z, self.part, *span) for span in spans(len(self.labels)))
        return functools.reduce(operator.add, sums)
