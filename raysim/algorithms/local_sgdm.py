"""LocalSGDM: local heavy-ball steps, whose momentum is averaged over clients along with the weights.

H. Yu, R. Jin, S. Yang, "On the linear speedup analysis of communication efficient momentum SGD for distributed
non-convex optimization", ICML 2019, https://arxiv.org/abs/1905.03817, Algorithm 1; a baseline of Zhang et al. 2023
(LocalSCGDAM), on cross-entropy and, as LocalSGDM_RL, on the ratio loss.

| symbol | name | meaning | default's source |
|---|---|---|---|
| N | S | clients per round | all in the paper |
| I | K | local steps | 4, 8, 16 in Zhang et al. |
| | batch | rows of a minibatch | |
| gamma | eta | step size | 0.1 in Zhang et al., table 2 |
| beta | beta | weight of the old momentum | 0.1 in Zhang et al., table 2 |
| | stage_steps, decay | when and by what the step is divided | half and a quarter, 10: Zhang et al., B |

m = beta m + g, then a step along m. It is a method of minimisation; where a problem has a y, that ascends with the same
step and momentum. A round uploads and downloads 2S|z| floats; the first downloads S|z|.
"""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from pydantic import Field, PositiveFloat
from pydantic.dataclasses import dataclass as record

from raysim.algorithms.fedsgda import Averaged
from raysim.algorithms.settings import Staged
from raysim.batch import Batch
from raysim.phase import LocalUpdate, Reply
from raysim.point import Point
from raysim.problems.problem import Problem
from raysim.registry import STRICT


class State(NamedTuple):
    """The mean point and the mean momentum; None before the first round, when it is zero."""

    z: Point
    m: Point | None = None


@dataclass(frozen=True, kw_only=True)
class Update(LocalUpdate[State, State, Averaged, Averaged]):
    """K local heavy-ball steps; points and momenta are averaged."""

    eta: float
    beta: float

    def sends(self, state: State) -> State:
        return state

    def start(self, sent: State, memory: None) -> Averaged:
        return Averaged(sent.z, sent.z.zeros_like() if sent.m is None else sent.m)

    def step(self, problem: Problem, sent: State, carry: Averaged, batch: Batch) -> Averaged:
        m = self.beta * carry.d + problem.gradient(carry.z, batch)
        return Averaged(carry.z.descent_ascent(m, self.eta, self.eta), m)

    def finish(self, sent: State, carry: Averaged) -> Reply[Averaged]:
        return Reply(carry)

    def absorb(self, state: State, mean: Averaged, accepted: int) -> State:
        return State(*mean)


@record(frozen=True, kw_only=True, config=STRICT)
class LocalSGDM(Staged[State]):
    """LocalSGDM: local SGD with heavy-ball momentum, which is averaged too (Yu et al. 2019, Alg. 1).

    Attributes:
        eta: step size.
        beta: weight of the old momentum, in [0, 1).
    """

    eta: PositiveFloat
    beta: Annotated[float, Field(ge=0, lt=1)]

    def init(self, z: Point) -> State:
        return State(z)

    def phases(self, t: int) -> tuple[Update]:
        return (Update(self.cohort, self.steps, eta=self.eta / self.decay ** self.stage(t), beta=self.beta),)

    def point(self, state: State) -> Point:
        return state.z
