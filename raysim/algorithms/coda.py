"""CODA, CODA+ and CODASCA: stages of proximal local descent-ascent, the last with control variates on both blocks.

Z. Guo, M. Liu, Z. Yuan, L. Shen, W. Liu, T. Yang, "Communication-efficient distributed stochastic AUC maximization with
deep neural networks", ICML 2020, https://arxiv.org/abs/2005.02426, Algorithms 1 and 2 (CODA, CoDA in X. Zhang et al.,
"Federated compositional deep AUC maximization", NeurIPS 2023, https://arxiv.org/abs/2304.10101);
Z. Yuan, Z. Guo, Y. Xu, Y. Ying, T. Yang, "Federated deep AUC maximization for heterogeneous data with a constant
communication complexity", ICML 2021, https://arxiv.org/abs/2102.04635, Algorithms 1 and 2 (CODA+) and 3 and 4
(CODASCA), for S of N clients as in J. Xie et al., "Efficient cross-device federated learning algorithms for minimax
problems", 2021, https://arxiv.org/abs/2105.14216v2, section 5 and appendix B.1.

| symbol | name | meaning | default's source |
|---|---|---|---|
| N, S | clients, S | all clients, clients per round | Xie et al.: 10 (CODA+) and 5 (CODASCA), equal upload |
| K, B | K, batch | local steps, rows of a minibatch | Xie et al., section 5.1 |
| eta_l | eta | step size of both blocks in the first stage | tuned per task, Xie et al., tables 1-3 |
| theta | theta | weight of the proximal term in x | tuned: 0, 0.1, 10; 0.002 in the authors' code |
| K_0 | stage_steps | local steps of a stage | 2000 or 4000, Xie et al., B.1; 50 %, 25 % of all, Zhang et al., B |
| m_s | dual_batch | rows of a client from which CODA takes the new y (Guo et al.) | 1000 |
| | decay | what the step size is divided by after a stage | 3: the papers' code |
| eta_g | eta_g | the server's step (CODASCA) | 0.99, 1, 1.1, Xie et al., B.1 |
| c_i, c | | control variates of a client and of the server | 0 at first, kept from stage to stage |

The centre of a stage is the last average of the stage before, as Xie et al. have it, not the average over its iterates.
Xie et al. do not mention the division by 3, and their code leaves the control variate out of the dual steps
(dual_control). c_i is the mean of the K stochastic gradients. A round of CODA+ uploads S|z| and downloads S|z| floats,
one of CODASCA 2S|z| each; where theta > 0, S|x| more are downloaded. CODA begins a stage, but for the first, with the y
that is best where the one before has come, in closed form and averaged over clients: S|y| floats up, S|z| down. Where
that round fails for want of devices, the stage goes on with y as it is.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass as record
from torch import Tensor

from raysim.algorithms.settings import Decay, Staged, StageSteps
from raysim.batch import Batch
from raysim.phase import LocalSteps, LocalUpdate, Phase, Reply, SinglePass
from raysim.point import Point
from raysim.problems.abilities import ClosedFormDual
from raysim.problems.problem import Problem
from raysim.registry import STRICT


@dataclass(frozen=True)
class State:
    """z_t, the proximal centre and its stage; c is the server's control variate of CODASCA."""

    z: Point
    centre: Tensor
    stage: int = 0
    c: Point | None = None

    def at(self, stage: int) -> "State":
        """Returns the state with the centre of `stage`; a new stage begins at the point that the one before reached."""
        return self if stage == self.stage else replace(self, centre=self.z.x, stage=stage)


class Sent(NamedTuple):
    """The message: z_t, the centre where there is a proximal term, and CODASCA's c."""

    z: Point
    centre: Tensor | None
    c: Point | None = None


def proximal(g: Point, z: Point, sent: Sent, theta: float) -> Point:
    """Adds the gradient of the proximal term, theta (x - centre), to that of x."""
    return g if sent.centre is None else Point(g.x + theta * (z.x - sent.centre), g.y)


@dataclass(frozen=True, kw_only=True)
class Update(LocalUpdate[State, Sent, Point, Point]):
    """CODA+: K proximal local steps; the server averages the last iterates."""

    eta: float
    theta: float
    stage: int

    def sends(self, state: State) -> Sent:
        return Sent(state.z, state.at(self.stage).centre if self.theta else None)

    def start(self, sent: Sent, memory: None) -> Point:
        return sent.z

    def step(self, problem: Problem, sent: Sent, z: Point, batch: Batch) -> Point:
        d = proximal(problem.gradient(z, batch), z, sent, self.theta)
        return z.descent_ascent(d, self.eta, self.eta)

    def finish(self, sent: Sent, z: Point) -> Reply[Point]:
        return Reply(z)

    def absorb(self, state: State, mean: Point, accepted: int) -> State:
        return replace(state.at(self.stage), z=mean)


@record(frozen=True, kw_only=True, config=STRICT)
class Proximal(Staged[State]):
    """Settings of proximal local steps in stages of falling step size.

    Attributes:
        eta: step size of both blocks in the first stage.
        theta: weight of the proximal term in x; 0 leaves it out.
        stage_steps: local steps of every stage, the whole rounds of which are played, or a list of lengths, after which
            comes one more stage without end.
        decay: what the step size is divided by after a stage.
    """

    eta: PositiveFloat
    theta: NonNegativeFloat = 0.0
    stage_steps: StageSteps = 2000
    decay: Decay = 3.0

    def point(self, state: State) -> Point:
        return state.z


@record(frozen=True, kw_only=True, config=STRICT)
class CODAPlus(Proximal):
    """CODA+: proximal local steps in stages of falling step size (Yuan et al. 2021, Alg. 1-2; Xie et al. 2021, 5)."""

    def init(self, z: Point) -> State:
        return State(z, z.x)

    def phases(self, t: int) -> tuple[Phase[State, Any, Any, Any], ...]:
        stage = self.stage(t)
        eta = self.eta / self.decay**stage
        return (Update(self.cohort, self.steps, eta=eta, theta=self.theta, stage=stage),)


def best_dual(problem: Problem, z: Point, batch: Batch) -> Tensor:
    """Returns the y (D_y,) that maximises F(x, y) on the batch where the problem knows it in closed form, else z.y."""
    return problem.best_dual(z, batch) if isinstance(problem, ClosedFormDual) else z.y


@dataclass(frozen=True)
class BestDual(SinglePass[State, Point, Tensor, Tensor]):
    """CODA: the mean of the y that maximise f on a minibatch of each client, where there is a closed form."""

    name = "dual"

    def sends(self, state: State) -> Point:
        return state.z

    def start(self, sent: Point, memory: None) -> Tensor:
        return sent.y

    def step(self, problem: Problem, sent: Point, y: Tensor, batch: Batch) -> Tensor:
        return problem.apply(best_dual, sent, batch)  # type: ignore[no-any-return]

    def finish(self, sent: Point, y: Tensor) -> Reply[Tensor]:
        return Reply(y)

    def absorb(self, state: State, mean: Tensor, accepted: int) -> State:
        return replace(state, z=replace(state.z, y=mean))


@record(frozen=True, kw_only=True, config=STRICT)
class CODA(CODAPlus):
    """CODA: CODA+ whose stages begin with the best y in closed form, where the problem has one (Guo et al. 2020).

    Attributes:
        dual_batch: rows of each client from which the best y is taken.
    """

    dual_batch: PositiveInt = 1000

    def phases(self, t: int) -> tuple[Phase[State, Any, Any, Any], ...]:
        update = super().phases(t)
        begins = t > 0 and self.stage(t) > self.stage(t - 1)
        return (BestDual(self.cohort, LocalSteps(1, self.dual_batch)), *update) if begins else update


class Controlled(NamedTuple):
    """A client's point, the sum of its gradients, and its control variate c_i."""

    z: Point
    sum: Point
    c_i: Point


class Changed(NamedTuple):
    """The upload of CODASCA's clients: the last point and the change of c_i."""

    z: Point
    dc: Point


@dataclass(frozen=True, kw_only=True)
class ControlledUpdate(LocalUpdate[State, Sent, Controlled, Changed]):
    """CODASCA: K proximal local steps corrected by c - c_i; the server steps towards the mean and updates c."""

    eta: float
    theta: float
    stage: int
    clients: int
    eta_g: float
    dual_control: bool

    remembers: ClassVar[bool] = True

    def sends(self, state: State) -> Sent:
        return Sent(state.z, state.at(self.stage).centre if self.theta else None, state.c)

    def start(self, sent: Sent, memory: Point | None) -> Controlled:
        return Controlled(sent.z, sent.z.zeros_like(), sent.z.zeros_like() if memory is None else memory)

    def step(self, problem: Problem, sent: Sent, carry: Controlled, batch: Batch) -> Controlled:
        z, total, c_i = carry
        assert sent.c is not None
        g = problem.gradient(z, batch)
        d = g - c_i + sent.c
        d = proximal(d if self.dual_control else Point(d.x, g.y), z, sent, self.theta)
        return Controlled(z.descent_ascent(d, self.eta, self.eta), total + g, c_i)

    def finish(self, sent: Sent, carry: Controlled) -> Reply[Changed]:
        c_new = (1 / self.work.K) * carry.sum
        return Reply(Changed(carry.z, c_new - carry.c_i), c_new)

    def absorb(self, state: State, mean: Changed, accepted: int) -> State:
        assert state.c is not None
        z = state.z.towards(mean.z, self.eta_g, self.eta_g)
        return replace(state.at(self.stage), z=z, c=state.c + (accepted / self.clients) * mean.dc)


@record(frozen=True, kw_only=True, config=STRICT)
class CODASCA(Proximal):
    """CODASCA: CODA+ with control variates and a server step (Yuan et al. 2021, Alg. 3-4; Xie et al. 2021, 5).

    Attributes:
        eta_g: the server's step towards the mean of the clients' points, in both blocks.
        dual_control: whether dual steps are corrected too; the code of Xie et al. does not.
    """

    eta_g: PositiveFloat = 1.0
    dual_control: bool = True

    def init(self, z: Point) -> State:
        return State(z, z.x, c=z.zeros_like())

    def phases(self, t: int) -> tuple[ControlledUpdate]:
        stage = self.stage(t)
        update = ControlledUpdate(
            self.cohort, self.steps, eta=self.eta / self.decay**stage, theta=self.theta, stage=stage,
            clients=self.clients, eta_g=self.eta_g, dual_control=self.dual_control,
        )  # fmt: skip
        return (update,)
