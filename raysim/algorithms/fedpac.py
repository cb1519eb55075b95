"""FedPAC: a common extractor whose features are drawn to common centroids, and heads that are mixed for each client.

J. Xu, X. Tong, S.-L. Huang, "Personalized federated learning with feature alignment and classifier collaboration", ICLR
2023, https://arxiv.org/abs/2306.11867, algorithm 1; statistics and order are those of the authors' code
(github.com/JianXu95/FedPAC). Defaults are those that the FedReCo paper ran it with.

| symbol | name | meaning | default's source |
|---|---|---|---|
| m | S | clients per round | all 50, FedReCo, A.1 |
| | K_v, K_u | local steps of the head, then of the extractor | an epoch each: FedReCo's code |
| | batch | rows of a minibatch | 48, FedReCo, A.2 |
| | eta_v, eta_u | local step sizes | 0.01, A.2; 0.1 for the head in FedPAC's code |
| lambda | weight | of the features' distance from the centroids | 1, A.2 |
| | clip | largest norm of a gradient | 10, A.2 |
| | combine | whether heads are mixed | yes |

A round:

1. Each client steps its head, then the received extractor on f + lambda E ||phi(a) - c_b||^2 / d, c_b being the
   centroid of the row's class b, or, where there is none yet, that of the client's own rows under the received
   extractor; in the first round on f alone. Under the received extractor it also takes h_i with rows P_i(k) mu_{i,k},
   the share of class k times the mean of its features, and V_i = (E ||phi||^2 - ||h_i||^2) / n_i; under its own, the
   sums of each class's features and their numbers. It sends the extractor, its head, h_i, V_i, sums and numbers.
2. Each of them is sent the head that is mixed for it: with alpha_i = argmin over the simplex of sum_j alpha_j^2 V_j +
   ||h_i - sum_j alpha_j h_j||^2, sum_j alpha_ij v_j.

The mean of the class centroids weighs clients by their rows of the class; that of extractors counts them the same. For
C classes and d features, a round downloads S (|u| + C d + C + |v|) floats and uploads S (|u| + |v| + 2 C d + C + 1).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy
import torch
from numpy.typing import NDArray
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass as record
from torch import Tensor
from torch.nn.functional import one_hot

from raysim.algorithms.personal import OwnHeads, Personal, Steps, clipped
from raysim.batch import Batch
from raysim.derivative import gradients
from raysim.phase import Addressed, Cohort, Gathered, Installed, LocalSteps, Pass, Phase, Reply, Same, WholeShard
from raysim.point import Point
from raysim.problems.classification import Classification
from raysim.problems.problem import Problem
from raysim.registry import STRICT


class Moments(NamedTuple):
    """Moments of a client's features: by class sums of weights times features (C, d), of squares, and rows (C,)."""

    h_Cd: Tensor
    square: Tensor
    rows_C: Tensor

    def centroids_Cd(self) -> Tensor:
        """Returns the mean features of each class that has rows, if the weights are shares of all of them."""
        return self.h_Cd * (self.rows_C.sum() / self.rows_C.clamp(min=1))[:, None]


def moments(problem: Classification, u: Tensor, batch: Batch, classes: int) -> Moments:
    """Returns the moments of a batch."""
    features = problem.features(u, batch)
    of_BC = one_hot(batch.labels, classes).to(features.dtype)
    is_row_B = (batch.weights > 0).to(features.dtype)
    squares_B = (features**2).sum(-1)
    return Moments((batch.weights[:, None] * of_BC).mT @ features, batch.weights @ squares_B, is_row_B @ of_BC)


def aligned_gradient(
    problem: Classification, u: Tensor, v: Tensor, centroids_Cd: Tensor, weight: float, batch: Batch
) -> Tensor:
    """Returns grad_u of f + weight E ||phi - c||^2 / d, of u's shape, c being the centroid of the row's class."""
    target = one_hot(batch.labels, len(centroids_Cd)).to(centroids_Cd.dtype) @ centroids_Cd

    def value(u: Tensor) -> Tensor:
        features = problem.features(u, batch)
        distance = batch.weights @ ((features - target) ** 2).mean(-1)
        return problem.cross_entropy(problem.logits(v, features), batch) + weight * distance

    return gradients(value, u)[0]


def shares_of_heads(h_SD: NDArray[np.float64], V_S: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns alpha (S, S), the share of each head in each client's mixed head. Rows sum to 1.

    With P = diag(V) + the Gram matrix of h_i - h_j, x = argmin over x >= 0 of x' P x + (1 - sum x)^2 has the conditions
    of the minimum of alpha' P alpha over the simplex, up to scale, and is a problem of non-negative least squares.
    """
    gram = h_SD @ h_SD.T
    alpha = np.empty_like(gram)
    for i, row in enumerate(gram):
        P = np.diag(V_S) + row[i] - row[:, None] - row[None, :] + gram
        values, vectors = np.linalg.eigh(P / (np.abs(P).max() or 1.0))
        root = np.sqrt(values.clip(min=0))[:, None] * vectors.T
        x, _ = scipy.optimize.nnls(np.vstack((root, np.ones(len(P)))), np.append(np.zeros(len(P)), 1.0))
        alpha[i] = x / x.sum()
    return alpha


class Centroids(NamedTuple):
    """Centroids of the classes (C, d), and (C,) numbers that are 1 where the round before had rows of the class."""

    c_Cd: Tensor
    there_C: Tensor


class State(NamedTuple):
    """The common extractor, the first head, the centroids after a round, and the mixed heads that are to be sent."""

    u: Tensor
    v: Tensor
    centroids: Centroids | None
    mixed: Mapping[int, Tensor]


class Sent(NamedTuple):
    """The message: the common extractor and the centroids; the first head is installed and not sent."""

    u: Tensor
    v: Installed
    centroids: Centroids | None


class Carry(NamedTuple):
    """Carries the client's model, and the moments of its features under the received extractor and under its own."""

    u: Tensor
    v: Tensor
    before: Moments
    after: Moments


class Statistics(NamedTuple):
    """The statistics that a client's head is mixed by, and the head."""

    v: Tensor
    h_Cd: Tensor
    V: Tensor


class Upload(NamedTuple):
    """The upload: the sums (C, d) of the classes' features and their rows (C,) are averaged as they are."""

    u: Tensor
    sums_Cd: Tensor
    rows_C: Tensor
    own: Gathered


@dataclass(frozen=True, kw_only=True)
class Update(OwnHeads[State, Sent, Carry, Upload]):
    """Takes steps of the head, then of the extractor, and collects moments of the features before and after those."""

    K_v: int
    K_u: int
    weight: float
    classes: int
    features: int
    combine: bool

    @property
    def passes(self) -> tuple[Pass[Sent, Carry], ...]:
        batch = self.steps.batch
        return (
            self.head_pass(self.K_v),
            Pass(WholeShard(batch), self.moments_before, 1 / 3),
            Pass(LocalSteps(self.K_u, batch), self.step_aligned),
            Pass(WholeShard(batch), self.moments_after, 1 / 3),
        )

    def sends(self, state: State) -> Sent:
        return Sent(state.u, Installed(state.v), state.centroids)

    def start(self, sent: Sent, memory: Tensor | None) -> Carry:
        C, d = self.classes, self.features
        zeros = Moments(sent.u.new_zeros(C, d), sent.u.new_zeros(()), sent.u.new_zeros(C))
        return Carry(*self.model(sent, memory), zeros, zeros)

    def moments_before(self, problem: Problem, sent: Sent, carry: Carry, batch: Batch) -> Carry:
        """Client: adds the moments of the batch's features under the received extractor."""
        return carry._replace(before=_plus(carry.before, problem.apply(moments, carry.u, batch, self.classes)))

    def step_aligned(self, problem: Problem, sent: Sent, carry: Carry, batch: Batch) -> Carry:
        """Client: takes a step of the extractor that draws features to the centroids of their classes."""
        if sent.centroids is None:
            return self.extractor(problem, sent, carry, batch)  # type: ignore[no-any-return]
        known = sent.centroids.there_C[:, None]
        centroids = known * sent.centroids.c_Cd + (1 - known) * carry.before.centroids_Cd()
        g = problem.apply(aligned_gradient, carry.u, carry.v, centroids, self.weight, batch)
        return carry._replace(u=carry.u - self.steps.eta_u * clipped(g, self.steps.clip))

    def moments_after(self, problem: Problem, sent: Sent, carry: Carry, batch: Batch) -> Carry:
        """Client: adds the moments of the batch's features under the trained extractor."""
        return carry._replace(after=_plus(carry.after, problem.apply(moments, carry.u, batch, self.classes)))

    def finish(self, sent: Sent, carry: Carry) -> Reply[Upload]:
        before, n = carry.before, carry.after.rows_C.sum()
        V = (before.square - (before.h_Cd**2).sum()) / n
        own = Gathered(Statistics(carry.v, before.h_Cd, V) if self.combine else ())
        return Reply(Upload(carry.u, n * carry.after.h_Cd, carry.after.rows_C, own), carry.v)

    def absorb(self, state: State, mean: Upload, accepted: int) -> State:
        there_C = mean.rows_C > 0
        centroids = mean.sums_Cd / torch.where(there_C, mean.rows_C, 1)[:, None]
        mixed = _mixed(mean.own.of) if self.combine else {}
        return State(mean.u, state.v, Centroids(centroids, there_C.to(centroids.dtype)), mixed)


def _plus(a: Moments, b: Moments) -> Moments:
    return Moments(a.h_Cd + b.h_Cd, a.square + b.square, a.rows_C + b.rows_C)


def _mixed(of: Mapping[int, Statistics]) -> dict[int, Tensor]:
    """Returns the mixed head of each client."""
    h_SD = torch.stack([each.h_Cd.flatten() for each in of.values()]).double().numpy()
    V_S = torch.stack([each.V for each in of.values()]).double().numpy()
    heads = torch.stack([each.v for each in of.values()])
    alpha = torch.from_numpy(shares_of_heads(h_SD, V_S)).to(heads.dtype)
    return dict(zip(of, alpha @ heads, strict=True))


@dataclass(frozen=True)
class Delivery(Phase[State, Any, Tensor, tuple[()]]):
    """Sends clients the heads that are mixed for them."""

    cohort: Cohort

    name = "heads"
    remembers = True
    passes = ()

    def sends(self, state: State) -> Addressed:
        return Addressed(state.mixed, state.v)

    def start(self, sent: Tensor, memory: Tensor | None) -> Tensor:
        return sent

    def finish(self, sent: Tensor, carry: Tensor) -> Reply[tuple[()]]:
        return Reply((), carry)

    def absorb(self, state: State, mean: tuple[()], accepted: int) -> State:
        return state._replace(mixed={})


@record(frozen=True, kw_only=True, config=STRICT)
class FedPAC(Personal[State]):
    """FedPAC: a common extractor, features near common centroids, heads mixed for each client (Xu et al. 2023, Alg. 1).

    Attributes:
        classes, feature_size: C and d, supplied by the simulator.
        K_v, K_u: local steps of the head and of the extractor.
        eta_v, eta_u: their sizes.
        weight: lambda, of the features' distance from the centroids.
        combine: clients' heads are mixed; without, each keeps its own.
    """

    classes: PositiveInt
    feature_size: PositiveInt
    K_v: PositiveInt
    K_u: PositiveInt
    eta_v: PositiveFloat
    eta_u: PositiveFloat
    weight: NonNegativeFloat
    combine: bool = True

    def init(self, z: Point) -> State:
        return State(*self.split(z), None, {})

    def training(self, t: int) -> Update:
        steps = Steps(self.batch, self.eta_v, self.eta_u, self.clip)
        return Update(
            self.cohort, steps, K_v=self.K_v, K_u=self.K_u, weight=self.weight, classes=self.classes,
            features=self.feature_size, combine=self.combine,
        )  # fmt: skip

    def phases(self, t: int) -> tuple[Phase[State, Any, Any, Any], ...]:
        return (self.training(t), Delivery(Same())) if self.combine else (self.training(t),)

    def point(self, state: State) -> Point:
        return Point(torch.cat((state.u, state.v)), state.v.new_zeros(0))
