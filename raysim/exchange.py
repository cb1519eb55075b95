"""The exchange between the server and the clients of a phase: blocks of work, the order, and sums of uploads.

Legend: C clients of a block, K local steps, B minibatch.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils import _pytree as pytree

from raysim.phase import Addressed, Gathered, Phase


@dataclass(frozen=True)
class Minibatches:
    """Holds the random choices for one pass of some clients.

    Attributes:
        rows_CKB: for LocalSteps the row of each client's shard, counted from its start, -1 where the batch is short;
            None for WholeShard.
        keys_C: seeds of the noise in each client's batches, uint64.
    """

    rows_CKB: NDArray[np.int64] | None
    keys_C: NDArray[np.uint64]

    def of(self, which: NDArray[np.intp] | slice) -> "Minibatches":
        """Returns the minibatches of some of its clients."""
        return Minibatches(None if self.rows_CKB is None else self.rows_CKB[which], self.keys_C[which])


@dataclass(frozen=True)
class Block:
    """The work of some clients of a cohort. The plan draws it, so that engines need no randomness.

    Attributes:
        clients_C: client numbers, ascending.
        weights_C: aggregation weights.
        minibatches: for each pass of the phase.
        keys_C: seeds of the noise that makes each client's upload private, uint64.
    """

    clients_C: NDArray[np.int64]
    weights_C: NDArray[np.float64]
    minibatches: tuple[Minibatches, ...]
    keys_C: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.clients_C)

    def of(self, which: NDArray[np.intp] | slice) -> "Block":
        """Returns the work of some of its clients."""
        passes = tuple(each.of(which) for each in self.minibatches)
        return Block(self.clients_C[which], self.weights_C[which], passes, self.keys_C[which])

    def one_by_one(self) -> list["Block"]:
        """Returns the same work as blocks of one client each."""
        return [self.of(slice(c, c + 1)) for c in range(len(self))]


def clients_of(blocks: Iterable[Block]) -> list[int]:
    """Returns the client numbers of some blocks, in order."""
    return [client for block in blocks for client in block.clients_C.tolist()]


@dataclass(frozen=True)
class Order:
    """One phase's instruction to its whole cohort.

    Attributes:
        round: t.
        phase: the phase whose client half is to be run.
        message: the result of `phase.sends`.
    """

    round: int
    phase: Phase[Any, Any, Any, Any]
    message: Any


def is_gathered(node: Any) -> bool:
    """Returns True for a part that the server receives client by client, where an upload's tree is traversed."""
    return isinstance(node, Gathered)


def addressed_to(client: int | None, message: Any) -> Any:
    """Returns the message as a client receives it; None stands for a client that no part is addressed to."""

    def received(node: Any) -> Any:
        if not isinstance(node, Addressed):
            return node
        return node.default if client is None else node.of.get(client, node.default)

    return pytree.tree_map(received, message, is_leaf=lambda node: isinstance(node, Addressed))


def _sum(a: Any, b: Any) -> Any:
    return Gathered({**a.of, **b.of}) if is_gathered(a) else a.double() + b.double()


@dataclass(frozen=True)
class Partial:
    """The results of some clients together: addable, in a fixed order.

    Attributes:
        total: sum of weight times upload, in the model's dtype or float64; partials are added up in float64. Gathered
            parts are not added up but united in one mapping.
        weight: sum of the weights.
        bytes_up: bytes that these clients put on the wire.
        rejected: the clients whose results could not be used and are not in the sum.
    """

    total: Any
    weight: float
    bytes_up: int
    rejected: tuple[int, ...] = ()

    @classmethod
    def of(cls, upload: Any, weight: float, client: int, bytes_up: int) -> "Partial":
        """Returns the partial of a single client."""

        def scaled(leaf: Any) -> Any:
            if is_gathered(leaf):
                return Gathered({client: pytree.tree_map(lambda part: part.cpu(), leaf.of)})
            return weight * leaf.double().cpu()

        return cls(pytree.tree_map(scaled, upload, is_leaf=is_gathered), weight, bytes_up)

    @classmethod
    def without(cls, upload: Any, client: int, bytes_up: int) -> "Partial":
        """Returns the partial of a single client whose upload cannot be used: zeros of weight 0."""

        def zeros(leaf: Any) -> Any:
            return Gathered({}) if is_gathered(leaf) else torch.zeros_like(leaf, dtype=torch.float64).cpu()

        return cls(pytree.tree_map(zeros, upload, is_leaf=is_gathered), 0.0, bytes_up, (client,))

    def __add__(self, other: "Partial") -> "Partial":
        total = pytree.tree_map(_sum, self.total, other.total, is_leaf=is_gathered)
        rejected = self.rejected + other.rejected
        return Partial(total, self.weight + other.weight, self.bytes_up + other.bytes_up, rejected)

    def mean(self, dtype: torch.dtype) -> Any:
        """Returns the weighted mean of the uploads, sum_i w_i u_i / sum_i w_i, in the model's dtype."""

        def mean(leaf: Any) -> Any:
            return leaf if is_gathered(leaf) else (leaf.double() / self.weight).to(dtype)

        return pytree.tree_map(mean, self.total, is_leaf=is_gathered)


def pairwise_sum(partials: Iterable[Partial]) -> Partial:
    """Adds partials up in pairs, their sums in pairs again, and so on; sums that have no pair from right to left.

    Any 2^k consecutive partials that begin at a multiple of 2^k may be added up elsewhere first: it changes no bit.
    """
    sums: list[tuple[int, Partial]] = []  # (k, sum of 2^k partials), k falling
    for partial in partials:
        k = 0
        while sums and sums[-1][0] == k:
            partial, k = sums.pop()[1] + partial, k + 1
        sums.append((k, partial))
    _, total = sums.pop()
    while sums:
        total = sums.pop()[1] + total
    return total
