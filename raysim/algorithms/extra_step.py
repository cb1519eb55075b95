"""Extra Step Local SGD: local extra-gradient steps, averaged over S sampled clients.

A. Beznosikov, V. Samokhin, A. Gasnikov, "Distributed saddle-point problems: lower bounds, optimal algorithms and
federated GANs", 2020, https://arxiv.org/abs/2010.13112 (Extra Step Local SGD); a baseline of J. Xie et al., "Efficient
cross-device federated learning algorithms for minimax problems", 2021, https://arxiv.org/abs/2105.14216v2, section 5.

| symbol | name | meaning | default's source |
|---|---|---|---|
| S | S | clients per round | 10 in section 5: equal upload to CD-MAGE with 5 |
| K, B | K, batch | extra-gradient steps, rows of a minibatch | section 5.1 |
| eta_l | eta | step size of both blocks | tuned per task, tables 1-3 |

Each of the K steps takes two minibatches and two gradients: 2K in a round, twice as many as CD-MA. A round uploads and
downloads S|z| floats.
"""

from dataclasses import dataclass
from typing import NamedTuple

from pydantic import PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass as record

from raysim.algorithm import Algorithm
from raysim.batch import Batch
from raysim.phase import LocalSteps, LocalUpdate, Reply, Uniform
from raysim.point import Point
from raysim.problems.problem import Problem
from raysim.registry import STRICT


class Carry(NamedTuple):
    """The local point z, and between the two halves of a step the point extrapolated from it."""

    z: Point
    ahead: Point | None


@dataclass(frozen=True, kw_only=True)
class Update(LocalUpdate[Point, Point, Carry, Point]):
    """K extra-gradient steps from z_t; the server averages the last z."""

    eta: float

    def sends(self, state: Point) -> Point:
        return state

    def start(self, sent: Point, memory: None) -> Carry:
        return Carry(sent, None)

    def step(self, problem: Problem, sent: Point, carry: Carry, batch: Batch) -> Carry:
        if carry.ahead is None:
            return carry._replace(ahead=carry.z.descent_ascent(problem.gradient(carry.z, batch), self.eta, self.eta))
        g = problem.gradient(carry.ahead, batch)
        return Carry(carry.z.descent_ascent(g, self.eta, self.eta), None)

    def finish(self, sent: Point, carry: Carry) -> Reply[Point]:
        return Reply(carry.z)

    def absorb(self, state: Point, mean: Point, accepted: int) -> Point:
        return mean


@record(frozen=True, kw_only=True, config=STRICT)
class ExtraStepLocalSGD(Algorithm[Point]):
    """Extra Step Local SGD: K local extra-gradient steps, averaged over S clients (Beznosikov et al. 2020).

    Attributes:
        S: clients per round.
        K: extra-gradient steps, of two minibatches each.
        batch: rows of a minibatch.
        eta: step size of both blocks.
    """

    S: PositiveInt
    K: PositiveInt
    batch: PositiveInt
    eta: PositiveFloat

    def init(self, z: Point) -> Point:
        return z

    def phases(self, t: int) -> tuple[Update]:
        return (Update(Uniform(self.S), LocalSteps(2 * self.K, self.batch), eta=self.eta),)

    def point(self, state: Point) -> Point:
        return state
