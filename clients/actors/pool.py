"""The rows of a split, on which actors compute functions for an evaluation."""

import functools
import itertools
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray
from torch import Tensor

from clients.actors.packing import packed, unpacked
from clients.actors.tasks import Supervisor, Task
from clients.pool import spans
from raysim.data import Sample, Shards
from raysim.point import Point
from raysim.problems.pool import Function


@dataclass(frozen=True)
class PoolOnActors:
    """The rows of a sample, on which the actors compute functions in turn.

    Attributes:
        actors: the actors that compute.
        supervisor: waits for their tasks.
        shards: the data.
        part: the sample.
    """

    actors: Sequence[Any]
    supervisor: Supervisor
    shards: Shards
    part: Sample

    @functools.cached_property
    def labels(self) -> NDArray[np.int64]:
        return self.part.labels(self.shards)

    def spread(self, rows: int) -> "PoolOnActors":
        return replace(self, part=self.part.spread(rows, len(self.labels)))

    def each(self, f: Function, z: Point) -> NDArray[np.float64]:
        return np.concatenate(self._results("each", f, z))

    def total(self, f: Function, z: Point) -> Tensor:
        total: Tensor = functools.reduce(operator.add, map(unpacked, self._results("total", f, z)))
        return total

    def _results(self, method: str, f: Function, z: Point) -> list[Any]:
        shared, actors = ray.put(packed(z)), itertools.cycle(self.actors)

        def give(span: tuple[int, int], actor: Any) -> list[Any]:
            return [getattr(actor, method).remote(f, shared, self.part, *span)]

        tasks = [Task(functools.partial(give, span), next(actors)) for span in spans(len(self.labels))]
        return [self.supervisor.result(task) for task in tasks]
