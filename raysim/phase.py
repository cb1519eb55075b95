"""The contract between an algorithm, the server that plans and the engine that computes: a phase of a round.

Legend: B rows of a minibatch, K local steps.

A round is a sequence of phases. In each phase the server draws a cohort and sends one message to all of it, the clients
compute (start, a step for each batch of each pass, finish), and the server absorbs the weighted mean of their uploads.
Client code has no randomness, no input or output and no branch on a tensor's value. Any engine may therefore run it:
one client after another, or many at a time under torch.func.vmap.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from raysim.batch import Batch
from raysim.privacy import LocalPrivacy

State = TypeVar("State")
Message = TypeVar("Message")
Carry = TypeVar("Carry")
Upload = TypeVar("Upload")


@dataclass(frozen=True)
class Uniform:
    """Samples S clients uniformly without replacement, afresh for this phase."""

    S: int


@dataclass(frozen=True)
class Same:
    """Takes the cohort of the round's previous phase again."""


@dataclass(frozen=True)
class LocalSteps:
    """Takes K steps on minibatches that are reshuffled for each (round, phase, client).

    The steps go through a fresh permutation of the shard without replacement, and its last batch may be short. When
    the permutation is used up the shard is permuted again. A shard smaller than `batch` is one batch.

    Attributes:
        K: number of steps.
        batch: rows of a minibatch; None takes the whole shard each time.
        first: rows of the first minibatch, where it has another size.
    """

    K: int
    batch: int | None
    first: int | None = None


@dataclass(frozen=True)
class WholeShard:
    """Passes once over all rows of the shard, in order, for an exact local gradient: one step per chunk of rows.

    Attributes:
        batch: rows of a chunk where a row's part in the gradient depends on the others', as with BatchNorm; None takes
            the shard whole. For other problems the size changes nothing, and the engine chooses it.
    """

    batch: int | None = None


Cohort = Uniform | Same
Work = LocalSteps | WholeShard


@dataclass(frozen=True)
class Pass(Generic[Message, Carry]):
    """Describes the batches that a client steps through, and the step.

    Attributes:
        work: the batches.
        step: maps (problem, message, carry, batch) to the carry after one of them.
        evaluations: number of gradients that the step computes for each row, which decides how long a task takes.
    """

    work: Work
    step: Callable[[Any, Message, Carry, Batch], Carry]
    evaluations: float = 1.0


class Installed(NamedTuple):
    """Marks a part of a message that clients have from the start, as an app ships it, and do not download."""

    of: Any


class Addressed(NamedTuple):
    """Marks a part of a message that differs from client to client.

    Attributes:
        of: a client's part, by its number.
        default: the part of all other clients, of the same shapes.
    """

    of: Mapping[int, Any]
    default: Any


class Gathered(NamedTuple):
    """Marks a part of an upload that the server receives client by client instead of as a mean.

    Attributes:
        of: on a client its own part; on the server the parts of all accepted clients, by number.
    """

    of: Any


class Reply(NamedTuple, Generic[Upload]):
    """Holds the result of `finish`: the tensors for the server, and what the client remembers until its next call."""

    upload: Upload
    memory: Any = None


class Phase(ABC, Generic[State, Message, Carry, Upload]):
    """One exchange of a round, both halves of it. State, Message, Carry and Upload are trees of tensors and numbers.

    Attributes:
        name: identifies the phase's random streams, wherever in the round it stands; unique within a round.
        cohort: the clients that take part.
        remembers: True if clients keep memory from one call to the next; `start` gets None on the first.
    """

    name: str
    cohort: Cohort
    remembers: ClassVar[bool] = False

    @property
    @abstractmethod
    def passes(self) -> Sequence[Pass[Message, Carry]]:
        """The passes that each client steps through in turn; the carry goes on from one to the next."""

    @property
    def works(self) -> tuple[Work, ...]:
        """The batches of each pass."""
        return tuple(each.work for each in self.passes)

    @property
    def privacy(self) -> LocalPrivacy | None:
        """The mechanism that an upload goes through before it leaves its client; None leaves it as it is."""
        return None

    @abstractmethod
    def sends(self, state: State) -> Message:
        """Server: returns the message to every client of the cohort.

        Its tensors count as downloaded bytes, its scalars do not.
        """

    def check(self, sent: Message, memory: Any) -> None:
        """Client: raises an exception if the client cannot take part with the memory that it has."""

    @abstractmethod
    def start(self, sent: Message, memory: Any) -> Carry:
        """Client: returns the carry, which goes from step to step."""

    @abstractmethod
    def finish(self, sent: Message, carry: Carry) -> Reply[Upload]:
        """Client: returns the upload and the client's new memory."""

    @abstractmethod
    def absorb(self, state: State, mean: Upload, accepted: int) -> State:
        """Server: returns the state after the mean upload of the `accepted` clients has arrived."""


@dataclass(frozen=True)
class SinglePass(Phase[State, Message, Carry, Upload]):
    """A phase of one pass, as most are: ``Update(Uniform(S), LocalSteps(K, batch), eta=eta)``.

    Attributes:
        cohort: the clients that take part.
        work: the batches that each of them steps through.
    """

    cohort: Cohort
    work: Work

    @property
    def evaluations(self) -> float:
        """The number of gradients that a client computes for each row, which decides how long a device's task takes."""
        return 1.0

    @property
    def passes(self) -> tuple[Pass[Message, Carry]]:
        return (Pass(self.work, self.step, self.evaluations),)

    @abstractmethod
    def step(self, problem: Any, sent: Message, carry: Carry, batch: Batch) -> Carry:
        """Client: returns the carry after one step. `problem` is a raysim.problems.Problem."""


@dataclass(frozen=True)
class LocalUpdate(SinglePass[State, Message, Carry, Upload]):
    """A phase "update" of local steps on minibatches.

    Attributes:
        cohort: the clients that take part.
        work: their local steps.
    """

    work: LocalSteps

    name = "update"
