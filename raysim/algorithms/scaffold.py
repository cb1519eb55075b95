"""SCAFFOLD: local steps corrected by control variates that clients keep.

S. P. Karimireddy, S. Kale, M. Mohri, S. Reddi, S. Stich, A. T. Suresh, "SCAFFOLD: stochastic controlled averaging for
federated learning", ICML 2020, https://arxiv.org/abs/1910.06378, Algorithm 1 with option II; a baseline of Zhang et al.
2023 (LocalSCGDAM), section 6.2. CODASCA is this in stages around a centre, and begun with it here.

| symbol | name | meaning | default's source |
|---|---|---|---|
| N, S | clients, S | all clients, clients per round | |
| K | K | local steps | |
| | batch | rows of a minibatch | |
| eta_l, eta_g | eta, eta_g | local step size, the server's step | eta_g 1, section 7 |
| c_i, c | | control variates of a client and of the server | 0 at first |
| | stage_steps, decay | when and by what eta is divided | half and a quarter, 10: Zhang et al., B |

c_i is the mean of the K stochastic gradients, which is what option II amounts to. It is a method of minimisation; where
a problem has a y, that ascends with the same step and its own control variate. A round uploads and downloads 2S|z|
floats.
"""

from pydantic import PositiveFloat
from pydantic.dataclasses import dataclass as record

from raysim.algorithms.coda import ControlledUpdate, State
from raysim.algorithms.settings import Staged
from raysim.point import Point
from raysim.registry import STRICT


@record(frozen=True, kw_only=True, config=STRICT)
class SCAFFOLD(Staged[State]):
    """SCAFFOLD: local SGD with control variates (Karimireddy et al. 2020, Alg. 1).

    Attributes:
        eta: local step size.
        eta_g: the server's step towards the mean of the clients' points.
    """

    eta: PositiveFloat
    eta_g: PositiveFloat = 1.0

    def init(self, z: Point) -> State:
        return State(z, z.x, c=z.zeros_like())

    def phases(self, t: int) -> tuple[ControlledUpdate]:
        stage = self.stage(t)
        update = ControlledUpdate(
            self.cohort, self.steps, eta=self.eta / self.decay**stage, theta=0.0, stage=stage,
            clients=self.clients, eta_g=self.eta_g, dual_control=True,
        )  # fmt: skip
        return (update,)

    def point(self, state: State) -> Point:
        return state.z
