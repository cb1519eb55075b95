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

from pydantic import PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass as record

from raysim.algorithms import cd_ma, fedsgda
from raysim.errors import ConfigError
from raysim.phase import Algorithm
from raysim.point import Point
from raysim.registry import STRICT


@record(frozen=True, kw_only=True, config=STRICT)
class LocalSGDA(Algorithm[Point]):
    """Local SGDA: local descent-ascent steps, averaged over all clients (Deng & Mahdavi 2021, Alg. 1).

    Attributes:
        clients: how many there are, supplied by the simulator.
        S: clients per round; all of them if none is given.
        K: local steps.
        batch: rows of a minibatch.
        eta, gamma: primal and dual step size.
    """

    clients: PositiveInt
    S: PositiveInt | None = None
    K: PositiveInt
    batch: PositiveInt
    eta: PositiveFloat
    gamma: PositiveFloat

    def init(self, z: Point) -> Point:
        return z

    def phases(self, t: int) -> tuple[cd_ma.Update]:
        return (cd_ma.Update(self.S or self.clients, self.K, self.batch, self.eta, self.gamma),)

    def point(self, state: Point) -> Point:
        return state


@record(frozen=True, kw_only=True, config=STRICT)
class LocalSGDAPlus(Algorithm[fedsgda.State]):
    """Local SGDA+: local steps whose dual gradients are taken at a snapshot of x (Deng & Mahdavi 2021, Alg. 2).

    Attributes:
        clients: how many there are, supplied by the simulator.
        S: clients per round; all of them if none is given.
        K: local steps.
        batch: rows of a minibatch.
        eta, gamma: primal and dual step size.
        snapshot_steps: local steps between snapshots, a multiple of K; K if none is given.
        clients_keep_snapshot: as for FedSGDA+.
    """

    clients: PositiveInt
    S: PositiveInt | None = None
    K: PositiveInt
    batch: PositiveInt
    eta: PositiveFloat
    gamma: PositiveFloat
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
        return (kind(self.S or self.clients, self.K, self.batch, self.eta, self.gamma, period),)

    def point(self, state: fedsgda.State) -> Point:
        return state.z
