"""The vectorised engine computes all clients of a block at once. It does not use Ray.

Algorithms run unchanged on PerClient tensors; the speed comes from these and from the gradients.

Legend: C clients, K local steps, B rows of a batch, the widest of the block; short batches are padded with rows of
weight 0.
"""

import functools
import math
import operator
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils import _pytree as pytree

from clients.chain import Chain
from clients.engine import Engine
from clients.gradients import ProblemPerClient, chain_of
from clients.per_client import Buffers, PerClient
from clients.screen import norm
from raysim import wire
from raysim.batch import Batch
from raysim.errors import ClientError
from raysim.exchange import Block, Minibatches, Order, Partial, addressed_to, is_gathered
from raysim.phase import Addressed, Gathered, Phase, Work
from raysim.problems import HasNetworks, NetworkProblem, Problem

# Bytes of weights and activations, at most, of the clients that are computed together: more do not stay in the
# processor's cache from step to step. It is a constant, since sums are rounded per group of clients.
GROUP_BYTES = 20_000_000


def pays(problem: Problem) -> bool:
    """Returns True if this engine is faster than the loop: for a chain of layers, or a problem without a network."""
    return not isinstance(problem, NetworkProblem) or chain_of(problem) is not None


@dataclass(frozen=True)
class VectorizedEngine(Engine):
    """Steps many clients together. It agrees with the loop engine up to rounding, and with itself to the bit."""

    def run(self, order: Order, block: Block, memories: Mapping[int, Any]) -> tuple[Partial, list[Any]]:
        try:
            with torch.no_grad():
                groups = self._groups(order, block)
                parts = [self._group(order, block.of(group), memories) for group in groups]
        except ClientError:
            raise
        except Exception as error:
            # A fault of one client stops all others here: the loop engine finds out which client it is.
            self._loop.run(order, block, memories)
            cause = f"{type(error).__name__} in the vectorised engine alone ({error}); set clients.engine to loop"
            raise ClientError(int(block.clients_C[0]), order.round, order.phase.name, cause) from error
        partial = functools.reduce(operator.add, (partial for partial, _ in parts))
        kept = [memory for _, memories in parts for memory in memories]
        return partial, [kept[i] for i in np.argsort(np.concatenate(groups))]

    def _groups(self, order: Order, block: Block) -> list[NDArray[np.intp]]:
        """Returns the places of the clients that are computed together: with about equal shards, and as many as fit."""
        n_C = self.shards.lengths(block.clients_C)
        by_pass = (
            None if minibatches.rows_CKB is None else minibatches.rows_CKB >= 0 for minibatches in block.minibatches
        )
        rows = [n_C[:, None] if used is None else np.count_nonzero(used, axis=2) for used in by_pass]
        counts = np.hstack([np.zeros((len(block), 1), np.int64), *rows])  # a phase may have no pass
        kinds, kind_C = np.unique(counts, axis=0, return_inverse=True)
        by_kind = np.argsort(kind_C, kind="stable")
        if self.problem.mixes_rows:  # nothing may be padded: all clients have equally many rows in each step
            alike = np.split(by_kind, np.cumsum(np.bincount(kind_C.ravel(), minlength=len(kinds)))[:-1])
        else:
            alike = [by_kind]
        most = self._most(order, block)
        return [part for group in alike for part in np.array_split(group, math.ceil(len(group) / most))]

    def _most(self, order: Order, block: Block) -> int:
        """Returns the number of clients whose weights and activations fit into GROUP_BYTES."""
        # On a GPU as many as possible are best.
        if not isinstance(self.problem, HasNetworks) or self.device != "cpu":
            return len(block)
        carried = wire.size_bytes(order.phase.start(wire.shapes_of(addressed_to(None, order.message)), None))
        longest = int(self.shards.lengths(block.clients_C).max())
        rows = [
            min(self._chunk_rows(work) or longest, longest)
            if minibatches.rows_CKB is None
            else minibatches.rows_CKB.shape[2]
            for work, minibatches in zip(order.phase.works, block.minibatches, strict=True)
        ]
        return max(1, GROUP_BYTES // max(1, carried + max(rows, default=0) * self._row_bytes))

    @cached_property
    def _row_bytes(self) -> int:
        """The bytes of a row's activations; 0 where they are not known."""
        if self._chain is None:
            return 0
        assert isinstance(self.problem, NetworkProblem)
        return self._chain.numbers_per_row(self.problem.net.size, self.shards.shape) * self.dtype.itemsize

    @cached_property
    def _chain(self) -> Chain | None:
        return chain_of(self.problem)

    @cached_property
    def _buffers(self) -> Buffers:
        return Buffers()

    def _chunk_rows(self, work: Work) -> int | None:
        most = super()._chunk_rows(work)
        if self.problem.mixes_rows or most is None or not self._row_bytes or self.device != "cpu":
            return most
        return min(most, max(1, GROUP_BYTES // self._row_bytes))

    def _group(self, order: Order, block: Block, memories: Mapping[int, Any]) -> tuple[Partial, list[Any]]:
        phase, C, clients = order.phase, len(block), block.clients_C.tolist()
        sent = _sent(order.message, clients, self.device)
        if phase.remembers:
            messages = (self._copied(addressed_to(client, order.message)) for client in clients)
            old_memories = (self._copied(memories.get(client)) for client in clients)
            carry = _stacked([_started(phase, *each) for each in zip(messages, old_memories, strict=True)])
        else:
            carry = phase.start(sent, None)
        problem, buffers = None, self._buffers
        for each, minibatches in zip(phase.passes, block.minibatches, strict=True):
            steps = (
                None
                if minibatches.rows_CKB is None
                else self._steps(block.clients_C, minibatches, minibatches.rows_CKB)
            )
            problem_of_pass = ProblemPerClient(self.problem, self._chain, steps)
            batches = self._chunks(each.work, block.clients_C, minibatches) if steps is None else self._by_step(steps)
            for batch, has_rows_C in batches:
                if problem is not None:
                    carry = buffers.settle(carry)
                    problem.next_step()
                problem, before = problem_of_pass, carry
                carry = each.step(problem, sent, before, batch)
                if has_rows_C is not None:
                    carry = _where(has_rows_C, carry, before)
        reply = phase.finish(sent, carry)
        if phase.privacy is not None:
            leaves, spec = pytree.tree_flatten(reply.upload)
            private = phase.privacy.released([_each_client(leaf, C) for leaf in leaves], block.keys_C)
            reply = reply._replace(upload=pytree.tree_unflatten(map(PerClient.stacked, private), spec))
        weights_C = torch.from_numpy(block.weights_C).to(self.device, self.dtype)
        total = _folded(reply.upload, weights_C, clients)
        sizes_C = norm(_flat(leaf, C) for leaf in pytree.tree_leaves(reply.upload)).expand(C)
        accepted_C = self.screen.accepts(sizes_C)
        rejected: tuple[int, ...] = ()
        if not accepted_C.all():
            rejected = tuple(
                self.screen.rejected(order, clients[c], float(sizes_C[c]))
                for c in (~accepted_C).nonzero().flatten().tolist()
            )
            usable = _where(accepted_C, reply.upload, pytree.tree_map(torch.zeros_like, reply.upload))
            total = _folded(usable, weights_C, clients, rejected)
        weight = float(block.weights_C[accepted_C.cpu().numpy()].sum())
        partial = Partial(total, weight, C * wire.size_bytes(reply.upload), rejected)
        kept = [_client(reply.memory, c) if accepted_C[c] else None for c in range(C)]
        # The problem and its gradients refer to each other: without this they would stay until Python collects cycles.
        if problem is not None:
            problem.next_step()
        buffers.release()
        return partial, kept

    def _steps(self, clients_C: NDArray[np.int64], minibatches: Minibatches, rows_CKB: NDArray[np.int64]) -> Batch:
        """Returns all batches of a pass of local steps, (K, C, B, ...)."""
        rows_KCB = rows_CKB.swapaxes(0, 1)
        used_KCB = rows_KCB >= 0
        # Padding repeats the first row of the shard, with weight 0.
        rows = np.where(used_KCB, rows_KCB, 0) + self.shards.offsets_N1[clients_C][:, None]
        K, _, B = rows.shape
        noise = self._noise(minibatches.keys_C[:, None], np.arange(K)[:, None, None], np.arange(B))
        return self._rows(rows, used_KCB / used_KCB.sum(2, keepdims=True), "train", noise)

    def _by_step(self, steps: Batch) -> Iterator[tuple[Batch, None]]:
        """Yields the batches (C, B, ...) of one step after another, without padding where rows are mixed."""
        mixes_rows = self.problem.mixes_rows
        for k in range(len(steps.labels)):
            B = int((steps.weights[k, 0] > 0).sum()) if mixes_rows else steps.labels.shape[2]
            yield _per_client(Batch(*(leaf[k, :, :B] for leaf in steps))), None

    def _chunks(
        self, work: Work, clients_C: NDArray[np.int64], minibatches: Minibatches
    ) -> Iterator[tuple[Batch, Tensor | None]]:
        """Yields batches (C, B, ...) of whole shards, with True for clients that still have rows, or None for all."""
        first_C, n_C = self.shards.offsets_N1[clients_C], self.shards.lengths(clients_C)
        longest = int(n_C.max())
        size = self._chunk_rows(work) or longest
        for k, i in enumerate(range(0, longest, size)):
            rows_B = np.arange(i, min(i + size, longest))
            used_CB = rows_B < n_C[:, None]
            has_rows_C = None if used_CB[:, 0].all() else torch.from_numpy(used_CB[:, 0].copy()).to(self.device)
            rows = np.where(used_CB, rows_B, 0) + first_C[:, None]
            noise = self._noise(minibatches.keys_C[:, None], np.array(k), np.arange(len(rows_B)))
            yield _per_client(self._rows(rows, used_CB / n_C[:, None], "train", noise)), has_rows_C


def _per_client(batch: Batch) -> Batch:
    return Batch(*(PerClient.stacked(leaf) for leaf in batch))


def _sent(message: Any, clients: list[int], device: str) -> Any:
    """Returns the message to all clients, as PerClient tensors."""

    def per_client(node: Any) -> Any:
        if isinstance(node, Addressed):
            parts = [node.of.get(client, node.default) for client in clients]
            return pytree.tree_map(lambda *leaves: PerClient.stacked(torch.stack(leaves).to(device)), *parts)
        return PerClient.shared(node.to(device), len(clients)) if isinstance(node, Tensor) else node

    return pytree.tree_map(per_client, message, is_leaf=lambda node: isinstance(node, Addressed))


def _folded(upload: Any, weights_C: Tensor, clients: list[int], rejected: Collection[int] = ()) -> Any:
    """Returns the weighted sum of the uploads, and gathered parts of the clients that are not rejected."""
    C = len(weights_C)

    def folded(leaf: Any) -> Any:
        if is_gathered(leaf):
            accepted = [(c, client) for c, client in enumerate(clients) if client not in rejected]
            return Gathered({client: _cpu(_client(leaf.of, c)) for c, client in accepted})
        return PerClient.for_all(leaf, C).folded(weights_C).cpu()

    return pytree.tree_map(folded, upload, is_leaf=is_gathered)


def _cpu(tree: Any) -> Any:
    return pytree.tree_map(lambda leaf: leaf.cpu(), tree)


def _started(phase: Phase[Any, Any, Any, Any], sent: Any, memory: Any) -> Any:
    """Returns one client's carry. Raises what `check` raises."""
    phase.check(sent, memory)
    return phase.start(sent, memory)


def _stacked(trees: list[Any]) -> Any:
    """Returns one tree for all clients' trees, whose plain values must be the same for all."""
    return pytree.tree_map(
        lambda *leaves: PerClient.stacked(torch.stack(leaves)) if isinstance(leaves[0], Tensor) else leaves[0], *trees
    )


def _each_client(leaf: Tensor, clients: int) -> Tensor:
    """Returns the tensors of all clients, stacked as (C, ...)."""
    known = PerClient.for_all(leaf, clients).known()
    return known.tensor.expand(clients, *known.tensor.shape) if known.shared else known.tensor


def _flat(leaf: Tensor, clients: int) -> Tensor:
    """Returns each client's tensor as a row (C, numbers), or as one row (1, numbers) if all clients share it."""
    known = PerClient.for_all(leaf, clients).known()
    return known.tensor.reshape(1 if known.shared else clients, -1)


def _where(chosen_C: Tensor, new: Any, old: Any) -> Any:
    """Returns the tree `new` for the clients that are True in `chosen_C`, and `old` for the others."""

    def chosen(a: Any, b: Any) -> Any:
        if not isinstance(a, Tensor):
            return a
        before, after = (PerClient.for_all(leaf, len(chosen_C)).known().tensor for leaf in (b, a))
        return PerClient.stacked(torch.where(chosen_C.view(-1, *[1] * a.dim()), after, before))

    return pytree.tree_map(chosen, new, old)


def _client(tree: Any, c: int) -> Any:
    """Returns client c's part of a tree."""

    def of_client(leaf: Any) -> Any:
        if not isinstance(leaf, PerClient):
            return leaf
        known = leaf.known()
        return (known.tensor if known.shared else known.tensor[c]).clone()

    return pytree.tree_map(of_client, tree)
