"""The contract between an algorithm, the server that plans and the engine that computes.

Legend: C clients of a block, K local steps, B minibatch.

A round is a sequence of phases. In each, the server draws a cohort, sends one message to all of it, the clients compute
(start, a step for each batch of each pass, finish) and the server absorbs the weighted mean of what they upload. Client
code has no randomness, no input or output and no branch on a tensor's value, so that any engine may run it: one client
after another or many at a time under torch.func.vmap.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils import _pytree as pytree

from raysim.privacy import LocalPrivacy

if TYPE_CHECKING:
    from raysim.point import Point
    from raysim.problems.problem import Problem

State = TypeVar("State")
Message = TypeVar("Message")
Carry = TypeVar("Carry")
Upload = TypeVar("Upload")


class Batch(NamedTuple):
    """Rows of one client's shard.

    Attributes:
        inputs: (B, *shape), the model's dtype.
        labels: (B,) int64, the data set's own classes.
        weights: (B,) of the model's dtype; a value or gradient on the batch is the weighted sum over its rows. They are
            1/B in a minibatch, 1/n_i in each chunk of a pass over a whole shard, and 0 where a row is padding.
        noise: (B, problem.noise), uniform on [0, 1): the chance in a row's part of the problem. It is drawn afresh for
            each step and belongs to the batch, so that gradients at two points see the same.
    """

    inputs: Tensor
    labels: Tensor
    weights: Tensor
    noise: Tensor = torch.empty(0)


@dataclass(frozen=True)
class Uniform:
    """S clients uniformly without replacement, drawn afresh for this phase."""

    S: int


@dataclass(frozen=True)
class Same:
    """The cohort of the round's previous phase again."""


@dataclass(frozen=True)
class LocalSteps:
    """K steps on minibatches, reshuffled per (round, phase, client).

    A fresh permutation of the shard is stepped through without replacement; its last batch may be short; when it is
    used up the shard is permuted again. A shard smaller than `batch` is one batch.

    Attributes:
        K: how many steps.
        batch: rows of a minibatch; None takes the whole shard each time.
        first: rows of the first minibatch, where it has another size.
    """

    K: int
    batch: int | None
    first: int | None = None


@dataclass(frozen=True)
class WholeShard:
    """One pass over all rows of the shard, in order, for an exact local gradient; one step per chunk of rows.

    Attributes:
        batch: rows of a chunk where a row's part in the gradient depends on the others', as with BatchNorm; None takes
            the shard whole. Otherwise the size changes nothing, and is the engine's.
    """

    batch: int | None = None


Cohort = Uniform | Same
Work = LocalSteps | WholeShard


@dataclass(frozen=True)
class Pass(Generic[Message, Carry]):
    """What a client steps through.

    Attributes:
        work: which batches.
        step: the carry after one of them, from (problem, message, carry, batch).
        evaluations: gradients that it computes for each row: what makes a device's task long.
    """

    work: Work
    step: Callable[["Problem", Message, Carry, Batch], Carry]
    evaluations: float = 1.0


class Installed(NamedTuple):
    """Part of a message that clients have from the start, as an app brings it: nothing of it is downloaded."""

    of: Any


class Addressed(NamedTuple):
    """Part of a message that is another for each client.

    Attributes:
        of: a client's, by its number.
        default: that of the others, of the same shapes.
    """

    of: Mapping[int, Any]
    default: Any


class Gathered(NamedTuple):
    """Part of an upload that the server gets client by client, not their mean.

    Attributes:
        of: from the client its own; at the server those of all accepted clients, by number.
    """

    of: Any


class Reply(NamedTuple, Generic[Upload]):
    """What finish returns: the vectors sent to the server, and what the client itself keeps until it is next called."""

    upload: Upload
    memory: Any = None


class Phase(ABC, Generic[State, Message, Carry, Upload]):
    """One exchange of a round: both halves of it. State, Message, Carry and Upload are trees of tensors and numbers.

    Attributes:
        name: identifies the phase's random streams, whatever its place in the round, in which no other is called so.
        remembers: whether clients keep memory from one call to the next; `start` gets None on the first.
    """

    name: str
    remembers: ClassVar[bool] = False

    @property
    @abstractmethod
    def cohort(self) -> Cohort:
        """Which clients take part."""

    @property
    @abstractmethod
    def passes(self) -> Sequence[Pass[Message, Carry]]:
        """What each of them steps through, one pass after another. What is carried goes on from one to the next."""

    @property
    def works(self) -> tuple[Work, ...]:
        """Of the passes."""
        return tuple(each.work for each in self.passes)

    @property
    def privacy(self) -> LocalPrivacy | None:
        """What is done to an upload before it leaves its client: nothing, unless overridden."""
        return None

    @abstractmethod
    def sends(self, state: State) -> Message:
        """The message to every client of the cohort. Its tensors count as downloaded bytes, its scalars do not."""

    @abstractmethod
    def start(self, sent: Message, memory: Any) -> Carry:
        """Client: what is carried from step to step."""

    @abstractmethod
    def finish(self, sent: Message, carry: Carry) -> Reply[Upload]:
        """Client: what is uploaded, and remembered."""

    @abstractmethod
    def absorb(self, state: State, mean: Upload, accepted: int) -> State:
        """Server: the state after the mean upload of the `accepted` clients has arrived."""


class SinglePass(Phase[State, Message, Carry, Upload]):
    """A phase of one pass, as most are."""

    @property
    @abstractmethod
    def work(self) -> Work:
        """Which batches each client steps through."""

    @property
    def evaluations(self) -> float:
        """Gradients that a client computes for each row it passes over: what makes a device's task long."""
        return 1.0

    @property
    def passes(self) -> tuple[Pass[Message, Carry]]:
        return (Pass(self.work, self.step, self.evaluations),)

    @abstractmethod
    def step(self, problem: "Problem", sent: Message, carry: Carry, batch: Batch) -> Carry:
        """Client: one step."""


@dataclass(frozen=True)
class LocalUpdate(SinglePass[State, Message, Carry, Upload]):
    """A phase of K local steps, on minibatches of `batch` rows, of S clients that are drawn for it."""

    S: int
    K: int
    batch: int

    name = "update"

    @property
    def cohort(self) -> Cohort:
        return Uniform(self.S)

    @property
    def work(self) -> LocalSteps:
        return LocalSteps(self.K, self.batch)


@dataclass(frozen=True)
class Rate:
    """What a theorem says of an algorithm: the mean of ||grad Phi||^2 over T rounds falls as S^S T^T.

    Attributes:
        S, T: exponents of the clients per phase and of the rounds, in the term that noise dominates.
        source: of the theorem.
    """

    S: Fraction
    T: Fraction
    source: str

    @property
    def rounds(self) -> Fraction:
        """The exponent of S in the rounds until the mean is as small as is asked for."""
        return -self.S / self.T


class Algorithm(ABC, Generic[State]):
    """A frozen record of hyper-parameters with pure functions. Nothing survives a round but State and client memory.

    Its constructor may take `clients` (how many have data) and `seed` (the experiment's), which the simulator supplies,
    and settings, which a configuration gives.

    Attributes:
        rate: what is proved of it, where S of the clients are sampled.
        personal: whether clients have models of their own.
    """

    rate: ClassVar[Rate | None] = None
    personal: ClassVar[bool] = False

    @abstractmethod
    def init(self, z: "Point") -> State:
        """The state before the first round, from the initial point."""

    @abstractmethod
    def phases(self, t: int) -> tuple[Phase[State, Any, Any, Any], ...]:
        """The phases of round t = 0, 1, ... in order."""

    @abstractmethod
    def point(self, state: State) -> "Point":
        """The point that is evaluated and saved."""

    def own(self, state: State) -> Phase[State, Any, Any, "Point"]:
        """What makes each client's own model: a phase whose upload it is, and which remembers and absorbs nothing.

        It is what is evaluated on a client's own rows where clients have tests of their own. All have the point, unless
        overridden; then `personal` is to be true.
        """
        return Common(self)

    def beside(self, state: State) -> Mapping[str, "Point"]:
        """Further points that are evaluated beside it; the names of their metrics begin with theirs and `_`."""
        return {}


@dataclass(frozen=True)
class Common(Phase[Any, "Point", "Point", "Point"]):
    """Every client has the algorithm's point as its model."""

    of: "Algorithm[Any]"

    name = "own"
    passes = ()

    @property
    def cohort(self) -> Cohort:
        return Same()

    def sends(self, state: Any) -> "Point":
        return self.of.point(state)

    def start(self, sent: "Point", memory: Any) -> "Point":
        return sent

    def finish(self, sent: "Point", carry: "Point") -> Reply["Point"]:
        return Reply(carry)

    def absorb(self, state: Any, mean: "Point", accepted: int) -> Any:
        return state


@dataclass(frozen=True)
class Drawn:
    """What is drawn of a pass of some clients.

    Attributes:
        rows_CKB: for LocalSteps the row of each client's shard, counted from its start, -1 where the batch is short;
            None for WholeShard.
        keys_C: seeds of the noise in each client's batches, uint64.
    """

    rows_CKB: NDArray[np.int64] | None
    keys_C: NDArray[np.uint64]

    def of(self, which: NDArray[np.intp] | slice) -> "Drawn":
        """That of some of its clients."""
        return Drawn(None if self.rows_CKB is None else self.rows_CKB[which], self.keys_C[which])


@dataclass(frozen=True)
class Block:
    """The work of some clients of a cohort, drawn by the plan, so that engines need no randomness.

    Attributes:
        clients_C: client numbers, ascending.
        weights_C: aggregation weights.
        drawn: for each pass of the phase.
        keys_C: seeds of the noise in each client's upload, where it is private, uint64.
    """

    clients_C: NDArray[np.int64]
    weights_C: NDArray[np.float64]
    drawn: tuple[Drawn, ...]
    keys_C: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.clients_C)

    def of(self, which: NDArray[np.intp] | slice) -> "Block":
        """The work of some of its clients."""
        passes = tuple(drawn.of(which) for drawn in self.drawn)
        return Block(self.clients_C[which], self.weights_C[which], passes, self.keys_C[which])

    def one_by_one(self) -> list["Block"]:
        """The same work as blocks of one client each."""
        return [self.of(slice(c, c + 1)) for c in range(len(self))]


def clients_of(blocks: Iterable[Block]) -> list[int]:
    """The blocks' clients, in order."""
    return [client for block in blocks for client in block.clients_C.tolist()]


@dataclass(frozen=True)
class Order:
    """One phase's instruction to its whole cohort.

    Attributes:
        round: t.
        phase: whose client half is to be run.
        message: what `phase.sends` gave.
    """

    round: int
    phase: Phase[Any, Any, Any, Any]
    message: Any


def is_gathered(node: Any) -> bool:
    """For the traversal of uploads."""
    return isinstance(node, Gathered)


def addressed_to(client: int | None, message: Any) -> Any:
    """The message as a client gets it; None is any that no part is addressed to."""

    def opened(node: Any) -> Any:
        if not isinstance(node, Addressed):
            return node
        return node.default if client is None else node.of.get(client, node.default)

    return pytree.tree_map(opened, message, is_leaf=lambda node: isinstance(node, Addressed))


def _sum(a: Any, b: Any) -> Any:
    return Gathered({**a.of, **b.of}) if is_gathered(a) else a.double() + b.double()


@dataclass(frozen=True)
class Partial:
    """What some clients return together: addable, in a fixed order.

    Attributes:
        total: the sum of weight times upload, in the model's dtype or float64; partials are added up in float64. What
            is gathered in it is not added up, but one mapping.
        weight: the sum of the weights.
        bytes_up: what these clients put on the wire.
        rejected: those of them whose results could not be used and are not in the sum.
    """

    total: Any
    weight: float
    bytes_up: int
    rejected: tuple[int, ...] = ()

    @classmethod
    def of(cls, upload: Any, weight: float, client: int, bytes_up: int) -> "Partial":
        """What one client adds."""

        def scaled(leaf: Any) -> Any:
            if is_gathered(leaf):
                return Gathered({client: pytree.tree_map(lambda part: part.cpu(), leaf.of)})
            return weight * leaf.double().cpu()

        return cls(pytree.tree_map(scaled, upload, is_leaf=is_gathered), weight, bytes_up)

    @classmethod
    def without(cls, upload: Any, client: int, bytes_up: int) -> "Partial":
        """What one adds whose upload cannot be used."""

        def nothing(leaf: Any) -> Any:
            return Gathered({}) if is_gathered(leaf) else torch.zeros_like(leaf, dtype=torch.float64).cpu()

        return cls(pytree.tree_map(nothing, upload, is_leaf=is_gathered), 0.0, bytes_up, (client,))

    def __add__(self, other: "Partial") -> "Partial":
        total = pytree.tree_map(_sum, self.total, other.total, is_leaf=is_gathered)
        rejected = self.rejected + other.rejected
        return Partial(total, self.weight + other.weight, self.bytes_up + other.bytes_up, rejected)

    def mean(self, dtype: torch.dtype) -> Any:
        """The weighted mean upload, back in the model's dtype."""

        def mean(leaf: Any) -> Any:
            return leaf if is_gathered(leaf) else (leaf.double() / self.weight).to(dtype)

        return pytree.tree_map(mean, self.total, is_leaf=is_gathered)


def pairwise_sum(partials: Iterable[Partial]) -> Partial:
    """Partials of blocks, added up by twos, their sums by twos again, and so on; what is left over from right to left.

    Each 2^k partials that begin at a multiple of 2^k may be added up elsewhere first: it changes no bit.
    """
    sums: list[tuple[int, Partial]] = []  # of 2^k partials, k falling
    for partial in partials:
        k = 0
        while sums and sums[-1][0] == k:
            partial, k = sums.pop()[1] + partial, k + 1
        sums.append((k, partial))
    _, total = sums.pop()
    while sums:
        total = sums.pop()[1] + total
    return total
