"""The fleet without Ray, and what every fleet shares."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from clients.engine import Engine
from raysim.data import Split
from raysim.fleet import Memory
from raysim.phase import Block, Order, Partial
from raysim.point import Point

# Rows of one evaluation task: a multiple of the engine's chunk and a constant, so that no number depends on how many
# actors share the work.
SPAN_ROWS = 2_000


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
class InProcessFleet:
    """All clients in this process, without Ray: for debugging and tests. Memory handles are the memories themselves."""

    engine: Engine
    threads: int = 1

    def run(self, order: Order, blocks: Sequence[Block], memory: Memory) -> tuple[Partial, Memory]:
        with torch_threads(self.threads):
            partial, kept = self.engine.run_all(order, blocks, memory)
        return partial, dict(zip(clients_of(blocks), kept, strict=True)) if order.phase.remembers else {}

    def outputs(self, z: Point, split: Split) -> Callable[[], NDArray[np.float64]]:
        rows = len(getattr(self.engine.shards, split).labels)
        with torch_threads(self.threads):
            made = np.concatenate([self.engine.outputs(z, split, *span) for span in spans(rows)])
        return lambda: made
