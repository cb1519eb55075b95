"""FedAvg on a classifier, Ditto, and training alone: methods whose clients step the whole of their models.

FedAvg: H. B. McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017,
https://arxiv.org/abs/1602.05629, algorithm 1; FedAvg-FT is it with `tune_v`, and FedAvg with local differential privacy
that of the FedReco paper, A.3. Ditto: T. Li et al., "Ditto: fair and robust federated learning through
personalization", ICML 2021, https://arxiv.org/abs/2012.04221, algorithm 1. Defaults are those that the FedReCo paper
ran them with.

| symbol | name | meaning | default's source |
|---|---|---|---|
| M | S | clients per round | all 50, FedReCo, A.1 |
| K | K | local steps | 2 epochs in FedReCo's code |
| | batch | rows of a minibatch | 48, A.2 |
| eta | eta | local step size | 0.01, A.2 |
| lambda | weight | of Ditto's personal models' distance from the common one | 0.01, A.2 |
| Phi | clip | largest norm of a gradient | 10, A.2 |
| epsilon, delta, Phi | privacy | local differential privacy of what is sent | none; A.3 |

Clients send what they have moved by, w_t - w_i^K, so that this may be made private, and the server subtracts the mean,
clients counting the same. With privacy it clips the mean to the norm that the clients clip to. A round downloads and
uploads S|x| floats; training alone, none.

The two models of a Ditto client are stepped on the same minibatches, the personal one by its cross-entropy's gradient
plus lambda (v_i - w_t), which is clipped as a whole; w_t is what was received. Clients begin with the w_t that they are
first sent.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass as record
from torch import Tensor

from raysim.algorithms.personal import Model, Personal, Steps, Training, clipped
from raysim.batch import Batch
from raysim.phase import Installed, LocalSteps, Pass, Reply
from raysim.point import Point
from raysim.privacy import LocalPrivacy
from raysim.problems.problem import Problem
from raysim.registry import STRICT


@dataclass(frozen=True, kw_only=True)
class WholeModel(Training[Point, Any, Any, Any]):
    """A phase whose clients take K steps of whole models. The carry begins with a point.

    Attributes:
        K: number of steps.
        extractor_size: how many of the point's numbers, its first, are the extractor's.
    """

    K: int
    extractor_size: int

    @property
    def passes(self) -> tuple[Pass[Any, Any], ...]:
        return (Pass(LocalSteps(self.K, self.steps.batch), self.step),)

    def sends(self, state: Point) -> Any:
        return state

    def step(self, problem: Problem, sent: Any, carry: Any, batch: Batch) -> Any:
        """Client: returns the carry after one step."""
        return self.stepped(problem, carry, batch)

    def stepped(self, problem: Problem, z: Point, batch: Batch) -> Point:
        """Returns z after a step on its cross-entropy."""
        g = clipped(problem.gradient(z, batch).x, self.steps.clip)
        return Point(z.x - self.steps.eta_u * g, z.y)

    def split(self, z: Point) -> Model:
        """Returns the extractor and the head of z."""
        return Model(z.x[: self.extractor_size], z.x[self.extractor_size :])


@record(frozen=True, kw_only=True, config=STRICT)
class WholeModels(Personal[Point]):
    """Settings of methods whose clients step the whole of their models.

    Attributes:
        K: local steps.
        eta: their size.
    """

    K: PositiveInt
    eta: PositiveFloat

    def init(self, z: Point) -> Point:
        return z

    def point(self, state: Point) -> Point:
        return state

    @property
    def steps(self) -> Steps:
        """The settings of the local steps, the same for heads and extractors."""
        return Steps(self.batch, self.eta, self.eta, self.clip)


@dataclass(frozen=True, kw_only=True)
class Average(WholeModel):
    """FedAvg's phase: clients start from the received model and upload by how much it has moved."""

    private: LocalPrivacy | None

    @property
    def privacy(self) -> LocalPrivacy | None:
        return self.private

    def model(self, sent: Point, memory: Any) -> Model:
        return self.split(sent)

    def start(self, sent: Point, memory: Any) -> Point:
        return sent

    def finish(self, sent: Point, carry: Point) -> Reply[Tensor]:
        return Reply(sent.x - carry.x)

    def absorb(self, state: Point, mean: Tensor, accepted: int) -> Point:
        return Point(state.x - (clipped(mean, self.private.clip) if self.private else mean), state.y)


@record(frozen=True, kw_only=True, config=STRICT)
class FedAvg(WholeModels):
    """FedAvg on a classifier: everybody has the mean of the clients' models, or tunes it (McMahan et al. 2017, Alg. 1).

    Attributes:
        privacy: of the difference that is sent: {epsilon, delta, clip}; none without.
    """

    privacy: LocalPrivacy | None = None

    def training(self, t: int) -> Average:
        return Average(
            self.cohort, self.steps, K=self.K, extractor_size=self.extractor_size, private=self.privacy
        )  # fmt: skip


class Two(NamedTuple):
    """Carries the common model on its way, and the client's own."""

    z: Point
    own: Point


@dataclass(frozen=True, kw_only=True)
class Regularised(WholeModel):
    """Ditto's phase: FedAvg, and with it steps of the client's own model."""

    weight: float

    remembers = True

    @property
    def passes(self) -> tuple[Pass[Point, Two], ...]:
        return (Pass(LocalSteps(self.K, self.steps.batch), self.step, 2.0),)

    def model(self, sent: Point, memory: Point | None) -> Model:
        return self.split(sent if memory is None else memory)

    def start(self, sent: Point, memory: Point | None) -> Two:
        return Two(sent, sent if memory is None else memory)

    def step(self, problem: Problem, sent: Point, carry: Two, batch: Batch) -> Two:
        z, own = carry
        g = problem.gradient(own, batch).x + self.weight * (own.x - sent.x)
        own = Point(own.x - self.steps.eta_u * clipped(g, self.steps.clip), own.y)
        return Two(self.stepped(problem, z, batch), own)

    def finish(self, sent: Point, carry: Two) -> Reply[Tensor]:
        return Reply(sent.x - carry.z.x, carry.own)

    def absorb(self, state: Point, mean: Tensor, accepted: int) -> Point:
        return Point(state.x - mean, state.y)


@record(frozen=True, kw_only=True, config=STRICT)
class Ditto(WholeModels):
    """Ditto: FedAvg, and personal models that stay near its (Li et al. 2021, Alg. 1).

    Attributes:
        K: local steps, of each of a client's two models.
        weight: lambda, of the distance from the common model.
    """

    weight: NonNegativeFloat

    def training(self, t: int) -> Regularised:
        return Regularised(
            self.cohort, self.steps, K=self.K, extractor_size=self.extractor_size, weight=self.weight
        )  # fmt: skip


@dataclass(frozen=True)
class Alone(WholeModel):
    """Takes steps of the client's own model, of which nothing is sent."""

    remembers = True

    def sends(self, state: Point) -> Installed:
        return Installed(state)

    def model(self, sent: Installed, memory: Point | None) -> Model:
        return self.split(sent.of if memory is None else memory)

    def start(self, sent: Installed, memory: Point | None) -> Point:
        return sent.of if memory is None else memory

    def finish(self, sent: Installed, carry: Point) -> Reply[tuple[()]]:
        return Reply((), carry)

    def absorb(self, state: Point, mean: tuple[()], accepted: int) -> Point:
        return state


@record(frozen=True, kw_only=True, config=STRICT)
class LocalOnly(WholeModels):
    """Training alone: every client trains its own model, the baseline that personalised methods are to beat."""

    def training(self, t: int) -> Alone:
        return Alone(self.cohort, self.steps, K=self.K, extractor_size=self.extractor_size)
