"""Rows of a split in this process, as evaluations ask for what functions make of them."""

import functools
import operator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from raysim.data import Sample
from raysim.point import Point
from raysim.problems.pool import Function

if TYPE_CHECKING:
    from clients.engine import Engine

# Rows of one evaluation task: a multiple of the engine's chunk and a constant, so that no number depends on how many
# actors share the work.
SPAN_ROWS = 2_000


def spans(rows: int) -> list[tuple[int, int]]:
    """An evaluation split cut into tasks (start, stop)."""
    return [(i, min(i + SPAN_ROWS, rows)) for i in range(0, rows, SPAN_ROWS)]


@dataclass(frozen=True)
class InProcessPool:
    """A sample's rows, computed here."""

    engine: "Engine"
    part: Sample

    @property
    def labels(self) -> NDArray[np.int64]:
        return self.part.labels(self.engine.shards)

    def spread(self, rows: int) -> "InProcessPool":
        return replace(self, part=self.part.spread(rows, len(self.labels)))

    def each(self, f: Function, z: Point) -> NDArray[np.float64]:
        return np.concatenate([self.engine.each(f, z, self.part, *span) for span in spans(len(self.labels))])

    def total(self, f: Function, z: Point) -> Tensor:
        return functools.reduce(
            operator.add, (self.engine.total(f, z, self.part, *span) for span in spans(len(self.labels)))
        )
