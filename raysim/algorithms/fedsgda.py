"""FedSGDA+ and FedSGDA-M: local descent-ascent with server steps and a snapshot, or with variance-reduced momentum.

X. Wu, J. Sun, Z. Hu, A. Zhang, H. Huang, "Solving a class of non-convex minimax optimization in federated learning",
NeurIPS 2023, https://arxiv.org/abs/2310.03613, Algorithms 1 (FedSGDA+) and 2 (FedSGDA-M).

| symbol | name | meaning | default's source |
|---|---|---|---|
| N | S | clients per round | all in the paper |
| Q, b | K, batch | local steps, rows of a minibatch | section 4: Q in 10, 20, 50, 100; b = 50 |
| c-hat, c (Alg. 1), c-hat eta, c eta (Alg. 2) | eta, gamma | local primal and dual step size | grids, appendix D |
| eta_x, eta_y | eta_g, gamma_g | the server's primal and dual step | 1: Local SGDA+; grid 0.1 to 2 |
| S | snapshot_rounds | rounds between snapshots of x | 1, 5, 10 in section 4 |
| alpha, beta | alpha, beta | weight of the new primal and dual gradient | grid 0.1, 0.5, 0.9 |
| B | first_batch | rows of the first gradient | not given; 10 batches |

FedSGDA+ uploads S|z| and downloads S|z| floats a round, and S|x| more while the snapshot differs from x_t and clients
do not keep it. FedSGDA-M uploads and downloads 2S|z|, but for the first download, S|z|.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from pydantic import PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass as record
from torch import Tensor

from raysim.algorithms.settings import DescentAscent, Share
from raysim.batch import Batch
from raysim.errors import ConfigError
from raysim.phase import LocalSteps, LocalUpdate, Reply
from raysim.point import Point
from raysim.problems.problem import Problem
from raysim.registry import STRICT


@dataclass(frozen=True)
class State:
    """z_t, the snapshot of x, and how many rounds were completed."""

    z: Point
    snapshot: Tensor
    rounds: int = 0


class Sent(NamedTuple):
    """The message: z_t, the snapshot unless it is x_t or known to the clients, and the rounds at its time and now."""

    z: Point
    snapshot: Tensor | None
    taken: int
    rounds: int


class Carry(NamedTuple):
    """The local point, and the snapshot."""

    z: Point
    snapshot: Tensor


@dataclass(frozen=True, kw_only=True)
class Update(LocalUpdate[State, Sent, Carry, Point]):
    """FedSGDA+: K local steps, y's gradients taken at the snapshot of x; the server steps towards their mean."""

    eta: float
    gamma: float
    period: int
    eta_g: float = 1.0
    gamma_g: float = 1.0

    @property
    def evaluations(self) -> float:
        # At k = 0 of a fresh snapshot the two points coincide.
        return 2 - 1 / self.work.K if self.period == 1 else 2.0

    def sends(self, state: State) -> Sent:
        age = state.rounds % self.period
        return Sent(state.z, state.snapshot if age else None, state.rounds - age, state.rounds)

    def start(self, sent: Sent, memory: None) -> Carry:
        return Carry(sent.z, sent.z.x if sent.snapshot is None else sent.snapshot)

    def step(self, problem: Problem, sent: Sent, carry: Carry, batch: Batch) -> Carry:
        z, snapshot = carry
        dx = problem.gradient(z, batch).x
        dy = problem.gradient(Point(snapshot, z.y), batch).y
        return Carry(z.descent_ascent(Point(dx, dy), self.eta, self.gamma), snapshot)

    def finish(self, sent: Sent, carry: Carry) -> Reply[Point]:
        return Reply(carry.z)

    def absorb(self, state: State, mean: Point, accepted: int) -> State:
        z, rounds = state.z.towards(mean, self.eta_g, self.gamma_g), state.rounds + 1
        return State(z, z.x if rounds % self.period == 0 else state.snapshot, rounds)


@dataclass(frozen=True)
class KeepingUpdate(Update):
    """FedSGDA+ with clients that keep the snapshot themselves: it once was the x that all of them were sent."""

    remembers: ClassVar[bool] = True

    def sends(self, state: State) -> Sent:
        return super().sends(state)._replace(snapshot=None)

    def check(self, sent: Sent, memory: tuple[int, Tensor] | None) -> None:
        if sent.taken != sent.rounds and (memory is None or memory[0] != sent.taken):
            raise RuntimeError(
                f"this client was not there in round {sent.taken}, when the snapshot was taken; set "
                "algorithm.clients_keep_snapshot to false, so that it is sent"
            )

    def start(self, sent: Sent, memory: tuple[int, Tensor] | None) -> Carry:
        return Carry(sent.z, sent.z.x if sent.taken == sent.rounds or memory is None else memory[1])

    def finish(self, sent: Sent, carry: Carry) -> Reply[Point]:
        return Reply(carry.z, (sent.taken, carry.snapshot))


def check_kept(keep: bool, S: int | None, clients: int) -> None:
    """Raises ConfigError where clients cannot keep the snapshot."""
    if keep and S not in (None, clients):
        raise ConfigError(
            "algorithm.clients_keep_snapshot",
            f"needs all {clients} clients in every round, and S is {S}; leave S out, or set this to false",
        )


@record(frozen=True, kw_only=True, config=STRICT)
class FedSGDAPlus(DescentAscent[State]):
    """FedSGDA+: local steps against a snapshot of x, and server steps (Wu et al. 2023, Alg. 1).

    Attributes:
        eta_g, gamma_g: the server's steps towards the mean of the clients' points.
        snapshot_rounds: rounds between snapshots.
        clients_keep_snapshot: clients keep it, which costs no bytes, as in the paper; it is sent otherwise. Needs all
            clients in every round.
    """

    eta_g: PositiveFloat = 1.0
    gamma_g: PositiveFloat = 1.0
    snapshot_rounds: PositiveInt = 1
    clients_keep_snapshot: bool = False

    def __post_init__(self) -> None:
        check_kept(self.clients_keep_snapshot, self.S, self.clients)

    def init(self, z: Point) -> State:
        return State(z, z.x)

    def phases(self, t: int) -> tuple[Update]:
        kind = KeepingUpdate if self.clients_keep_snapshot else Update
        update = kind(
            self.cohort, self.steps, eta=self.eta, gamma=self.gamma, period=self.snapshot_rounds,
            eta_g=self.eta_g, gamma_g=self.gamma_g,
        )  # fmt: skip
        return (update,)

    def point(self, state: State) -> Point:
        return state.z


class MomentumState(NamedTuple):
    """The mean point, the mean estimate d = (u, v) (None before the first round), and the rounds completed."""

    z: Point
    d: Point | None = None
    rounds: int = 0


class Estimating(NamedTuple):
    """A client's point, the one before it, and its estimate."""

    z: Point
    z_prev: Point
    d: Point | None


class Averaged(NamedTuple):
    """The upload: a client's point and estimate, which the server averages."""

    z: Point
    d: Point


@dataclass(frozen=True, kw_only=True)
class MomentumUpdate(LocalUpdate[MomentumState, MomentumState, Estimating, Averaged]):
    """FedSGDA-M: K local steps along a recursive gradient estimate; points and estimates are averaged.

    A client keeps its own last point but one, at which its estimate was corrected, across the averaging. One that was
    not there in the round before takes the received point instead: its first estimate is plain momentum.
    """

    eta: float
    gamma: float
    alpha: float
    beta: float

    remembers: ClassVar[bool] = True

    @property
    def evaluations(self) -> float:
        return 2.0

    def sends(self, state: MomentumState) -> MomentumState:
        return state

    def start(self, sent: MomentumState, memory: tuple[int, Point] | None) -> Estimating:
        fresh = memory is not None and memory[0] == sent.rounds
        return Estimating(sent.z, memory[1] if memory is not None and fresh else sent.z, sent.d)

    def step(self, problem: Problem, sent: MomentumState, carry: Estimating, batch: Batch) -> Estimating:
        z, z_prev, d = carry
        g = problem.gradient(z, batch)
        if d is not None:
            lag = d - problem.gradient(z_prev, batch)
            g = Point(g.x + (1 - self.alpha) * lag.x, g.y + (1 - self.beta) * lag.y)
        return Estimating(z.descent_ascent(g, self.eta, self.gamma), z, g)

    def finish(self, sent: MomentumState, carry: Estimating) -> Reply[Averaged]:
        assert carry.d is not None
        return Reply(Averaged(carry.z, carry.d), (sent.rounds + 1, carry.z_prev))

    def absorb(self, state: MomentumState, mean: Averaged, accepted: int) -> MomentumState:
        return MomentumState(mean.z, mean.d, state.rounds + 1)


@record(frozen=True, kw_only=True, config=STRICT)
class FedSGDAM(DescentAscent[MomentumState]):
    """FedSGDA-M: local steps along variance-reduced momentum, which is averaged too (Wu et al. 2023, Alg. 2).

    Attributes:
        alpha, beta: weight of the new primal and dual gradient, in [0, 1]; 1 is Local SGDA.
        first_batch: rows of the very first gradient; ten times `batch` if none is given.
    """

    alpha: Share
    beta: Share
    first_batch: PositiveInt | None = None

    def init(self, z: Point) -> MomentumState:
        return MomentumState(z)

    def phases(self, t: int) -> tuple[MomentumUpdate]:
        first = (self.first_batch or 10 * self.batch) if t == 0 else None
        update = MomentumUpdate(
            self.cohort, LocalSteps(self.K, self.batch, first),
            eta=self.eta, gamma=self.gamma, alpha=self.alpha, beta=self.beta,
        )  # fmt: skip
        return (update,)

    def point(self, state: MomentumState) -> Point:
        return state.z
