"""Momentum Local SGDA: local descent-ascent along averages of past gradients, which are averaged over clients too.

P. Sharma, R. Panda, G. Joshi, P. K. Varshney, "Federated minimax optimization: improved convergence analyses and
algorithms", ICML 2022, https://arxiv.org/abs/2203.04850, Algorithm 2; a baseline of Wu et al. 2023 (FedSGDA-M) and, as
LocalSGDAM, of Zhang et al. 2023 (LocalSCGDAM).

| symbol | name | meaning | default's source |
|---|---|---|---|
| n | S | clients per round | all in the paper |
| tau, b | K, batch | local steps, rows of a minibatch | |
| gamma_x eta, gamma_y eta | eta, gamma | primal and dual step size | |
| beta_x eta, beta_y eta | beta_x, beta_y | weight of the new gradient | grid 0.1, 0.5, 0.9 in Wu et al., section 4 |
| | stage_steps, decay | when and by what gamma_x and gamma_y are divided | half and a quarter, 10: Zhang et al., B |

d_0 is a client's gradient at z_0, on a minibatch of its own. Averaging comes after the last gradient of a round, which
is taken at the clients' own points: the first step of the next round is common to all. A round uploads and downloads
2S|z| floats; the first downloads S|z|.
"""

from dataclasses import dataclass
from typing import NamedTuple

from pydantic import PositiveFloat
from pydantic.dataclasses import dataclass as record

from raysim.algorithms.fedsgda import Averaged
from raysim.algorithms.settings import Share, Staged
from raysim.batch import Batch
from raysim.phase import LocalSteps, LocalUpdate, Reply
from raysim.point import Point
from raysim.problems.problem import Problem
from raysim.registry import STRICT


class State(NamedTuple):
    """The mean point and the mean direction; None before the first gradient."""

    z: Point
    d: Point | None = None


@dataclass(frozen=True, kw_only=True)
class Update(LocalUpdate[State, State, State, Averaged]):
    """K local steps along d, each followed by a gradient at the new point; points and directions are averaged."""

    eta: float
    gamma: float
    beta_x: float
    beta_y: float

    def sends(self, state: State) -> State:
        return state

    def start(self, sent: State, memory: None) -> State:
        return sent

    def step(self, problem: Problem, sent: State, carry: State, batch: Batch) -> State:
        if carry.d is None:
            return State(carry.z, problem.gradient(carry.z, batch))
        z, d = carry.z.descent_ascent(carry.d, self.eta, self.gamma), carry.d
        g = problem.gradient(z, batch)
        new = Point((1 - self.beta_x) * d.x + self.beta_x * g.x, (1 - self.beta_y) * d.y + self.beta_y * g.y)
        return State(z, new)

    def finish(self, sent: State, carry: State) -> Reply[Averaged]:
        assert carry.d is not None
        return Reply(Averaged(carry.z, carry.d))

    def absorb(self, state: State, mean: Averaged, accepted: int) -> State:
        return State(mean.z, mean.d)


@record(frozen=True, kw_only=True, config=STRICT)
class MomentumLocalSGDA(Staged[State]):
    """Momentum Local SGDA (LocalSGDAM): local steps along averaged gradients (Sharma et al. 2022, Alg. 2).

    Attributes:
        eta, gamma: primal and dual step size.
        beta_x, beta_y: weight of the new primal and dual gradient, in [0, 1]; 1 keeps none of the past.
    """

    eta: PositiveFloat
    gamma: PositiveFloat
    beta_x: Share
    beta_y: Share

    def init(self, z: Point) -> State:
        return State(z)

    def phases(self, t: int) -> tuple[Update]:
        shrink = self.decay ** -self.stage(t)
        update = Update(
            self.cohort, LocalSteps(self.K + (t == 0), self.batch),  # d_0 takes a minibatch, and no step
            eta=shrink * self.eta, gamma=shrink * self.gamma, beta_x=self.beta_x, beta_y=self.beta_y,
        )  # fmt: skip
        return (update,)

    def point(self, state: State) -> Point:
        return state.z
