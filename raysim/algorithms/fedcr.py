"""FedCR: a common stochastic extractor whose codes are held to common distributions of the classes, and personal heads.

H. Zhang et al., "FedCR: personalized federated learning based on across-client common representation with conditional
mutual information regularization", ICML 2023, and its public code (github.com/haozzh/FedCR). It runs on the problem
`stochastic_classification`. Defaults are those that the FedReCo paper ran it with, section A.2.

| symbol | name | meaning | default's source |
|---|---|---|---|
| M | S | clients per round | all 50, FedReCo, A.1 |
| | K | local steps, of extractor and head at once | 2 epochs: FedReCo's code |
| | batch | rows of a minibatch | 48, FedReCo, A.2 |
| | eta | local step size | 0.01, A.2 |
| beta | weight | of the distance from the classes' distributions | 0.001, A.2 |
| beta_2 | beta_2 | weight of the new distributions | 1: FedCR's README; 0 in its code, which leaves them as they are |
| | clip | largest norm of a gradient | 10, A.2 |
| | reverse_kl | KL(r_b || q) in place of KL(q || r_b) | no, as the information bound has it; FedCR's code has it |

The local objective is the cross-entropy over draws from q(. | a) = N(mu(a), sigma(a)^2), plus beta E KL(q(. | a) ||
r_b), r_b = N(m_b, s_b^2) being the class's distribution, standard normal in the first round. A client's experts are its
rows' q under its new extractor, and r_b is the product of those of all clients and of the standard normal: its
precision is 1 + sum 1 / sigma^2 and its mean the sum of mu / sigma^2 over that, so that it is the narrower the more
rows there are. KL(q || r_b) then is of the order of d / 2 times a class's rows, and hardly anything else is trained:
with 50 clients of 980 rows it came to 4e6, and the divergence the other way round to 2e3 (docs/results.md). FedCR's
code multiplies the q of the last epoch, while the extractor still moves. For d numbers in a code, a round downloads
S(|u| + 2 C d) floats, the first one S|u|, and uploads S(|u| + 2 C d).
"""

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass as record
from torch import Tensor
from torch.nn.functional import one_hot

from raysim.algorithms.personal import OwnHeads, Personal, Steps, clipped
from raysim.batch import Batch
from raysim.derivative import gradients
from raysim.phase import Installed, LocalSteps, Pass, Reply, WholeShard
from raysim.point import Point
from raysim.problems.problem import Problem
from raysim.problems.stochastic import StochasticClassification
from raysim.registry import STRICT


class Gaussians(NamedTuple):
    """Gaussians of the classes: means and standard deviations (C, d)."""

    mean_Cd: Tensor
    std_Cd: Tensor


class Experts(NamedTuple):
    """Products of Gaussians by class: sums of precisions, and of means times them, (C, d)."""

    precision_Cd: Tensor
    weighted_Cd: Tensor


def divergence(mean: Tensor, std: Tensor, of_mean: Tensor, of_std: Tensor) -> Tensor:
    """Returns KL(N(mean, std^2) || N(of_mean, of_std^2)), summed over the last axis."""
    squares = (std**2 + (mean - of_mean) ** 2) / of_std**2
    return (torch.log(of_std / std) + squares / 2 - 1 / 2).sum(-1)


def bottleneck_gradients(
    problem: StochasticClassification,
    u: Tensor,
    v: Tensor,
    prior: Gaussians,
    weight: float,
    reverse: bool,
    batch: Batch,
) -> tuple[Tensor, Tensor]:
    """Returns the gradients by u and v of the cross-entropy over draws plus weight times the divergence."""
    # One-hot rows instead of indices, since this function is differentiated and mapped over clients.
    classes = one_hot(batch.labels, len(prior.mean_Cd)).to(prior.mean_Cd.dtype)
    of_class = (classes @ prior.mean_Cd, classes @ prior.std_Cd)

    def value(u: Tensor, v: Tensor) -> Tensor:
        of_row = problem.encoded(problem.features(u, batch))
        divergence_B = divergence(*of_class, *of_row) if reverse else divergence(*of_row, *of_class)
        return problem.risk(v, *of_row, batch) + weight * (batch.weights @ divergence_B)

    of_u, of_v = gradients(value, u, v)
    return of_u, of_v


def experts(problem: StochasticClassification, u: Tensor, batch: Batch, classes: int) -> Experts:
    """Returns the product of the rows' codes, by class."""
    mean, std = problem.encoded(problem.features(u, batch))
    of_BC = one_hot(batch.labels, classes).to(mean.dtype) * (batch.weights > 0)[:, None]
    return Experts(of_BC.mT @ std**-2, of_BC.mT @ (mean * std**-2))


class State(NamedTuple):
    """The common extractor, the head that everybody begins with, and the classes; None: standard normal."""

    u: Tensor
    v: Tensor
    prior: Gaussians | None


class Sent(NamedTuple):
    """The message: the state, but for the first head, which is installed and not sent."""

    u: Tensor
    v: Installed
    prior: Gaussians | None


class Carry(NamedTuple):
    """Carries the client's model, and the product of its experts so far."""

    u: Tensor
    v: Tensor
    experts: Experts


class Upload(NamedTuple):
    """The upload: the extractor, and the client's experts."""

    u: Tensor
    experts: Experts


@dataclass(frozen=True, kw_only=True)
class Update(OwnHeads[State, Sent, Carry, Upload]):
    """Takes steps of extractor and head at once, then collects the Gaussians of the codes as experts."""

    K: int
    weight: float
    beta_2: float
    reverse: bool
    classes: int
    code: int

    @property
    def passes(self) -> tuple[Pass[Sent, Carry], ...]:
        batch = self.steps.batch
        return Pass(LocalSteps(self.K, batch), self.step_both), Pass(WholeShard(batch), self.collect_experts, 1 / 3)

    def sends(self, state: State) -> Sent:
        return Sent(state.u, Installed(state.v), state.prior)

    def start(self, sent: Sent, memory: Tensor | None) -> Carry:
        zeros = sent.u.new_zeros(self.classes, self.code)
        return Carry(*self.model(sent, memory), Experts(zeros, zeros))

    def step_both(self, problem: Problem, sent: Sent, carry: Any, batch: Batch) -> Any:
        """Client: takes a step of extractor and head at once."""
        g = clipped(torch.cat(self._gradients(problem, sent, carry, batch)), self.steps.clip)
        n = len(sent.u)
        return carry._replace(u=carry.u - self.steps.eta_u * g[:n], v=carry.v - self.steps.eta_v * g[n:])

    def head(self, problem: Problem, sent: Sent, carry: Any, batch: Batch) -> Any:
        _, g = self._gradients(problem, sent, carry, batch)
        return carry._replace(v=carry.v - self.steps.eta_v * clipped(g, self.steps.clip))

    def extractor(self, problem: Problem, sent: Sent, carry: Any, batch: Batch) -> Any:
        g, _ = self._gradients(problem, sent, carry, batch)
        return carry._replace(u=carry.u - self.steps.eta_u * clipped(g, self.steps.clip))

    def collect_experts(self, problem: Problem, sent: Sent, carry: Carry, batch: Batch) -> Carry:
        """Client: multiplies the Gaussians of the batch's rows into the products of its classes."""
        of_batch = problem.apply(experts, carry.u, batch, self.classes)
        return carry._replace(experts=Experts(*(a + b for a, b in zip(carry.experts, of_batch, strict=True))))

    def finish(self, sent: Sent, carry: Carry) -> Reply[Upload]:
        return Reply(Upload(carry.u, carry.experts), carry.v)

    def absorb(self, state: State, mean: Upload, accepted: int) -> State:
        precision = 1 + accepted * mean.experts.precision_Cd
        new = Gaussians(accepted * mean.experts.weighted_Cd / precision, precision**-0.5)
        old = state.prior or Gaussians(torch.zeros_like(precision), torch.ones_like(precision))
        mixed = (a + self.beta_2 * (b - a) for a, b in zip(old, new, strict=True))
        return State(mean.u, state.v, Gaussians(*mixed))

    def _gradients(self, problem: Problem, sent: Sent, carry: Any, batch: Batch) -> Any:
        zeros = sent.u.new_zeros(self.classes, self.code)
        prior = sent.prior or Gaussians(zeros, zeros + 1)
        return problem.apply(bottleneck_gradients, carry.u, carry.v, prior, self.weight, self.reverse, batch)


@record(frozen=True, kw_only=True, config=STRICT)
class FedCR(Personal[State]):
    """FedCR: a common stochastic extractor, codes held to common distributions, personal heads (Zhang et al. 2023).

    Attributes:
        classes, code_size: C and d, supplied by the simulator.
        K: local steps.
        eta: their size, in tuning too.
        weight: beta, of the divergence.
        beta_2: weight of new class distributions against the old.
        reverse_kl: the divergence of the class's distribution from the row's, in place of that of the row's from it.
    """

    classes: PositiveInt
    code_size: PositiveInt
    K: PositiveInt
    eta: PositiveFloat
    weight: NonNegativeFloat
    beta_2: Annotated[float, Field(ge=0, le=1)] = 1.0
    reverse_kl: bool = False

    def init(self, z: Point) -> State:
        return State(*self.split(z), None)

    def training(self, t: int) -> Update:
        steps = Steps(self.batch, self.eta, self.eta, self.clip)
        return Update(
            self.cohort, steps, K=self.K, weight=self.weight, beta_2=self.beta_2, reverse=self.reverse_kl,
            classes=self.classes, code=self.code_size,
        )  # fmt: skip

    def point(self, state: State) -> Point:
        return Point(torch.cat((state.u, state.v)), state.v.new_zeros(0))
