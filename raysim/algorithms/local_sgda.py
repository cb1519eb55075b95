"""Local SGDA and Local SGDA+: local descent-ascent of all clients or of S, the latter against a snapshot of x.

Y. Deng, M. Mahdavi, "Local stochastic gradient descent ascent: convergence analysis and communication efficiency",
AISTATS 2021, https://arxiv.org/abs/2102.13152, Algorithms 1 and 2. Local SGDA is CD-MA with all clients; Local SGDA+ is
FedSGDA+ without server steps, its snapshot counted in iterations.

| symbol | name | meaning | default's source |
|---|---|---|---|
| N, S | S | clients per round | all in the paper; 10 in Xie et al. 2021 |
| tau, B | K, batch | local steps, rows of a minibatch | Xie et al. 2021, section 5.1 |
| eta_x, eta_y | eta, gamma | primal and dual step size | tuned per task |
| S | snapshot_steps | local steps between snapshots of x | K: Xie et al. 2021 refresh it each round |

A round uploads S|z| and downloads S|z| floats, and S|x| more while the snapshot differs from x_t. The authors' code of
Xie et al. moves the snapshot along with x in every local step, which makes it CD-MA; that is not what is here.
"""

from pydantic import PositiveInt
from pydantic.dataclasses import dataclass as record

from raysim.algorithms import cd_ma, fedsgda
from raysim.algorithms.settings import DescentAscent
from raysim.errors import ConfigError
from raysim.point import Point
from raysim.registry import STRICT


@record(frozen=True, kw_only=True, config=STRICT)
class LocalSGDA(DescentAscent[Point]):
    """Local SGDA: local descent-ascent steps, averaged over all clients (Deng & Mahdavi 2021, Alg. 1)."""

    def init(self, z: Point) -> Point:
        return z

    def phases(self, t: int) -> tuple[cd_ma.Update]:
        return (cd_ma.Update(self.cohort, self.steps, eta=self.eta, gamma=self.gamma),)

    def point(self, state: Point) -> Point:
        return state


@record(frozen=True, kw_only=True, config=STRICT)
class LocalSGDAPlus(DescentAscent[fedsgda.State]):
    """Local SGDA+: local steps whose dual gradients are taken at a snapshot of x (Deng & Mahdavi 2021, Alg. 2).

    Attributes:
        snapshot_steps: local steps between snapshots, a multiple of K; K if none is given.
        clients_keep_snapshot: clients keep the snapshot, which costs no bytes; it is sent otherwise. Needs all clients
            in every round.
    """

    snapshot_steps: PositiveInt | None = None
    clients_keep_snapshot: bool = False

    def __post_init__(self) -> None:
        steps = self.snapshot_steps or self.K
        if steps % self.K:
            raise ConfigError(
                "algorithm.snapshot_steps",
                f"{steps} is no multiple of K = {self.K}, and x is only known to all after every K steps; take "
                f"{self.K * max(1, round(steps / self.K))}",
            )
        fedsgda.check_kept(self.clients_keep_snapshot, self.S, self.clients)

    def init(self, z: Point) -> fedsgda.State:
        return fedsgda.State(z, z.x)

    def phases(self, t: int) -> tuple[fedsgda.Update]:
        kind = fedsgda.KeepingUpdate if self.clients_keep_snapshot else fedsgda.Update
        period = (self.snapshot_steps or self.K) // self.K
        return (kind(self.cohort, self.steps, eta=self.eta, gamma=self.gamma, period=period),)

    def point(self, state: fedsgda.State) -> Point:
        return state.z
