"""FedReCo: personalised models whose representations are held close to a common extractor's.

Algorithm 1 of the FedReCo paper, and Algorithm 2 of its appendix C (FedReCo-PVR), as the appendix and the public code
(github.com/oyhah/FedReCo) have them; gradients are clipped after M. Abadi et al., "Deep learning with differential
privacy", CCS 2016. For

    min over u_i, v_i, u_0 of (1/M) sum over i of [ f_i(u_i, v_i) + (lambda/2) H_i(u_i, u_0) ]

with f_i the cross-entropy of client i's extractor u_i and head v_i, and H_i(u_i, u_0) the sum over rows a of
||phi(u_i; a) - phi(u_0; a)||^2, phi being the extractor's output.

| symbol | name | meaning | default's source |
|---|---|---|---|
| M | S | clients per round | all 50, A.1 |
| K_v, K_u | K_v, K_u | local steps of the head, then of the extractor | an epoch each: the code |
| | batch | rows of a minibatch | 48, A.2 |
| eta_v, eta_u | eta_v, eta_u | local step sizes | 0.01, A.2 |
| eta_0 | eta_0 | the server's step | 0.001, A.2 |
| lambda | weight | of the consistency | 0.01, A.2 |
| Phi | clip | largest norm of a gradient, of the clients' and of the server's mean | 10, A.2 |
| | reduction | whether H is the sum over a minibatch's rows or their mean | sum: the code |
| | shard_gradient | the gradient that is sent is over all rows, and not of a minibatch | the code; not so in A.3 |
| | decay | what the local steps are multiplied with after each round | 1; 0.997 in the code |

A round goes v_i, u_i, u_0. Clients keep u_i and v_i; the first time they begin with the u_0 that they are sent and the
head that everybody has from the start. The server steps along the mean of the gradients of H_i at u_0, without the
lambda/2 of the objective, as in algorithm 2 and A.3. A round downloads and uploads S|u| floats.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar

import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass as record
from torch import Tensor

from raysim.derivative import gradients
from raysim.phase import (
    Algorithm,
    Batch,
    Cohort,
    Installed,
    LocalSteps,
    Pass,
    Phase,
    Reply,
    Same,
    Uniform,
    WholeShard,
)
from raysim.point import Point
from raysim.problems.classification import Classification
from raysim.problems.problem import Problem
from raysim.registry import STRICT

Shrink = Annotated[float, Field(gt=0, le=1)]


def clipped(g: Tensor, most: float) -> Tensor:
    """g, or what of it has the norm `most`."""
    return torch.clamp(most / torch.linalg.vector_norm(g), max=1.0) * g


def head_gradient(problem: Classification, u: Tensor, v: Tensor, batch: Batch) -> Tensor:
    """grad_v f, of v's shape, at the features that u gives."""
    features = problem.features(u, batch)
    (g,) = gradients(lambda v: problem.cross_entropy(problem.logits(v, features), batch), v)
    return g


def extractor_gradient(
    problem: Classification, u: Tensor, v: Tensor, u_0: Tensor, weight: float, rows_B: Tensor, batch: Batch
) -> Tensor:
    """grad_u of f + (weight / 2) H, of u's shape; rows_B (B,) is what H has of each row."""
    target = problem.features(u_0, batch)

    def value(u: Tensor) -> Tensor:
        features = problem.features(u, batch)
        f = problem.cross_entropy(problem.logits(v, features), batch)
        return f + weight / 2 * distance(features, target, rows_B)

    return gradients(value, u)[0]


def consistency_gradient(problem: Classification, u: Tensor, other: Tensor, rows_B: Tensor, batch: Batch) -> Tensor:
    """The gradient of H with respect to u, whichever of the two extractors that is: H is symmetric."""
    target = problem.features(other, batch)
    return gradients(lambda u: distance(problem.features(u, batch), target, rows_B), u)[0]


def consistency_gradients(
    problem: Classification, u: Tensor, u_0: Tensor, rows_B: Tensor, batch: Batch
) -> tuple[Tensor, Tensor]:
    """grad_u and grad_{u_0} of H."""

    def value(u: Tensor, u_0: Tensor) -> Tensor:
        return distance(problem.features(u, batch), problem.features(u_0, batch), rows_B)

    at_u, at_u_0 = gradients(value, u, u_0)
    return at_u, at_u_0


def distance(a: Tensor, b: Tensor, rows_B: Tensor) -> Tensor:
    """The weighted sum over rows of the squared distances of features (B, d)."""
    return (rows_B * ((a - b) ** 2).sum(-1)).sum()


class State(NamedTuple):
    """The common extractor, and the head that everybody begins with."""

    u: Tensor
    v: Tensor


class Sent(NamedTuple):
    """The common extractor. The first head was there from the start, and is not sent."""

    u: Tensor
    v: Installed


class Own(NamedTuple):
    """What a client keeps: its extractor and head."""

    u: Tensor
    v: Tensor


class Carry(NamedTuple):
    """The client's model, and the gradient of H at u_0 so far."""

    u: Tensor
    v: Tensor
    g: Tensor


@dataclass(frozen=True)
class Steps:
    """Hyper-parameters of a round, as FedReCo has them."""

    S: int
    K_v: int
    K_u: int
    batch: int
    eta_v: float
    eta_u: float
    eta_0: float
    weight: float
    clip: float
    reduction: Literal["sum", "mean"]
    shard_gradient: bool

    def rows_B(self, batch: Batch) -> Tensor:
        """(B,) what H has of each row."""
        return batch.weights if self.reduction == "mean" else (batch.weights > 0).to(batch.weights.dtype)


AnyCarry = TypeVar("AnyCarry", "Carry", "ReducedCarry")


@dataclass(frozen=True)
class Training(Phase[State, Sent, AnyCarry, Tensor]):
    """What rounds with and without variance reduction share: the head's steps, and the server's."""

    steps: Steps

    name = "update"
    remembers = True

    @property
    def cohort(self) -> Cohort:
        return Uniform(self.steps.S)

    def sends(self, state: State) -> Sent:
        return Sent(state.u, Installed(state.v))

    def head(self, problem: Problem, sent: Sent, carry: AnyCarry, batch: Batch) -> AnyCarry:
        g = clipped(problem.apply(head_gradient, carry.u, carry.v, batch), self.steps.clip)
        return carry._replace(v=carry.v - self.steps.eta_v * g)

    def absorb(self, state: State, mean: Tensor, accepted: int) -> State:
        return state._replace(u=state.u - self.steps.eta_0 * clipped(mean, self.steps.clip))


@dataclass(frozen=True)
class Update(Training[Carry]):
    """Steps of the head, then of the extractor; what is sent is the gradient of H at the common extractor."""

    @property
    def passes(self) -> tuple[Pass[Sent, Carry], ...]:
        # In gradients of the whole model, which are three forward passes: one and little more; the gradient, and one
        # more; two, and what leads back through one of them.
        batch = self.steps.batch
        last = WholeShard(batch) if self.steps.shard_gradient else LocalSteps(1, batch)
        return (
            Pass(LocalSteps(self.steps.K_v, batch), self.head, 1 / 3),
            Pass(LocalSteps(self.steps.K_u, batch), self.extractor, 4 / 3),
            Pass(last, self.consistency, 4 / 3),
        )

    def start(self, sent: Sent, memory: Own | None) -> Carry:
        u, v = (sent.u, sent.v.of) if memory is None else memory
        return Carry(u, v, torch.zeros_like(sent.u))

    def extractor(self, problem: Problem, sent: Sent, carry: Carry, batch: Batch) -> Carry:
        u, v, _ = carry
        rows_B = self.steps.rows_B(batch)
        g = clipped(problem.apply(extractor_gradient, u, v, sent.u, self.steps.weight, rows_B, batch), self.steps.clip)
        return carry._replace(u=u - self.steps.eta_u * g)

    def consistency(self, problem: Problem, sent: Sent, carry: Carry, batch: Batch) -> Carry:
        g = problem.apply(consistency_gradient, sent.u, carry.u, self.steps.rows_B(batch), batch)
        return carry._replace(g=carry.g + g)

    def finish(self, sent: Sent, carry: Carry) -> Reply[Tensor]:
        return Reply(carry.g, Own(carry.u, carry.v))


class ReducedOwn(NamedTuple):
    """What a client keeps: its model, the gradient of H at it over all its rows, and the u_0 that this is at."""

    u: Tensor
    v: Tensor
    g: Tensor
    u_0: Tensor


class ReducedCarry(NamedTuple):
    """The client's model, what it kept of the round before, and the gradients of H at u_i and at u_0 so far."""

    u: Tensor
    v: Tensor
    kept: ReducedOwn
    at_u: Tensor
    at_u_0: Tensor


@dataclass(frozen=True)
class ReducedUpdate(Training[ReducedCarry]):
    """As Update, with the gradients of H in the extractor's steps corrected by those of the round before."""

    @property
    def passes(self) -> tuple[Pass[Sent, ReducedCarry], ...]:
        batch = self.steps.batch
        return (
            Pass(LocalSteps(self.steps.K_v, batch), self.head, 1 / 3),
            Pass(LocalSteps(self.steps.K_u, batch), self.extractor, 8 / 3),
            Pass(WholeShard(batch), self.consistency, 2.0),
        )

    def start(self, sent: Sent, memory: ReducedOwn | None) -> ReducedCarry:
        nothing = torch.zeros_like(sent.u)
        # A new client's extractor is the common one, where H has no gradient.
        kept = ReducedOwn(sent.u, sent.v.of, nothing, sent.u) if memory is None else memory
        return ReducedCarry(kept.u, kept.v, kept, nothing, nothing)

    def extractor(self, problem: Problem, sent: Sent, carry: ReducedCarry, batch: Batch) -> ReducedCarry:
        u, v, kept, _, _ = carry
        weight, rows_B = self.steps.weight, self._rows_B(batch)
        g = problem.apply(extractor_gradient, u, v, sent.u, weight, rows_B, batch)
        before = problem.apply(consistency_gradient, kept.u, kept.u_0, rows_B, batch)
        return carry._replace(u=u - self.steps.eta_u * clipped(g + weight / 2 * (kept.g - before), self.steps.clip))

    def consistency(self, problem: Problem, sent: Sent, carry: ReducedCarry, batch: Batch) -> ReducedCarry:
        at_u, at_u_0 = problem.apply(consistency_gradients, carry.u, sent.u, self._rows_B(batch), batch)
        return carry._replace(at_u=carry.at_u + at_u, at_u_0=carry.at_u_0 + at_u_0)

    def finish(self, sent: Sent, carry: ReducedCarry) -> Reply[Tensor]:
        return Reply(carry.at_u_0, ReducedOwn(carry.u, carry.v, carry.at_u, sent.u))

    def _rows_B(self, batch: Batch) -> Tensor:
        # A minibatch's gradient is corrected by one over all rows, so both are means, times the rows of a minibatch.
        return self.steps.batch * batch.weights


@dataclass(frozen=True)
class Mine(Phase[State, Sent, Carry, Point]):
    """A client's own model, after further steps of its head and extractor that nobody keeps."""

    steps: Steps
    tune_v: int
    tune_u: int

    name = "own"

    @property
    def cohort(self) -> Cohort:
        return Same()

    @property
    def passes(self) -> tuple[Pass[Sent, Carry], ...]:
        update, batch = Update(self.steps), self.steps.batch
        tuning = ((self.tune_v, update.head), (self.tune_u, update.extractor))
        return tuple(Pass(LocalSteps(K, batch), step) for K, step in tuning if K)

    def sends(self, state: State) -> Sent:
        return Sent(state.u, Installed(state.v))

    def start(self, sent: Sent, memory: Own | ReducedOwn | None) -> Carry:
        u, v = (sent.u, sent.v.of) if memory is None else (memory.u, memory.v)
        return Carry(u, v, u)

    def finish(self, sent: Sent, carry: Carry) -> Reply[Point]:
        return Reply(Point(torch.cat((carry.u, carry.v)), carry.v.new_zeros(0)))

    def absorb(self, state: State, mean: Point, accepted: int) -> State:
        return state


@record(frozen=True, kw_only=True, config=STRICT)
class FedReCo(Algorithm[State]):
    """FedReCo: personal models, representations held close to a common extractor's (FedReCo, Alg. 1).

    Attributes:
        clients: how many there are, supplied by the simulator.
        extractor_size: |u|, supplied by the simulator.
        S: clients per round; all of them if none is given.
        K_v, K_u: local steps of the head and of the extractor.
        batch: rows of a minibatch.
        eta_v, eta_u, eta_0: step sizes of the head, of the extractor and of the server.
        weight: lambda, of the consistency.
        clip: largest norm of a gradient of the clients' and of the server's.
        reduction: H is the `sum` over the rows of a minibatch, or their `mean`.
        shard_gradient: the gradient that is sent is over all rows instead of a minibatch.
        decay: what eta_v and eta_u are multiplied with after each round.
        tune_v, tune_u: steps of the head, then of the extractor, that are taken for each evaluation and not kept.
    """

    personal: ClassVar[bool] = True

    clients: PositiveInt
    extractor_size: PositiveInt
    S: PositiveInt | None = None
    K_v: PositiveInt
    K_u: PositiveInt
    batch: PositiveInt
    eta_v: PositiveFloat
    eta_u: PositiveFloat
    eta_0: NonNegativeFloat
    weight: NonNegativeFloat
    clip: PositiveFloat = 10.0
    reduction: Literal["sum", "mean"] = "sum"
    shard_gradient: bool = False
    decay: Shrink = 1.0
    tune_v: NonNegativeInt = 0
    tune_u: NonNegativeInt = 0

    def init(self, z: Point) -> State:
        u, v = z.x.split((self.extractor_size, len(z.x) - self.extractor_size))
        return State(u.clone(), v.clone())

    def phases(self, t: int) -> tuple[Phase[State, Any, Any, Any]]:
        return (Update(self._steps(t)),)

    def point(self, state: State) -> Point:
        return Point(torch.cat(state), state.v.new_zeros(0))

    def own(self, state: State) -> Mine:
        return Mine(self._steps(0), self.tune_v, self.tune_u)

    def _steps(self, t: int) -> Steps:
        local = (self.decay**t * self.eta_v, self.decay**t * self.eta_u)
        sizes = (self.S or self.clients, self.K_v, self.K_u, self.batch)
        return Steps(*sizes, *local, self.eta_0, self.weight, self.clip, self.reduction, self.shard_gradient)


@record(frozen=True, kw_only=True, config=STRICT)
class FedReCoPVR(FedReCo):
    """FedReCo-PVR: FedReCo with partial variance reduction (FedReCo, Alg. 2).

    The gradient that is sent is over all rows, and H is the mean over rows, times the rows of a minibatch, everywhere.

    Attributes:
        clients, extractor_size, S, K_v, K_u, batch, eta_v, eta_u, eta_0, weight, clip, decay, tune_v, tune_u: as for
            FedReCo.
        reduction, shard_gradient: there is one way.
    """

    reduction: Literal["mean"] = "mean"
    shard_gradient: Literal[True] = True

    def phases(self, t: int) -> tuple[Phase[State, Any, Any, Any]]:
        return (ReducedUpdate(self._steps(t)),)
