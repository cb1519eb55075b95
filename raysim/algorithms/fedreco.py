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
| epsilon, delta, Phi | privacy | local differential privacy of what is sent | none; A.3 |

A round goes v_i, u_i, u_0. Clients keep u_i and v_i; the first time they begin with the u_0 that they are sent and the
head that everybody has from the start. The server steps along the mean of the gradients of H_i at u_0, without the
lambda/2 of the objective, as in algorithm 2 and A.3. A round downloads and uploads S|u| floats.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass as record
from torch import Tensor

from raysim.algorithms import personal
from raysim.algorithms.personal import CommonExtractor, Model, Sent, clipped
from raysim.batch import Batch
from raysim.derivative import gradients
from raysim.phase import Installed, LocalSteps, Pass, Reply, WholeShard
from raysim.privacy import LocalPrivacy
from raysim.problems.classification import Classification
from raysim.problems.problem import Problem
from raysim.registry import STRICT

Shrink = Annotated[float, Field(gt=0, le=1)]


def consistent_gradient(
    problem: Classification, u: Tensor, v: Tensor, u_0: Tensor, weight: float, rows_B: Tensor, batch: Batch
) -> Tensor:
    """Returns grad_u of f + (weight / 2) H, of u's shape; rows_B (B,) are the weights of the rows in H."""
    target = problem.features(u_0, batch)

    def value(u: Tensor) -> Tensor:
        features = problem.features(u, batch)
        f = problem.cross_entropy(problem.logits(v, features), batch)
        return f + weight / 2 * distance(features, target, rows_B)

    return gradients(value, u)[0]


def consistency_gradient(problem: Classification, u: Tensor, other: Tensor, rows_B: Tensor, batch: Batch) -> Tensor:
    """Returns the gradient of H with respect to u, whichever of the two extractors that is: H is symmetric."""
    target = problem.features(other, batch)
    return gradients(lambda u: distance(problem.features(u, batch), target, rows_B), u)[0]


def consistency_gradients(
    problem: Classification, u: Tensor, u_0: Tensor, rows_B: Tensor, batch: Batch
) -> tuple[Tensor, Tensor]:
    """Returns grad_u and grad_{u_0} of H."""

    def value(u: Tensor, u_0: Tensor) -> Tensor:
        return distance(problem.features(u, batch), problem.features(u_0, batch), rows_B)

    at_u, at_u_0 = gradients(value, u, u_0)
    return at_u, at_u_0


def distance(a: Tensor, b: Tensor, rows_B: Tensor) -> Tensor:
    """Returns the weighted sum over rows of the squared distances of features (B, d)."""
    return (rows_B * ((a - b) ** 2).sum(-1)).sum()


class Carry(NamedTuple):
    """Carries the client's model, and the gradient of H at u_0 so far."""

    u: Tensor
    v: Tensor
    g: Tensor


@dataclass(frozen=True)
class Steps(personal.Steps):
    """The settings of FedReCo's local steps and of the server's."""

    eta_0: float
    weight: float
    reduction: Literal["sum", "mean"]

    def rows_B(self, batch: Batch) -> Tensor:
        """Returns the weights (B,) of the rows in H."""
        return batch.weights if self.reduction == "mean" else (batch.weights > 0).to(batch.weights.dtype)


AnyCarry = TypeVar("AnyCarry", "Carry", "ReducedCarry")


@dataclass(frozen=True, kw_only=True)
class Training(personal.Training[Model, Sent, AnyCarry, Tensor]):
    """The common parts of rounds with and without variance reduction: the models and the server's steps."""

    steps: Steps = field(kw_only=False)
    K_v: int
    K_u: int
    private: LocalPrivacy | None

    remembers = True

    @property
    def privacy(self) -> LocalPrivacy | None:
        return self.private

    def sends(self, state: Model) -> Sent:
        return Sent(state.u, Installed(state.v))

    def model(self, sent: Sent, memory: "Model | ReducedOwn | None") -> Model:
        return Model(sent.u, sent.v.of) if memory is None else Model(memory.u, memory.v)

    def absorb(self, state: Model, mean: Tensor, accepted: int) -> Model:
        return state._replace(u=state.u - self.steps.eta_0 * clipped(mean, self.steps.clip))

    def extractor(self, problem: Problem, sent: Sent, carry: Any, batch: Batch) -> Any:
        steps, rows_B = self.steps, self.steps.rows_B(batch)
        g = problem.apply(consistent_gradient, carry.u, carry.v, sent.u, steps.weight, rows_B, batch)
        return carry._replace(u=carry.u - steps.eta_u * clipped(g, steps.clip))

    def extractor_pass(self, K: int) -> Pass[Any, Any]:
        # A gradient of the whole model costs three forward passes, and this step one more, for the features at u_0.
        return Pass(LocalSteps(K, self.steps.batch), self.extractor, 4 / 3)


@dataclass(frozen=True, kw_only=True)
class Update(Training[Carry]):
    """Takes steps of the head, then of the extractor, and uploads the gradient of H at the common extractor."""

    shard_gradient: bool

    @property
    def passes(self) -> tuple[Pass[Sent, Carry], ...]:
        batch = self.steps.batch
        last = WholeShard(batch) if self.shard_gradient else LocalSteps(1, batch)
        # A gradient of H costs four forward passes: two, and a backward pass through one of them.
        return self.head_pass(self.K_v), self.extractor_pass(self.K_u), Pass(last, self.consistency, 4 / 3)

    def start(self, sent: Sent, memory: Model | None) -> Carry:
        u, v = self.model(sent, memory)
        return Carry(u, v, torch.zeros_like(sent.u))

    def consistency(self, problem: Problem, sent: Sent, carry: Carry, batch: Batch) -> Carry:
        """Client: adds the batch's part of the gradient of H at u_0."""
        g = problem.apply(consistency_gradient, sent.u, carry.u, self.steps.rows_B(batch), batch)
        return carry._replace(g=carry.g + g)

    def finish(self, sent: Sent, carry: Carry) -> Reply[Tensor]:
        return Reply(carry.g, Model(carry.u, carry.v))


class ReducedOwn(NamedTuple):
    """A client's memory: its model, the gradient of H there over all its rows, and the u_0 of that gradient."""

    u: Tensor
    v: Tensor
    g: Tensor
    u_0: Tensor


class ReducedCarry(NamedTuple):
    """Carries the client's model, its memory of the round before, and the gradients of H at u_i and u_0 so far."""

    u: Tensor
    v: Tensor
    kept: ReducedOwn
    at_u: Tensor
    at_u_0: Tensor


@dataclass(frozen=True)
class ReducedUpdate(Training[ReducedCarry]):
    """Corrects the gradients of H in the extractor's steps of Update by those of the round before."""

    @property
    def passes(self) -> tuple[Pass[Sent, ReducedCarry], ...]:
        batch = self.steps.batch
        corrected = Pass(LocalSteps(self.K_u, batch), self.corrected, 8 / 3)
        return self.head_pass(self.K_v), corrected, Pass(WholeShard(batch), self.consistency, 2.0)

    def start(self, sent: Sent, memory: ReducedOwn | None) -> ReducedCarry:
        zeros = torch.zeros_like(sent.u)
        # A new client's extractor is the common one, where H has no gradient.
        kept = ReducedOwn(sent.u, sent.v.of, zeros, sent.u) if memory is None else memory
        return ReducedCarry(kept.u, kept.v, kept, zeros, zeros)

    def corrected(self, problem: Problem, sent: Sent, carry: ReducedCarry, batch: Batch) -> ReducedCarry:
        """Client: takes a step of the extractor, with the gradient of H corrected by that of the round before."""
        u, v, kept, _, _ = carry
        weight, rows_B = self.steps.weight, self._rows_B(batch)
        g = problem.apply(consistent_gradient, u, v, sent.u, weight, rows_B, batch)
        before = problem.apply(consistency_gradient, kept.u, kept.u_0, rows_B, batch)
        return carry._replace(u=u - self.steps.eta_u * clipped(g + weight / 2 * (kept.g - before), self.steps.clip))

    def consistency(self, problem: Problem, sent: Sent, carry: ReducedCarry, batch: Batch) -> ReducedCarry:
        """Client: adds the batch's part of the gradients of H at u_i and at u_0."""
        at_u, at_u_0 = problem.apply(consistency_gradients, carry.u, sent.u, self._rows_B(batch), batch)
        return carry._replace(at_u=carry.at_u + at_u, at_u_0=carry.at_u_0 + at_u_0)

    def finish(self, sent: Sent, carry: ReducedCarry) -> Reply[Tensor]:
        return Reply(carry.at_u_0, ReducedOwn(carry.u, carry.v, carry.at_u, sent.u))

    def _rows_B(self, batch: Batch) -> Tensor:
        # A minibatch's gradient is corrected by one over all rows, so both are means, times the rows of a minibatch.
        return self.steps.batch * batch.weights


@record(frozen=True, kw_only=True, config=STRICT)
class FedReCo(CommonExtractor):
    """FedReCo: personal models, representations held close to a common extractor's (FedReCo, Alg. 1).

    Attributes:
        K_v, K_u: local steps of the head and of the extractor.
        eta_v, eta_u, eta_0: step sizes of the head, of the extractor and of the server.
        weight: lambda, of the consistency.
        clip: largest norm of a gradient of the clients' and of the server's.
        reduction: H is the `sum` over the rows of a minibatch, or their `mean`.
        shard_gradient: the gradient that is sent is over all rows of a client, and not over a minibatch.
        decay: factor of eta_v and eta_u after each round.
        privacy: of the gradient that is sent: {epsilon, delta, clip}; none without.
    """

    K_v: PositiveInt
    K_u: PositiveInt
    eta_v: PositiveFloat
    eta_u: PositiveFloat
    eta_0: NonNegativeFloat
    weight: NonNegativeFloat
    reduction: Literal["sum", "mean"] = "sum"
    shard_gradient: bool = False
    decay: Shrink = 1.0
    privacy: LocalPrivacy | None = None

    def training(self, t: int) -> Training[Any]:
        return Update(
            self.cohort, self._steps(t), K_v=self.K_v, K_u=self.K_u, private=self.privacy,
            shard_gradient=self.shard_gradient,
        )  # fmt: skip

    def _steps(self, t: int) -> Steps:
        local = (self.decay**t * self.eta_v, self.decay**t * self.eta_u)
        return Steps(self.batch, *local, self.clip, self.eta_0, self.weight, self.reduction)


@record(frozen=True, kw_only=True, config=STRICT)
class FedReCoPVR(FedReCo):
    """FedReCo-PVR: FedReCo with partial variance reduction (FedReCo, Alg. 2).

    The gradient that is sent is over all rows, and H is the mean over rows, times the rows of a minibatch, everywhere.

    Attributes:
        reduction, shard_gradient: there is one way.
    """

    reduction: Literal["mean"] = "mean"
    shard_gradient: Literal[True] = True

    def training(self, t: int) -> Training[Any]:
        return ReducedUpdate(self.cohort, self._steps(t), K_v=self.K_v, K_u=self.K_u, private=self.privacy)
