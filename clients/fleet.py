"""The fleet without Ray, and the number of threads that every fleet sets."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from clients.engine import Engine
from clients.pool import InProcessPool
from raysim.data import Sample, Split
from raysim.exchange import Block, Order, Partial, clients_of
from raysim.fleet import ClientMetrics, Memory

Result = TypeVar("Result")


@contextlib.contextmanager
def torch_threads(n: int) -> Iterator[None]:
    """Sets the number of torch threads within a with block: the last bit of a large sum depends on it."""
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class InProcessFleet:
    """Runs all clients in this process, without Ray: for debugging and tests. Handles are the memories themselves."""

    engine: Engine
    threads: int = 1

    def run(self, order: Order, blocks: Sequence[Block], memory: Memory) -> tuple[Partial, Memory]:
        with torch_threads(self.threads):
            partial, kept = self.engine.run_all(order, blocks, memory)
        return partial, dict(zip(clients_of(blocks), kept, strict=True)) if order.phase.remembers else {}

    def evaluate_models(
        self, order: Order, blocks: Sequence[Block], memory: Memory, splits: Sequence[Split]
    ) -> Sequence[ClientMetrics]:
        with torch_threads(self.threads):
            return [
                metrics for block in blocks for metrics in self.engine.evaluate_models(order, block, memory, splits)
            ]

    def fetch(self, memory: Memory) -> Mapping[int, Any]:
        return memory

    def keep(self, memories: Mapping[int, Any]) -> Memory:
        return memories

    def pool(self, split: Split) -> InProcessPool:
        return self.engine.pool(Sample(split))

    def in_background(self, work: Callable[[], Result]) -> Callable[[], Result]:
        with torch_threads(self.threads):
            result = work()  # no thread: rounds use the same modules, which two threads must not call
        return lambda: result
