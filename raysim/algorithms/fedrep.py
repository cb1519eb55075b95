"""FedRep, FedBABU and FedPer: a common extractor that is averaged, and heads that are the clients' own.

FedRep: L. Collins et al., "Exploiting shared representations for personalized federated learning", ICML 2021,
https://arxiv.org/abs/2102.07078, algorithm 1. FedBABU: J. Oh, S. Kim, S.-Y. Yun, "FedBABU: toward enhanced
representation for federated image classification", ICLR 2022, https://arxiv.org/abs/2106.06042, algorithm 1. FedPer: M.
G. Arivazhagan et al., "Federated learning with personalization layers", 2019, https://arxiv.org/abs/1912.00818.
Defaults are those that the FedReCo paper ran them with.

| symbol | name | meaning | default's source |
|---|---|---|---|
| M | S | clients per round | all 50, FedReCo, A.1 |
| | K_v, K_u | FedRep's local steps of the head, then of the extractor | an epoch each: FedReCo's code; FedRep: 10, 1 |
| | K | FedBABU's local steps | 2 epochs: FedReCo's code |
| | batch | rows of a minibatch | 48, FedReCo, A.2 |
| | eta_v, eta_u | local step sizes | 0.01, A.2 |
| | clip | largest norm of a gradient | 10, A.2 |

FedBABU leaves the head as it was at the start, the same for all, in all of training, and tunes the models (`tune_v`,
`tune_u`) before a test; with `personal_heads` it is FedPer: heads are trained along with extractors, and kept. What is
called FedBABU in FedReCo's code is FedPer. Clients count the same in the mean. A round downloads and uploads S|u|
floats.
"""

from dataclasses import dataclass
from typing import Any

import torch
from pydantic import PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass as record
from torch import Tensor

from raysim.algorithms.personal import CommonExtractor, Model, OwnHeads, Sent, Steps, clipped
from raysim.batch import Batch
from raysim.derivative import gradients
from raysim.phase import Installed, LocalSteps, Pass, Reply
from raysim.problems.classification import Classification
from raysim.problems.problem import Problem
from raysim.registry import STRICT


def model_gradient(problem: Classification, u: Tensor, v: Tensor, batch: Batch) -> Tensor:
    """Returns (grad_u f, grad_v f), one after the other, of shape (|u| + |v|,)."""

    def value(u: Tensor, v: Tensor) -> Tensor:
        return problem.cross_entropy(problem.logits(v, problem.features(u, batch)), batch)

    return torch.cat(gradients(value, u, v))


@dataclass(frozen=True)
class SharedExtractor(OwnHeads[Model, Sent, Any, Any]):
    """A phase from the received extractor and the client's own head, at whose end the extractor is sent."""

    def sends(self, state: Model) -> Sent:
        return Sent(state.u, Installed(state.v))

    def start(self, sent: Sent, memory: Tensor | None) -> Any:
        return self.model(sent, memory)

    def finish(self, sent: Sent, carry: Any) -> Reply[Any]:
        return Reply(carry.u, carry.v)

    def absorb(self, state: Model, mean: Any, accepted: int) -> Model:
        return state._replace(u=mean)


@dataclass(frozen=True, kw_only=True)
class HeadThenExtractor(SharedExtractor):
    """FedRep's phase: steps of the head, then of the extractor."""

    K_v: int
    K_u: int

    @property
    def passes(self) -> tuple[Pass[Sent, Model], ...]:
        return self.head_pass(self.K_v), self.extractor_pass(self.K_u)


@record(frozen=True, kw_only=True, config=STRICT)
class FedRep(CommonExtractor):
    """FedRep: a common extractor, personal heads that are trained before it (Collins et al. 2021, Alg. 1).

    Attributes:
        K_v, K_u: local steps of the head and of the extractor.
        eta_v, eta_u: their sizes.
    """

    K_v: PositiveInt
    K_u: PositiveInt
    eta_v: PositiveFloat
    eta_u: PositiveFloat

    def training(self, t: int) -> HeadThenExtractor:
        steps = Steps(self.batch, self.eta_v, self.eta_u, self.clip)
        return HeadThenExtractor(self.cohort, steps, K_v=self.K_v, K_u=self.K_u)


@dataclass(frozen=True, kw_only=True)
class FixedHead(SharedExtractor):
    """FedBABU's phase: steps of the extractor alone."""

    K: int

    remembers = False

    @property
    def passes(self) -> tuple[Pass[Sent, Model], ...]:
        return (self.extractor_pass(self.K),)

    def finish(self, sent: Sent, carry: Model) -> Reply[Tensor]:
        return Reply(carry.u)


@dataclass(frozen=True, kw_only=True)
class OwnHead(SharedExtractor):
    """FedPer's phase: steps of the extractor and the client's own head at once."""

    K: int

    @property
    def passes(self) -> tuple[Pass[Sent, Model], ...]:
        return (Pass(LocalSteps(self.K, self.steps.batch), self.step_both),)

    def step_both(self, problem: Problem, sent: Sent, carry: Model, batch: Batch) -> Model:
        """Client: takes a step of extractor and head at once."""
        g = clipped(problem.apply(model_gradient, carry.u, carry.v, batch), self.steps.clip)
        n = len(sent.u)
        return Model(carry.u - self.steps.eta_u * g[:n], carry.v - self.steps.eta_v * g[n:])


@record(frozen=True, kw_only=True, config=STRICT)
class FedBABU(CommonExtractor):
    """FedBABU: a common extractor under a head that never changes, or, as an option, FedPer (Oh et al. 2022, Alg. 1).

    Attributes:
        K: local steps.
        eta: their size, in tuning too.
        personal_heads: each client trains a head of its own along with the extractor, and keeps it: FedPer.
    """

    K: PositiveInt
    eta: PositiveFloat
    personal_heads: bool = False

    def training(self, t: int) -> SharedExtractor:
        kind = OwnHead if self.personal_heads else FixedHead
        return kind(self.cohort, Steps(self.batch, self.eta, self.eta, self.clip), K=self.K)
