"""CD-MA: cross-device min-max averaging, local SGDA with S of N clients a round.

J. Xie, C. Zhang, Z. Shen, W. Liu, H. Qian, "Efficient cross-device federated learning algorithms for minimax problems",
2021, https://arxiv.org/abs/2105.14216v2, Algorithm 4 (appendix A). With all clients it is Local SGDA (Y. Deng,
M. Mahdavi, AISTATS 2021).

| symbol | name | meaning | default's source |
|---|---|---|---|
| S | S | clients per round | 10 in section 5: equal upload to CD-MAGE with 5 |
| K, B | K, batch | local steps, rows of a minibatch | section 5.1 |
| eta, gamma | eta, gamma | primal and dual step size | tuned per task, tables 1-3 |

A round uploads S|z| and downloads S|z| floats.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from pydantic import PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass as record

from raysim.algorithm import Algorithm, Rate
from raysim.batch import Batch
from raysim.phase import LocalSteps, LocalUpdate, Reply, Uniform
from raysim.point import Point
from raysim.problems.problem import Problem
from raysim.registry import STRICT


@dataclass(frozen=True, kw_only=True)
class Update(LocalUpdate[Point, Point, Point, Point]):
    """K local descent-ascent steps from z_t; the server averages the last iterates."""

    eta: float
    gamma: float

    def sends(self, state: Point) -> Point:
        return state

    def start(self, sent: Point, memory: None) -> Point:
        return sent

    def step(self, problem: Problem, sent: Point, z: Point, batch: Batch) -> Point:
        return z.descent_ascent(problem.gradient(z, batch), self.eta, self.gamma)

    def finish(self, sent: Point, z: Point) -> Reply[Point]:
        return Reply(z)

    def absorb(self, state: Point, mean: Point, accepted: int) -> Point:
        return mean


@record(frozen=True, kw_only=True, config=STRICT)
class CDMA(Algorithm[Point]):
    """CD-MA: local descent-ascent steps, averaged over S sampled clients (Xie et al. 2021, Alg. 4).

    Attributes:
        S: clients per round.
        K: local steps.
        batch: rows of a minibatch.
        eta, gamma: primal and dual step size.
    """

    # The part of the bound in which there is S; the other is T^(-2/3), whatever S.
    rate: ClassVar[Rate] = Rate(Fraction(-1, 2), Fraction(-1, 2), "Xie et al. 2021, theorem 3")

    S: PositiveInt
    K: PositiveInt
    batch: PositiveInt
    eta: PositiveFloat
    gamma: PositiveFloat

    def init(self, z: Point) -> Point:
        return z

    def phases(self, t: int) -> tuple[Update]:
        return (Update(Uniform(self.S), LocalSteps(self.K, self.batch), eta=self.eta, gamma=self.gamma),)

    def point(self, state: Point) -> Point:
        return state
