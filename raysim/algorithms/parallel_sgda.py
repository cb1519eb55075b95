"""Parallel SGDA: one descent-ascent step on the server from the mean of S clients' exact gradients.

The parallel version of single-machine SGDA (T. Lin, C. Jin, M. I. Jordan, "On gradient descent ascent for
nonconvex-concave minimax problems", ICML 2020), a baseline of J. Xie et al., "Efficient cross-device federated learning
algorithms for minimax problems", 2021, https://arxiv.org/abs/2105.14216v2, section 5. It is CD-MAGE with K = 1 and
without the update's exchange, since the first corrected local step is u_t itself.

| symbol | name | meaning | default's source |
|---|---|---|---|
| S | S | clients per round | 10 in section 5: equal upload to CD-MAGE with 5 |
| eta, gamma | eta, gamma | primal and dual step size | tuned per task, tables 1-3 |

The clients' gradients are over their whole shards. A round uploads S|z| (a gradient) and downloads S|z| floats.
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar

from pydantic import PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass as record

from raysim.algorithm import Algorithm, Rate
from raysim.algorithms import cd_mage
from raysim.phase import Uniform, WholeShard
from raysim.point import Point
from raysim.registry import STRICT


@dataclass(frozen=True, kw_only=True)
class Step(cd_mage.Collect):
    """Gradient collection, then the server's own step along u_t."""

    eta: float
    gamma: float

    def absorb(self, state: cd_mage.State, mean: Point, accepted: int) -> cd_mage.State:
        return replace(state, z=state.z.descent_ascent(mean, self.eta, self.gamma), z_prev=state.z, u=mean)


@record(frozen=True, kw_only=True, config=STRICT)
class ParallelSGDA(Algorithm[cd_mage.State]):
    """Parallel SGDA: the server steps along the mean exact gradient of S clients (Lin et al. 2020; Xie et al. 2021).

    Attributes:
        S: clients per round.
        eta, gamma: primal and dual step size.
        batch: rows that are taken together where a row's part in the gradient depends on the others', as with
            BatchNorm; None takes the whole shard.
    """

    rate: ClassVar[Rate] = Rate(Fraction(-2, 3), Fraction(-1, 3), "Xie et al. 2021, remark 1")

    S: PositiveInt
    eta: PositiveFloat
    gamma: PositiveFloat
    batch: PositiveInt | None = None

    def init(self, z: Point) -> cd_mage.State:
        return cd_mage.State(z, z_prev=z)

    def phases(self, t: int) -> tuple[Step]:
        return (Step(Uniform(self.S), WholeShard(self.batch), eta=self.eta, gamma=self.gamma),)

    def point(self, state: cd_mage.State) -> Point:
        return state.z
