"""What methods have in common whose clients have models of their own, of a feature extractor u and a head v."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass as record
from torch import Tensor

from raysim.derivative import gradients
from raysim.phase import Algorithm, Batch, Cohort, Installed, LocalSteps, Pass, Phase, Reply, Same, Uniform
from raysim.point import Point
from raysim.problems.classification import Classification
from raysim.problems.problem import Problem
from raysim.registry import STRICT

State = TypeVar("State")
Message = TypeVar("Message")
Carry = TypeVar("Carry")
Upload = TypeVar("Upload")


def clipped(g: Tensor, most: float) -> Tensor:
    """g, or what of it has the norm `most` (M. Abadi et al., "Deep learning with differential privacy", CCS 2016)."""
    return torch.clamp(most / torch.linalg.vector_norm(g), max=1.0) * g


def head_gradient(problem: Classification, u: Tensor, v: Tensor, batch: Batch) -> Tensor:
    """grad_v f, of v's shape, at the features that u gives."""
    features = problem.features(u, batch)
    (g,) = gradients(lambda v: problem.cross_entropy(problem.logits(v, features), batch), v)
    return g


def extractor_gradient(problem: Classification, u: Tensor, v: Tensor, batch: Batch) -> Tensor:
    """grad_u f, of u's shape."""
    (g,) = gradients(lambda u: problem.cross_entropy(problem.logits(v, problem.features(u, batch)), batch), u)
    return g


class Model(NamedTuple):
    """A client's: its extractor's weights and its head's."""

    u: Tensor
    v: Tensor


class Sent(NamedTuple):
    """A common extractor, and the head that everybody begins with: it was there from the start, and is not sent."""

    u: Tensor
    v: Installed


@dataclass(frozen=True)
class Steps:
    """What local steps are taken with.

    Attributes:
        batch: rows of a minibatch.
        eta_v, eta_u: step sizes of heads and of extractors.
        clip: largest norm of a gradient.
    """

    batch: int
    eta_v: float
    eta_u: float
    clip: float


@dataclass(frozen=True)
class Training(Phase[State, Message, Carry, Upload]):
    """A phase in which S clients train, and which knows what each has for a model of its own."""

    S: int
    steps: Steps

    name = "update"

    @property
    def cohort(self) -> Cohort:
        return Uniform(self.S)

    @abstractmethod
    def model(self, sent: Message, memory: Any) -> Model:
        """Client: its own model, before the phase."""

    def head(self, problem: Problem, sent: Any, carry: Any, batch: Batch) -> Any:
        """Client: a step of the head, on its cross-entropy. The carry has u and v."""
        g = clipped(problem.apply(head_gradient, carry.u, carry.v, batch), self.steps.clip)
        return carry._replace(v=carry.v - self.steps.eta_v * g)

    def extractor(self, problem: Problem, sent: Any, carry: Any, batch: Batch) -> Any:
        """Client: a step of the extractor, on the cross-entropy. The carry has u and v."""
        g = clipped(problem.apply(extractor_gradient, carry.u, carry.v, batch), self.steps.clip)
        return carry._replace(u=carry.u - self.steps.eta_u * g)

    def head_pass(self, K: int) -> Pass[Any, Any]:
        """K steps of the head: a forward pass, which is a third of a gradient, and little more."""
        return Pass(LocalSteps(K, self.steps.batch), self.head, 1 / 3)

    def extractor_pass(self, K: int) -> Pass[Any, Any]:
        """K steps of the extractor."""
        return Pass(LocalSteps(K, self.steps.batch), self.extractor)


@dataclass(frozen=True)
class OwnHeads(Training[State, Message, Carry, Upload]):
    """A phase whose clients keep their heads, and are sent an extractor `u` and, as installed, the first head `v`."""

    remembers = True

    def model(self, sent: Any, memory: Tensor | None) -> Model:
        return Model(sent.u, sent.v.of if memory is None else memory)


@dataclass(frozen=True)
class Mine(Phase[State, Any, Model, Point]):
    """A client's own model, after further steps of its head and extractor that nobody keeps.

    Attributes:
        of: the phase that trains it.
        tune_v, tune_u: how many steps.
    """

    of: Training[State, Any, Any, Any]
    tune_v: int
    tune_u: int

    name = "own"

    @property
    def cohort(self) -> Cohort:
        return Same()

    @property
    def passes(self) -> tuple[Pass[Any, Model], ...]:
        passes = ((self.tune_v, self.of.head_pass), (self.tune_u, self.of.extractor_pass))
        return tuple(make(K) for K, make in passes if K)

    def sends(self, state: State) -> Any:
        return self.of.sends(state)

    def start(self, sent: Any, memory: Any) -> Model:
        return self.of.model(sent, memory)

    def finish(self, sent: Any, carry: Model) -> Reply[Point]:
        return Reply(Point(torch.cat((carry.u, carry.v)), carry.v.new_zeros(0)))

    def absorb(self, state: State, mean: Point, accepted: int) -> State:
        return state


@record(frozen=True, kw_only=True, config=STRICT)
class Personal(Algorithm[State]):
    """Settings of all of these methods.

    Attributes:
        clients: how many there are, supplied by the simulator.
        extractor_size: |u|, supplied by the simulator.
        S: clients per round; all of them if none is given.
        batch: rows of a minibatch.
        clip: largest norm of a gradient.
        tune_v, tune_u: further steps of each client's head and extractor before it is evaluated, which are not kept.
    """

    personal: ClassVar[bool] = True

    clients: PositiveInt
    extractor_size: PositiveInt
    S: PositiveInt | None = None
    batch: PositiveInt
    clip: PositiveFloat = 10.0
    tune_v: NonNegativeInt = 0
    tune_u: NonNegativeInt = 0

    @abstractmethod
    def training(self, t: int) -> Training[State, Any, Any, Any]:
        """The phase of round t that trains the clients' models."""

    def phases(self, t: int) -> tuple[Phase[State, Any, Any, Any], ...]:
        return (self.training(t),)

    def own(self, state: State) -> Mine[State]:
        return Mine(self.training(0), self.tune_v, self.tune_u)

    @property
    def cohort_size(self) -> int:
        """Clients per round."""
        return self.S or self.clients

    def split(self, z: Point) -> Model:
        """z's extractor and head."""
        u, v = z.x.split((self.extractor_size, len(z.x) - self.extractor_size))
        return Model(u.clone(), v.clone())


@record(frozen=True, kw_only=True, config=STRICT)
class CommonExtractor(Personal[Model]):
    """Methods whose server has an extractor, and the head that everybody begins with.

    Attributes:
        clients, extractor_size, S, batch, clip, tune_v, tune_u: as for all.
    """

    def init(self, z: Point) -> Model:
        return self.split(z)

    def point(self, state: Model) -> Point:
        return Point(torch.cat(state), state.v.new_zeros(0))
