"""Engines: the clients of a block, one after another or all at once. No Ray in here.

Legend: C clients of a block, K local steps, B minibatch.
"""

import functools
import operator
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils import _pytree as pytree

from raysim import wire
from raysim.data import Shards, Split
from raysim.errors import ClientError
from raysim.phase import Batch, Block, Order, Partial, Reply, pairwise_sum
from raysim.point import Point
from raysim.problems import Problem

# Rows in one forward pass over a whole shard or an evaluation split. It bounds memory; it is a constant because the
# rounding of a sum depends on it, and results must not depend on the machine.
CHUNK_ROWS = 500


@dataclass(frozen=True)
class Engine(ABC):
    """Runs the client half of a phase on clients of the shard file.

    Attributes:
        problem: whose gradients the clients compute.
        shards: all clients' data, memory-mapped.
        dtype: of inputs, weights and gradients.
        device: where they are computed.
    """

    problem: Problem
    shards: Shards
    dtype: torch.dtype = torch.float32
    device: str = "cpu"

    @abstractmethod
    def run(self, order: Order, block: Block, memories: Mapping[int, Any]) -> tuple[Partial, list[Any]]:
        """The block's weighted sum of uploads, and each client's new memory in the order of the block.

        Raises ClientError where user code fails or a result is not finite.
        """

    def run_all(self, order: Order, blocks: Sequence[Block], memories: Mapping[int, Any]) -> tuple[Partial, list[Any]]:
        """Several blocks, as `run`; their sums are added up pairwise."""
        kept: list[Any] = []

        def partials() -> Iterator[Partial]:
            for block in blocks:
                partial, more = self.run(order, block, memories)
                kept.extend(more)
                yield partial

        return pairwise_sum(partials()), kept

    def outputs(self, z: Point, split: Split, start: int, stop: int) -> NDArray[np.float64]:
        """The problem's evaluation outputs on rows start..stop-1 of a split, shape (stop - start, ...)."""
        z = self._private(z)
        with torch.no_grad():
            pieces = [
                self.problem.outputs(z, self._inputs(np.arange(i, min(i + CHUNK_ROWS, stop)), split))
                for i in range(start, stop, CHUNK_ROWS)
            ]
        return torch.cat(pieces).double().cpu().numpy()

    def _inputs(self, rows: NDArray[np.int64], split: Split) -> Tensor:
        return self.shards.inputs(rows, split, dtype=self.dtype).to(self.device)

    def _private(self, tree: Any) -> Any:
        """A copy, so that code which writes into what it was sent reaches neither its neighbours nor the store."""

        def own(leaf: Any) -> Any:
            return leaf.clone().to(self.device) if isinstance(leaf, Tensor) else leaf

        return pytree.tree_map(own, tree)


@dataclass(frozen=True)
class LoopEngine(Engine):
    """One client after another: the reference, and the one whose faults name their client."""

    def run(self, order: Order, block: Block, memories: Mapping[int, Any]) -> tuple[Partial, list[Any]]:
        partials, kept = [], []
        for c, reply in enumerate(self._replies(order, block, memories)):
            self._check(order, int(block.clients_C[c]), reply.upload)
            weight = float(block.weights_C[c])
            scaled = pytree.tree_map(lambda leaf, w=weight: w * leaf.double().cpu(), reply.upload)
            partials.append(Partial(scaled, weight, wire.size_bytes(reply.upload)))
            kept.append(reply.memory)
        return functools.reduce(operator.add, partials), kept

    def _replies(self, order: Order, block: Block, memories: Mapping[int, Any]) -> Iterator[Reply[Any]]:
        phase = order.phase
        for c, client in enumerate(block.clients_C.tolist()):
            sent, memory = self._private(order.message), self._private(memories.get(client))
            try:
                carry = phase.start(sent, memory)
                for batch in self._batches(client, None if block.rows_CKB is None else block.rows_CKB[c]):
                    carry = phase.step(self.problem, sent, carry, batch)
                reply = phase.finish(sent, carry)
            except Exception as error:
                cause = f"{type(error).__name__}: {error}"
                raise ClientError(client, order.round, phase.name, cause, traceback.format_exc()) from error
            yield reply

    def _check(self, order: Order, client: int, upload: Any) -> None:
        for leaf in pytree.tree_leaves(upload):
            if not bool(torch.isfinite(leaf).all()):
                raise ClientError(
                    client, order.round, order.phase.name,
                    "the upload is not finite; look at this client's rows, or take a smaller step size",
                )  # fmt: skip

    def _batches(self, client: int, rows_KB: NDArray[np.int64] | None) -> Iterator[Batch]:
        first, last = int(self.shards.offsets_N1[client]), int(self.shards.offsets_N1[client + 1])
        if rows_KB is None:
            for i in range(first, last, CHUNK_ROWS):
                yield self._batch(np.arange(i, min(i + CHUNK_ROWS, last)), 1 / (last - first))
        else:
            for rows_B in rows_KB:
                rows = rows_B[rows_B >= 0]
                yield self._batch(first + rows, 1 / len(rows))

    def _batch(self, rows: NDArray[np.int64], weight: float) -> Batch:
        inputs = self._inputs(rows, "train")
        labels = self.shards.labels(rows, "train").to(self.device)
        return Batch(inputs, labels, torch.full((len(rows),), weight, dtype=self.dtype, device=self.device))
