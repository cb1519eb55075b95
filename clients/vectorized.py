"""The vectorised engine: all clients of a block at once, by torch.func.vmap over carries and batches. No Ray in here.

Legend: C clients of a block, K local steps, B rows of a batch, the widest of the block; short batches are padded with
rows of weight 0.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils import _pytree as pytree

from clients.engine import CHUNK_ROWS, Engine, LoopEngine
from raysim.errors import ClientError
from raysim.phase import Batch, Block, Order, Reply


@dataclass(frozen=True)
class VectorizedEngine(Engine):
    """Steps all clients together. It agrees with the loop engine up to rounding, and with itself to the bit."""

    def replies(self, order: Order, block: Block, memories: Mapping[int, Any]) -> Iterator[Reply[Any]]:
        phase, clients = order.phase, block.clients_C.tolist()
        sent = self._private(order.message)
        try:
            carry = _stacked([phase.start(sent, self._private(memories.get(client))) for client in clients])
            step = torch.func.vmap(lambda carry, batch: phase.step(self.problem, sent, carry, batch))
            for batch_CB, begun_C in self._batches(block):
                carry = _where(begun_C, step(carry, batch_CB), carry)
            replies = [phase.finish(sent, pytree.tree_map(lambda leaf, c=c: leaf[c], carry)) for c in range(len(block))]
        except Exception as error:
            # A fault of one client's stops the others here too: the loop engine finds whose it is.
            list(LoopEngine(self.problem, self.shards, self.dtype, self.device).replies(order, block, memories))
            cause = f"{type(error).__name__} in the vectorised engine alone ({error}); set clients.engine to loop"
            raise ClientError(clients[0], order.round, phase.name, cause) from error
        yield from replies

    def _batches(self, block: Block) -> Iterator[tuple[Batch, Tensor | None]]:
        """Batches (C, B, ...), and which clients still have rows, None where all have."""
        first_C = self.shards.offsets_N1[block.clients_C]
        if block.rows_CKB is not None:
            for k in range(block.rows_CKB.shape[1]):
                rows_CB = block.rows_CKB[:, k]
                there_CB = rows_CB >= 0
                yield self._batch(first_C[:, None] + rows_CB, there_CB, there_CB.sum(1)), None
            return
        n_C = self.shards.rows_N[block.clients_C]
        for i in range(0, int(n_C.max()), CHUNK_ROWS):
            rows_B = np.arange(i, min(i + CHUNK_ROWS, int(n_C.max())))
            there_CB = rows_B < n_C[:, None]
            begun_C = None if there_CB[:, 0].all() else torch.from_numpy(there_CB[:, 0].copy()).to(self.device)
            yield self._batch(first_C[:, None] + rows_B, there_CB, n_C), begun_C

    def _batch(self, rows_CB: NDArray[np.int64], there_CB: NDArray[np.bool_], n_C: NDArray[np.int64]) -> Batch:
        rows_CB = np.where(there_CB, rows_CB, rows_CB.max(axis=1, keepdims=True).clip(0))
        rows_CB = np.minimum(rows_CB, len(self.shards.train) - 1)
        weights_CB = torch.from_numpy(there_CB / n_C[:, None]).to(self.dtype)
        labels_CB = self.shards.labels(rows_CB, "train")
        return Batch(self._inputs(rows_CB, "train"), labels_CB.to(self.device), weights_CB.to(self.device))


def _stacked(trees: list[Any]) -> Any:
    """One tree whose tensors have a leading axis C; plain values must be the same for all."""
    return pytree.tree_map(lambda *leaves: torch.stack(leaves) if isinstance(leaves[0], Tensor) else leaves[0], *trees)


def _where(begun_C: Tensor | None, new: Any, old: Any) -> Any:
    """`new` for the clients that had rows in this batch, `old` for the others."""
    if begun_C is None:
        return new

    def chosen(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(begun_C.view(-1, *[1] * (a.dim() - 1)), a, b)

    return pytree.tree_map(chosen, new, old)
