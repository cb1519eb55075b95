"""LocalSCGDAM: local stochastic compositional gradient descent ascent with momentum.

X. Zhang, Y. Zhang, T. Yang, R. Souvenir, H. Gao, "Federated compositional deep AUC maximization", NeurIPS 2023,
https://arxiv.org/abs/2304.10101, Algorithm 1, for min over x, max over y of f(g(x), y) whose f and g are both means
over clients.

| symbol | name | meaning | default's source |
|---|---|---|---|
| K | S | clients per round | all in the paper |
| p | K | local steps between synchronisations: a round | 4, 8, 16 in section 6 |
| xi, zeta | batch | rows of each of the two minibatches of a step | 32, section 6.1 |
| gamma_x eta, gamma_y eta | eta, gamma | primal and dual step size | 0.33 * 0.3 = 0.099, table 2 |
| alpha eta | alpha | weight of the new inner value in h | 3 * 0.3 = 0.9, table 2 |
| beta_x eta, beta_y eta | beta_x, beta_y | weight of the new gradient in u and v | 3.3 * 0.3 = 0.99, table 2 |
| | stage_steps, decay | when and by what gamma_x and gamma_y are divided | half and a quarter, 10: appendix B |
| h | State.h | estimate of g(x), of x's size: another set of weights | |
| u, v | State.d | momentum in x and y | |

x and y move along the momentum of the step before; then h moves towards g at the new x, and u and v towards the
gradient at h and y. All five are averaged after K steps, so that clients keep nothing and any S of N may take part. The
paper divides "the learning rate" at half and at three quarters of the epochs; here that is gamma_x and gamma_y, and not
eta, which would make the estimates h, u and v slow. A round uploads and downloads S(3|x| + 2|y|) floats; the first
downloads S|z|. With g(x) = x and alpha = 1 it is Momentum Local SGDA.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pydantic import PositiveFloat
from pydantic.dataclasses import dataclass as record
from torch import Tensor

from raysim.algorithms.settings import Share, Staged
from raysim.batch import Batch
from raysim.phase import LocalSteps, LocalUpdate, Reply
from raysim.point import Point
from raysim.problems.abilities import Composed
from raysim.problems.problem import Problem
from raysim.registry import STRICT


class State(NamedTuple):
    """The mean point, inner estimate and momentum; the latter two None before the first gradient."""

    z: Point
    h: Tensor | None = None
    d: Point | None = None


class Carry(NamedTuple):
    """The local state, and between the two minibatches of a step the first of them."""

    z: Point
    h: Tensor | None
    d: Point | None
    xi: Batch | None = None


class Averaged(NamedTuple):
    """The upload: a client's last point, inner estimate and momentum, which the server averages."""

    z: Point
    h: Tensor
    d: Point


def composed(
    problem: Problem, z: Point, h: Tensor, alpha: float, inner: Batch, outer: Batch, shrink: float
) -> tuple[Tensor, Point]:
    """Returns h' = (1 - alpha) h + alpha g(x) and the gradient of f(g(x), y) there, as abilities.Composed has them.

    The inner function g is the identity where the problem is no composition.
    """
    if isinstance(problem, Composed):
        return problem.composed(z, h, alpha, inner, outer, shrink)
    h = (1 - alpha) * h + alpha * z.x
    return h, problem.gradient(Point(h, z.y), outer)


@dataclass(frozen=True, kw_only=True)
class Update(LocalUpdate[State, State, Carry, Averaged]):
    """K local steps along the momentum, each followed by estimates at the new point; all five vectors are averaged."""

    eta: float
    gamma: float
    alpha: float
    beta_x: float
    beta_y: float
    shrink: float
    one_minibatch: bool
    keep_inner: bool

    @property
    def evaluations(self) -> float:
        # A pair of rows costs a gradient of the inner function, one of the outer, and a product with a Hessian, which
        # counts as two; a problem without an inner function, or first_order, is booked the same.
        return 4.0 if self.one_minibatch else 2.0

    def sends(self, state: State) -> State:
        return state

    def start(self, sent: State, memory: None) -> Carry:
        return Carry(*sent)

    def step(self, problem: Problem, sent: State, carry: Carry, batch: Batch) -> Carry:
        z, h, d, xi = carry
        if xi is None and not self.one_minibatch:
            return Carry(z, h, d, batch)
        xi, zeta = xi or batch, batch
        if h is None or d is None:
            return Carry(z, *problem.apply(composed, z, z.x, 1.0, xi, zeta, self.shrink))
        z = (Point(h, z.y) if self.keep_inner else z).descent_ascent(d, self.eta, self.gamma)
        h, g = problem.apply(composed, z, h, self.alpha, xi, zeta, self.shrink)
        u = (1 - self.beta_x) * d.x + self.beta_x * g.x
        v = (1 - self.beta_y) * d.y + self.beta_y * g.y
        return Carry(z, h, Point(u, v))

    def finish(self, sent: State, carry: Carry) -> Reply[Averaged]:
        z, h, d, _ = carry
        assert h is not None
        assert d is not None
        return Reply(Averaged(z, h, d))

    def absorb(self, state: State, mean: Averaged, accepted: int) -> State:
        return State(*mean)


@record(frozen=True, kw_only=True, config=STRICT)
class LocalSCGDAM(Staged[State]):
    """LocalSCGDAM: local compositional gradient steps with momentum (Zhang et al. 2023, Alg. 1).

    The point at h, which the objective is the outer function of, is evaluated too: its metrics begin with `inner_`.

    Attributes:
        batch: rows of each of the two minibatches of a step, one for the inner and one for the outer function.
        one_minibatch: a step has one for both.
        keep_inner: a step goes from h and not from x, so that inner steps are kept. With the problem's `first_order` it
            is what the code of Yuan et al. (PDSCA in LibAUC) does: a step on cross-entropy, then one on AUC.
        eta, gamma: primal and dual step size.
        alpha: weight of the inner function's new value, in [0, 1]; 1 keeps none of the past.
        beta_x, beta_y: weight of the new primal and dual gradient, in [0, 1]; 1 keeps none of the past.
        decay_inner: the step of a problem's inner function is divided too.
    """

    eta: PositiveFloat
    gamma: PositiveFloat
    alpha: Share
    beta_x: Share
    beta_y: Share
    decay_inner: bool = True
    one_minibatch: bool = False
    keep_inner: bool = False

    def init(self, z: Point) -> State:
        return State(z)

    def phases(self, t: int) -> tuple[Update]:
        shrink = self.decay ** -self.stage(t)
        estimates = self.K + (t == 0)  # h_0, u_0 and v_0 take minibatches, and no step
        update = Update(
            self.cohort, LocalSteps(estimates if self.one_minibatch else 2 * estimates, self.batch),
            eta=shrink * self.eta, gamma=shrink * self.gamma, alpha=self.alpha, beta_x=self.beta_x, beta_y=self.beta_y,
            shrink=shrink if self.decay_inner else 1.0, one_minibatch=self.one_minibatch, keep_inner=self.keep_inner,
        )  # fmt: skip
        return (update,)

    def point(self, state: State) -> Point:
        return state.z

    def extra_points(self, state: State) -> Mapping[str, Point]:
        return {"inner": Point(state.z.x if state.h is None else state.h, state.z.y)}
