"""The fleet without Ray, and what every fleet shares."""

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

Made = TypeVar("Made")


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

    def evaluate_models(
        self, order: Order, blocks: Sequence[Block], memory: Memory, splits: Sequence[Split]
    ) -> Sequence[ClientMetrics]:
        with torch_threads(self.threads):
            return [found for block in blocks for found in self.engine.evaluate_models(order, block, memory, splits)]

    def fetch(self, memory: Memory) -> Mapping[int, Any]:
        return memory

    def keep(self, memories: Mapping[int, Any]) -> Memory:
        return memories

    def pool(self, split: Split) -> InProcessPool:
        return self.engine.pool(Sample(split))

    def in_background(self, work: Callable[[], Made]) -> Callable[[], Made]:
        with torch_threads(self.threads):
            made = work()  # at once: its modules are the rounds', and not safe to call from two threads
        return lambda: made
