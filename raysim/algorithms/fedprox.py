"""FedProx: local steps that a proximal term holds near the global model.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith, "Federated optimization in heterogeneous networks",
MLSys 2020, https://arxiv.org/abs/1812.06127, Algorithm 2; a baseline of Zhang et al. 2023 (LocalSCGDAM), section 6.2.

| symbol | name | meaning | default's source |
|---|---|---|---|
| K | S | clients per round | |
| | K, batch | local steps, rows of a minibatch | |
| | eta | step size | |
| mu | mu | weight of the proximal term | 0.001, 0.01, 0.1, 1 in section 5 |
| | stage_steps, decay | when and by what eta is divided | half and a quarter, 10: Zhang et al., B |

Clients take K steps each, without the varying amounts of work of the paper's section 3.2. It is a method of
minimisation; where a problem has a y, that ascends with the same step and is held near the global y. A round uploads
and downloads S|z| floats.
"""

from dataclasses import dataclass

from pydantic import NonNegativeFloat, PositiveFloat
from pydantic.dataclasses import dataclass as record

from raysim.algorithms.settings import Staged
from raysim.batch import Batch
from raysim.phase import LocalUpdate, Reply
from raysim.point import Point
from raysim.problems.problem import Problem
from raysim.registry import STRICT


@dataclass(frozen=True, kw_only=True)
class Update(LocalUpdate[Point, Point, Point, Point]):
    """K local steps from z_t, drawn back to it; the server averages the last iterates."""

    eta: float
    mu: float

    def sends(self, state: Point) -> Point:
        return state

    def start(self, sent: Point, memory: None) -> Point:
        return sent

    def step(self, problem: Problem, sent: Point, z: Point, batch: Batch) -> Point:
        g, moved = problem.gradient(z, batch), z - sent
        d = Point(g.x + self.mu * moved.x, g.y - self.mu * moved.y)  # x descends its term, y ascends the negative
        return z.descent_ascent(d, self.eta, self.eta)

    def finish(self, sent: Point, z: Point) -> Reply[Point]:
        return Reply(z)

    def absorb(self, state: Point, mean: Point, accepted: int) -> Point:
        return mean


@record(frozen=True, kw_only=True, config=STRICT)
class FedProx(Staged[Point]):
    """FedProx: local SGD with a proximal term around the global model (Li et al. 2020, Alg. 2).

    Attributes:
        eta: step size.
        mu: weight of the proximal term.
    """

    eta: PositiveFloat
    mu: NonNegativeFloat

    def init(self, z: Point) -> Point:
        return z

    def phases(self, t: int) -> tuple[Update]:
        return (Update(self.cohort, self.steps, eta=self.eta / self.decay ** self.stage(t), mu=self.mu),)

    def point(self, state: Point) -> Point:
        return state
