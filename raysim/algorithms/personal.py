"""The common parts of methods whose clients have models of their own: a feature extractor u and a head v."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass as record
from torch import Tensor

from raysim.algorithms.settings import Sampled
from raysim.batch import Batch
from raysim.derivative import gradients
from raysim.phase import Cohort, Installed, LocalSteps, Pass, Phase, Reply, Same
from raysim.point import Point
from raysim.problems.classification import Classification
from raysim.problems.problem import Problem
from raysim.registry import STRICT

State = TypeVar("State")
Message = TypeVar("Message")
Carry = TypeVar("Carry")
Upload = TypeVar("Upload")


def clipped(g: Tensor, most: float) -> Tensor:
    """Returns g min(1, most / ||g||), clipped to the norm `most`.

    M. Abadi et al., "Deep learning with differential privacy", CCS 2016.
    """
    return torch.clamp(most / torch.linalg.vector_norm(g), max=1.0) * g


def head_gradient(problem: Classification, u: Tensor, v: Tensor, batch: Batch) -> Tensor:
    """Returns grad_v f, of v's shape, at the features that u gives."""
    features = problem.features(u, batch)
    (g,) = gradients(lambda v: problem.cross_entropy(problem.logits(v, features), batch), v)
    return g


def extractor_gradient(problem: Classification, u: Tensor, v: Tensor, batch: Batch) -> Tensor:
    """Returns grad_u f, of u's shape."""
    (g,) = gradients(lambda u: problem.cross_entropy(problem.logits(v, problem.features(u, batch)), batch), u)
    return g


class Model(NamedTuple):
    """A client's model: the weights of its extractor and of its head."""

    u: Tensor
    v: Tensor


class Sent(NamedTuple):
    """The message: a common extractor, and the head that everybody begins with, which is installed and not sent."""

    u: Tensor
    v: Installed


@dataclass(frozen=True)
class Steps:
    """The settings of local steps.

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
    """A phase in which clients train, and which knows each client's own model.

    Attributes:
        cohort: the clients that take part.
        steps: the settings of their local steps.
    """

    cohort: Cohort
    steps: Steps

    name = "update"

    @abstractmethod
    def model(self, sent: Message, memory: Any) -> Model:
        """Client: returns its own model before the phase."""

    def head(self, problem: Problem, sent: Any, carry: Any, batch: Batch) -> Any:
        """Client: takes a step of the head, on its cross-entropy. The carry has u and v."""
        g = clipped(problem.apply(head_gradient, carry.u, carry.v, batch), self.steps.clip)
        return carry._replace(v=carry.v - self.steps.eta_v * g)

    def extractor(self, problem: Problem, sent: Any, carry: Any, batch: Batch) -> Any:
        """Client: takes a step of the extractor, on the cross-entropy. The carry has u and v."""
        g = clipped(problem.apply(extractor_gradient, carry.u, carry.v, batch), self.steps.clip)
        return carry._replace(u=carry.u - self.steps.eta_u * g)

    def head_pass(self, K: int) -> Pass[Any, Any]:
        """Returns K steps of the head: a forward pass, which is a third of a gradient, and little more."""
        return Pass(LocalSteps(K, self.steps.batch), self.head, 1 / 3)

    def extractor_pass(self, K: int) -> Pass[Any, Any]:
        """Returns K steps of the extractor."""
        return Pass(LocalSteps(K, self.steps.batch), self.extractor)


@dataclass(frozen=True)
class OwnHeads(Training[State, Message, Carry, Upload]):
    """A phase whose clients keep their heads, and are sent an extractor `u` and, as installed, the first head `v`."""

    remembers = True

    def model(self, sent: Any, memory: Tensor | None) -> Model:
        return Model(sent.u, sent.v.of if memory is None else memory)


@dataclass(frozen=True)
class PersonalModel(Phase[State, Any, Model, Point]):
    """Makes a client's own model, after further steps of its head and extractor that nobody keeps.

    Attributes:
        cohort: see Phase.
        training: the phase that trains it.
        tune_v, tune_u: numbers of further steps of the head and of the extractor.
    """

    cohort: Cohort
    training: Training[State, Any, Any, Any]
    tune_v: int
    tune_u: int

    name = "own"

    @property
    def passes(self) -> tuple[Pass[Any, Model], ...]:
        passes = ((self.tune_v, self.training.head_pass), (self.tune_u, self.training.extractor_pass))
        return tuple(make(K) for K, make in passes if K)

    def sends(self, state: State) -> Any:
        return self.training.sends(state)

    def check(self, sent: Any, memory: Any) -> None:
        self.training.check(sent, memory)

    def start(self, sent: Any, memory: Any) -> Model:
        return self.training.model(sent, memory)

    def finish(self, sent: Any, carry: Model) -> Reply[Point]:
        return Reply(Point(torch.cat((carry.u, carry.v)), carry.v.new_zeros(0)))

    def absorb(self, state: State, mean: Point, accepted: int) -> State:
        return state


@record(frozen=True, kw_only=True, config=STRICT)
class Personal(Sampled[State]):
    """Settings of all methods whose clients have models of their own.

    Attributes:
        extractor_size: |u|, supplied by the simulator.
        batch: rows of a minibatch.
        clip: largest norm of a gradient.
        tune_v, tune_u: further steps of each client's head and extractor before it is evaluated, which are not kept.
    """

    personal: ClassVar[bool] = True

    extractor_size: PositiveInt
    batch: PositiveInt
    clip: PositiveFloat = 10.0
    tune_v: NonNegativeInt = 0
    tune_u: NonNegativeInt = 0

    @abstractmethod
    def training(self, t: int) -> Training[State, Any, Any, Any]:
        """Returns the phase of round t that trains the clients' models."""

    def phases(self, t: int) -> tuple[Phase[State, Any, Any, Any], ...]:
        return (self.training(t),)

    def personal_model(self, state: State) -> PersonalModel[State]:
        return PersonalModel(Same(), self.training(0), self.tune_v, self.tune_u)

    def split(self, z: Point) -> Model:
        """Returns the extractor and the head of z."""
        u, v = z.x.split((self.extractor_size, len(z.x) - self.extractor_size))
        return Model(u.clone(), v.clone())


@record(frozen=True, kw_only=True, config=STRICT)
class CommonExtractor(Personal[Model]):
    """Settings of methods whose server has an extractor, and the head that everybody begins with."""

    def init(self, z: Point) -> Model:
        return self.split(z)

    def point(self, state: Model) -> Point:
        return Point(torch.cat(state), state.v.new_zeros(0))
