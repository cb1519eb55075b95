"""FedGDA-GT: local descent-ascent steps on whole shards with gradient tracking.

Z. Sun, E. Wei, "A communication-efficient algorithm with linear convergence for federated minimax learning",
NeurIPS 2022, https://arxiv.org/abs/2206.01132, Algorithm 2.

| symbol | name | meaning | default's source |
|---|---|---|---|
| m | S | clients per round, the same in both phases | all in the paper |
| K | K | local steps | |
| eta | eta | step size of both blocks | |

It is CD-MAGE with exact local gradients in the local steps too, the same clients in both phases and one step size. A
round uploads and downloads 2S|z| floats.
"""

from pydantic import PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass as record

from raysim.algorithms import cd_mage
from raysim.algorithms.settings import Sampled
from raysim.phase import LocalSteps, Same, WholeShard
from raysim.point import Point
from raysim.registry import STRICT


@record(frozen=True, kw_only=True, config=STRICT)
class FedGDAGT(Sampled[cd_mage.State]):
    """FedGDA-GT: exact local steps corrected by the mean gradient (Sun & Wei 2022, Alg. 2).

    Attributes:
        K: local steps, each on the whole shard.
        eta: step size of both blocks.
    """

    K: PositiveInt
    eta: PositiveFloat

    def init(self, z: Point) -> cd_mage.State:
        return cd_mage.State(z, z_prev=z)

    def phases(self, t: int) -> tuple[cd_mage.Collect, cd_mage.Update]:
        update = cd_mage.Update(Same(), LocalSteps(self.K, None), eta=self.eta, gamma=self.eta)
        return cd_mage.Collect(self.cohort, WholeShard()), update

    def point(self, state: cd_mage.State) -> Point:
        return state.z
