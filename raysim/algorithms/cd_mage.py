"""CD-MAGE and CD-MAGE+: cross-device min-max averaging with global gradient estimates.

J. Xie, C. Zhang, Z. Shen, W. Liu, H. Qian, "Efficient cross-device federated learning algorithms for minimax problems",
2021, https://arxiv.org/abs/2105.14216v2. Algorithms 1 (server), 2 (client, gradient collection), 3 (client, parameter
update), equations (2)-(4); schedules of CD-MAGE+ from appendix B.1.

| symbol | name | meaning | default's source |
|---|---|---|---|
| S | S | clients per phase; the two phases draw independently | 5 in section 5 |
| K, B | K, batch | local steps, rows of a minibatch | section 5.1 |
| eta, gamma | eta, gamma | primal and dual step size | tuned per task, tables 1-3 |
| (u_t, v_t) | u | global gradient estimate | eq. (2), eq. (3) |
| c_eta, c_gamma, rho | same | eta_t = c_eta / (t+1)^rho, gamma_t alike | B.1 |
| alpha_t | c_alpha | min(1, c_alpha / (t+1)^(2 rho)), with alpha_0 = 1 | B.1 |

With |z| = |x| + |y| floats, a round uploads 2S|z| and downloads 3S|z| (CD-MAGE) or 4S|z| (CD-MAGE+ from t = 1 on).
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar, NamedTuple

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass as record

from raysim.algorithm import Algorithm, Rate
from raysim.batch import Batch
from raysim.phase import Cohort, LocalSteps, LocalUpdate, Reply, Same, SinglePass, Uniform, WholeShard
from raysim.point import Point
from raysim.problems.problem import Problem
from raysim.registry import STRICT


@dataclass(frozen=True)
class State:
    """z_t, z_{t-1} and the estimate u_t (None before the first collection)."""

    z: Point
    z_prev: Point
    u: Point | None = None


class Query(NamedTuple):
    """The message of gradient collection: z_t, and z_{t-1} where the estimator is recursive."""

    z: Point
    z_prev: Point | None


@dataclass(frozen=True, kw_only=True)
class Collect(SinglePass[State, Query, Point, Point]):
    """Gradient collection: exact local gradients, averaged into u_t."""

    alpha: float = 1.0
    recursive: bool = False

    name = "collect"

    @property
    def evaluations(self) -> float:
        return 1.0 if self.alpha == 1 else 2.0

    def sends(self, state: State) -> Query:
        # Before the first estimate, and after a first round that failed, there is nothing to correct.
        return Query(state.z, state.z_prev if self.recursive and state.u is not None else None)

    def start(self, sent: Query, memory: None) -> Point:
        return sent.z.zeros_like()

    def step(self, problem: Problem, sent: Query, g: Point, batch: Batch) -> Point:
        g = g + problem.gradient(sent.z, batch)
        if sent.z_prev is not None and self.alpha < 1:
            g = g - (1 - self.alpha) * problem.gradient(sent.z_prev, batch)
        return g

    def finish(self, sent: Query, g: Point) -> Reply[Point]:
        return Reply(g)

    def absorb(self, state: State, mean: Point, accepted: int) -> State:
        if state.u is None or self.alpha == 1:
            return replace(state, u=mean)  # eq. (2)
        return replace(state, u=(1 - self.alpha) * state.u + mean)  # eq. (3)


class Correction(NamedTuple):
    """The message of the parameter update: z_t and u_t."""

    z: Point
    u: Point


@dataclass(frozen=True, kw_only=True)
class Update(LocalUpdate[State, Correction, Point, Point]):
    """Parameter update: K local steps, each with one minibatch at two points, corrected by u_t."""

    eta: float
    gamma: float

    @property
    def evaluations(self) -> float:
        return 2 - 2 / self.work.K  # at k = 0 both gradients coincide, and a device needs neither

    def sends(self, state: State) -> Correction:
        assert state.u is not None
        return Correction(state.z, state.u)

    def start(self, sent: Correction, memory: None) -> Point:
        return sent.z

    def step(self, problem: Problem, sent: Correction, z: Point, batch: Batch) -> Point:
        d = problem.gradient(z, batch) - problem.gradient(sent.z, batch) + sent.u  # eq. (4)
        return z.descent_ascent(d, self.eta, self.gamma)

    def finish(self, sent: Correction, z: Point) -> Reply[Point]:
        return Reply(z)

    def absorb(self, state: State, mean: Point, accepted: int) -> State:
        return replace(state, z=mean, z_prev=state.z)


@record(frozen=True, kw_only=True, config=STRICT)
class TwoPhases(Algorithm[State]):
    """Settings of CD-MAGE and of methods that collect gradients and update parameters as it does.

    Attributes:
        S: clients per phase.
        K: local steps of the parameter update.
        batch: rows of a minibatch.
        same_clients: the update runs on the clients of the collection (the authors' code) instead of an independent
            draw (the paper).
    """

    S: PositiveInt
    K: PositiveInt
    batch: PositiveInt
    same_clients: bool = False

    def init(self, z: Point) -> State:
        return State(z, z_prev=z)

    def collect(self, alpha: float = 1.0, recursive: bool = False) -> Collect:
        """Returns the gradient collection."""
        return Collect(Uniform(self.S), WholeShard(self.batch), alpha=alpha, recursive=recursive)

    @property
    def update_cohort(self) -> Cohort:
        """The clients of the parameter update."""
        return Same() if self.same_clients else Uniform(self.S)

    def update(self, eta: float, gamma: float) -> Update:
        """Returns the parameter update with these step sizes."""
        return Update(self.update_cohort, LocalSteps(self.K, self.batch), eta=eta, gamma=gamma)

    def point(self, state: State) -> Point:
        return state.z


@record(frozen=True, kw_only=True, config=STRICT)
class CDMage(TwoPhases):
    """CD-MAGE: exact local gradients of S clients correct the K local steps of S others (Xie et al. 2021, Alg. 1-3).

    Attributes:
        eta, gamma: primal and dual step size.
    """

    rate: ClassVar[Rate] = Rate(Fraction(-1, 2), Fraction(-1, 2), "Xie et al. 2021, theorem 1")

    eta: PositiveFloat
    gamma: PositiveFloat

    def phases(self, t: int) -> tuple[Collect, Update]:
        return self.collect(), self.update(eta=self.eta, gamma=self.gamma)


@record(frozen=True, kw_only=True, config=STRICT)
class CDMagePlus(TwoPhases):
    """CD-MAGE+: CD-MAGE with a recursive-momentum gradient estimate and decaying steps (Xie et al. 2021, eq. 3, B.1).

    While alpha_t = 1 it is CD-MAGE with a decaying step: with c_alpha = 5 and rho = 1/5 until t + 1 = 55, with 10 and
    1/5 until 316. As in Algorithm 1, z_{t-1} is sent then too.

    Attributes:
        c_eta, c_gamma, c_alpha, rho: constants of the schedules; the theory has rho = 1/3.
    """

    rate: ClassVar[Rate] = Rate(Fraction(-1, 3), Fraction(-2, 3), "Xie et al. 2021, theorem 2")

    c_eta: PositiveFloat
    c_gamma: PositiveFloat
    c_alpha: PositiveFloat
    rho: NonNegativeFloat = 1 / 3

    def alpha(self, t: int) -> float:
        """Returns alpha_t in [0, 1]; alpha_0 = 1, since nothing precedes the first estimate."""
        return 1.0 if t == 0 else min(1.0, self.c_alpha / (t + 1) ** (2 * self.rho))

    def phases(self, t: int) -> tuple[Collect, Update]:
        decay = (t + 1) ** self.rho
        collect = self.collect(alpha=self.alpha(t), recursive=t > 0)
        return collect, self.update(eta=self.c_eta / decay, gamma=self.c_gamma / decay)
