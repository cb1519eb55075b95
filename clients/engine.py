"""Engines run the clients of a block, one after another or all at once. They do not use Ray.

Legend: C clients of a block, K local steps, B minibatch.
"""

import functools
import operator
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils import _pytree as pytree

from clients.pool import InProcessPool
from clients.screen import Screen, norm
from raysim import draws, wire
from raysim.batch import Batch
from raysim.data import Sample, Shards, Split
from raysim.errors import ClientError
from raysim.exchange import Block, Minibatches, Order, Partial, addressed_to, pairwise_sum
from raysim.fleet import ClientMetrics
from raysim.phase import Reply, WholeShard, Work
from raysim.point import Point
from raysim.problems import Prepared, Problem
from raysim.problems.evaluation import evaluated
from raysim.problems.pool import Function

# Rows in one forward pass over a whole shard or an evaluation split. It bounds memory; it is a constant because the
# rounding of a sum depends on it, and results must not depend on the machine.
CHUNK_ROWS = 500


def files_of(problem: Problem) -> tuple[Path, ...]:
    """Returns the files that a problem is unpickled from: every node of a cluster needs them."""
    return tuple(problem.files) if isinstance(problem, Prepared) else ()


@dataclass(frozen=True)
class Engine(ABC):
    """Runs the client half of a phase on clients of the shard file.

    Attributes:
        problem: the problem whose gradients the clients compute.
        shards: all clients' data, memory-mapped.
        screen: the rule for results that cannot be used.
        dtype: type of inputs, weights and gradients.
        device: PyTorch's name of the device that computes.
    """

    problem: Problem
    shards: Shards
    screen: Screen
    dtype: torch.dtype = torch.float32
    device: str = "cpu"

    @abstractmethod
    def run(self, order: Order, block: Block, memories: Mapping[int, Any]) -> tuple[Partial, list[Any]]:
        """Returns the weighted sum of the block's uploads, and each client's new memory in the order of the block.

        A rejected client's new memory is None: it keeps its old one. Raises ClientError where user code fails, or a
        result cannot be used and is not to be rejected.
        """

    def run_all(self, order: Order, blocks: Sequence[Block], memories: Mapping[int, Any]) -> tuple[Partial, list[Any]]:
        """Runs several blocks and returns the pairwise sum of their sums, and the clients' new memories in order."""
        kept: list[Any] = []

        def partials() -> Iterator[Partial]:
            for block in blocks:
                partial, more = self.run(order, block, memories)
                kept.extend(more)
                yield partial

        return pairwise_sum(partials()), kept

    def evaluate_models(
        self, order: Order, block: Block, memories: Mapping[int, Any], splits: Sequence[Split]
    ) -> list[ClientMetrics]:
        """Returns each client's metrics at the point that it would upload, on its own rows of each split."""
        metrics: list[ClientMetrics] = []
        for client, reply in zip(block.clients_C.tolist(), self._loop.replies(order, block, memories), strict=True):
            pools = {split: self.pool(Sample(split, client=client)) for split in ("train", *splits)}
            with_rows = {split: pools[split] for split in splits if len(pools[split].labels)}
            metrics.append(evaluated(self.problem, reply.upload, pools["train"], with_rows))
        return metrics

    def pool(self, part: Sample) -> InProcessPool:
        """Returns the rows of a sample, on which functions are computed here."""
        return InProcessPool(self.shards, part, self.each, self.total)

    @property
    def _loop(self) -> "LoopEngine":
        return LoopEngine(self.problem, self.shards, self.screen, self.dtype, self.device)

    def each(self, f: Function, z: Point, part: Sample, start: int, stop: int) -> NDArray[np.float64]:
        """Returns f's results on batches of the rows start..stop-1 of a sample, one after another, (rows, ...)."""
        return torch.cat(list(self._results(f, z, part, start, stop))).numpy()

    def total(self, f: Function, z: Point, part: Sample, start: int, stop: int) -> Tensor:
        """Returns the sum of f's results on batches of the rows start..stop-1 of a sample."""
        return functools.reduce(operator.add, self._results(f, z, part, start, stop))

    def _results(self, f: Function, z: Point, part: Sample, start: int, stop: int) -> Iterator[Tensor]:
        z, share, split = self._copied(z), 1 / part.size(self.shards), part.split
        for i in range(start, stop, CHUNK_ROWS):
            rows = part.rows(np.arange(i, min(i + CHUNK_ROWS, stop)), self.shards)
            with torch.no_grad():
                batch = self._rows(rows, np.full(len(rows), share), split, self._noise(0, rows))
                yield f(self.problem, z, batch).double().cpu()

    def _rows(self, rows: NDArray[np.int64], weights: NDArray[np.float64], split: Split, noise: Tensor) -> Batch:
        inputs = self.shards.inputs(rows, split, dtype=self.dtype).to(self.device)
        if inputs.dim() == 4:  # one client's images: PyTorch's convolutions are up to twice as fast in this layout
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        labels = self.shards.labels(rows, split).to(self.device)
        return Batch(inputs, labels, torch.from_numpy(weights).to(self.device, self.dtype), noise)

    def _noise(self, seed: draws.Seed, *counters: NDArray[np.int64]) -> Tensor:
        """Draws noise (..., problem.noise), the other axes being those of the counters and seeds."""
        numbers = np.arange(self.problem.noise)
        seed = seed[..., None] if isinstance(seed, np.ndarray) else seed
        noise = draws.uniform(seed, "noise", *(counter[..., None] for counter in counters), numbers)
        return torch.from_numpy(noise).to(self.device, self.dtype)

    def _chunk_rows(self, work: Work) -> int | None:
        """Returns the number of rows of a whole shard that are computed together; None takes all of them."""
        return work.batch if isinstance(work, WholeShard) and self.problem.mixes_rows else CHUNK_ROWS

    def _copied(self, tree: Any) -> Any:
        """Copies tensors, so that code which writes into them changes neither other clients' nor the store's."""

        def copy(leaf: Any) -> Any:
            return leaf.clone().to(self.device) if isinstance(leaf, Tensor) else leaf

        return pytree.tree_map(copy, tree)


@dataclass(frozen=True)
class LoopEngine(Engine):
    """Computes one client after another: the reference for all engines, whose errors name the client."""

    def run(self, order: Order, block: Block, memories: Mapping[int, Any]) -> tuple[Partial, list[Any]]:
        partials, kept = [], []
        for c, reply in enumerate(self.replies(order, block, memories)):
            client, weight = int(block.clients_C[c]), float(block.weights_C[c])
            sent_bytes = wire.size_bytes(reply.upload)
            size = norm(leaf.flatten() for leaf in pytree.tree_leaves(reply.upload))
            if self.screen.accepts(size):
                partials.append(Partial.of(reply.upload, weight, client, sent_bytes))
                kept.append(reply.memory)
            else:
                self.screen.rejected(order, client, float(size))
                partials.append(Partial.without(reply.upload, client, sent_bytes))
                kept.append(None)
        return functools.reduce(operator.add, partials), kept

    def replies(self, order: Order, block: Block, memories: Mapping[int, Any]) -> Iterator[Reply[Any]]:
        """Yields the reply of each client of the block, before it is screened. Raises ClientError."""
        phase = order.phase
        for c, client in enumerate(block.clients_C.tolist()):
            sent = self._copied(addressed_to(client, order.message))
            memory = self._copied(memories.get(client))
            try:
                phase.check(sent, memory)
                carry = phase.start(sent, memory)
                for each, minibatches in zip(phase.passes, block.minibatches, strict=True):
                    for batch in self._batches(each.work, int(block.clients_C[c]), minibatches.of(slice(c, c + 1))):
                        carry = each.step(self.problem, sent, carry, batch)
                reply = phase.finish(sent, carry)
                if phase.privacy is not None:
                    leaves, spec = pytree.tree_flatten(reply.upload)
                    private = phase.privacy.released([leaf[None] for leaf in leaves], block.keys_C[c : c + 1])
                    reply = reply._replace(upload=pytree.tree_unflatten([leaf[0] for leaf in private], spec))
            except Exception as error:
                cause = f"{type(error).__name__}: {error}"
                raise ClientError(client, order.round, phase.name, cause, traceback.format_exc()) from error
            yield reply

    def _batches(self, work: Work, client: int, minibatches: Minibatches) -> Iterator[Batch]:
        """Yields the batches of a client, the only one that the minibatches are for."""
        first, last = (int(self.shards.offsets_N1[client + i]) for i in (0, 1))
        if minibatches.rows_CKB is None:
            size = self._chunk_rows(work) or last - first
            pieces = [np.arange(i, min(i + size, last)) for i in range(first, last, size)]
        else:
            pieces = [first + rows_B[rows_B >= 0] for rows_B in minibatches.rows_CKB[0]]
        for k, rows in enumerate(pieces):
            share = 1 / (last - first if minibatches.rows_CKB is None else len(rows))
            noise = self._noise(int(minibatches.keys_C[0]), np.array(k), np.arange(len(rows)))
            yield self._rows(rows, np.full(len(rows), share), "train", noise)
