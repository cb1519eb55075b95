"""The fleet without Ray, and what every fleet shares."""

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clients.engine import Engine
from raysim.data import Sample, Split
from raysim.fleet import Memory
from raysim.phase import Block, Order, Partial
from raysim.point import Point
from raysim.problems.pool import Function

# Rows of one evaluation task: a multiple of the engine's chunk and a constant, so that no number depends on how many
# actors share the work.
SPAN_ROWS = 2_000

Made = TypeVar("Made")


def spans(rows: int) -> list[tuple[int, int]]:
    """An evaluation split cut into tasks (start, stop)."""
    return [(i, min(i + SPAN_ROWS, rows)) for i in range(0, rows, SPAN_ROWS)]


def clients_of(blocks: Sequence[Block]) -> list[int]:
    """The blocks' clients, in order."""
    return [client for block in blocks for client in block.clients_C.tolist()]


@contextlib.contextmanager
def torch_threads(n: int) -> Iterator[None]:
    """Run with n torch threads: the last bit of a large sum depends on their number."""
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class InProcessPool:
    """Rows of a split in this process."""

    engine: Engine
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


@dataclass(frozen=True)
class InProcessFleet:
    """All clients in this process, without Ray: for debugging and tests. Memory handles are the memories themselves."""

    engine: Engine
    threads: int = 1

    def run(self, order: Order, blocks: Sequence[Block], memory: Memory) -> tuple[Partial, Memory]:
        with torch_threads(self.threads):
            partial, kept = self.engine.run_all(order, blocks, memory)
        return partial, dict(zip(clients_of(blocks), kept, strict=True)) if order.phase.remembers else {}

    def fetch(self, memory: Memory) -> Mapping[int, Any]:
        return memory

    def keep(self, memories: Mapping[int, Any]) -> Memory:
        return memories

    def pool(self, split: Split) -> InProcessPool:
        return InProcessPool(self.engine, Sample(split))

    def beside(self, work: Callable[[], Made]) -> Callable[[], Made]:
        with torch_threads(self.threads):
            made = work()  # at once: its modules are the rounds', and not safe to call from two threads
        return lambda: made
