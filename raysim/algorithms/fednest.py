"""FedNest for saddle points: rounds on y nested in each round on x, all with corrected local steps.

D. A. Tarzanagh, M. Li, C. Thrampoulidis, S. Oymak, "FedNest: federated bilevel, minimax, and compositional
optimization", ICML 2022, https://arxiv.org/abs/2205.02215 (FedNest, FedInn, FedOut in the minimax case, which needs no
inverse Hessian); discussed by Wu et al. 2023, section 2.

| symbol | name | meaning | default's source |
|---|---|---|---|
| m | S | clients per round, the same in all its phases | all in the paper |
| T | inner | rounds on y for each on x | 1 |
| tau | K | local steps of each of them | |
| B | batch | rows of a minibatch | |
| alpha, beta | eta, gamma | primal and dual step size | |

Each of them collects exact local gradients of its block and takes local steps corrected by their mean: CD-MAGE on one
block at a time. A round has 2 inner + 2 phases, uploads S (2 inner |y| + 2|x|) and downloads
S (2|x| + (2 inner + 1)|y|) floats, since the same clients keep what did not change.
"""

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from pydantic import PositiveInt
from pydantic.dataclasses import dataclass as record
from torch import Tensor

from raysim.algorithms.settings import DescentAscent
from raysim.batch import Batch
from raysim.phase import Cohort, LocalUpdate, Reply, Same, SinglePass, WholeShard
from raysim.point import Point
from raysim.problems.problem import Problem
from raysim.registry import STRICT

Block = Literal["x", "y"]


class State(NamedTuple):
    """z_t, and the mean gradient of the block whose turn it is (None before the first)."""

    z: Point
    g: Tensor | None = None


def of(z: Point, block: Block) -> Tensor:
    """Returns one block of the point."""
    return z.x if block == "x" else z.y


def with_(z: Point, block: Block, v: Tensor) -> Point:
    """Returns the point with another block in the place of one of its own."""
    return replace(z, x=v) if block == "x" else replace(z, y=v)


@dataclass(frozen=True, kw_only=True)
class Collect(SinglePass[State, Point, Tensor, Tensor]):
    """Exact local gradients of one block, averaged."""

    name: str
    block: Block

    def sends(self, state: State) -> Point:
        return state.z

    def start(self, sent: Point, memory: None) -> Tensor:
        return of(sent.zeros_like(), self.block)

    def step(self, problem: Problem, sent: Point, g: Tensor, batch: Batch) -> Tensor:
        return g + of(problem.gradient(sent, batch), self.block)

    def finish(self, sent: Point, g: Tensor) -> Reply[Tensor]:
        return Reply(g)

    def absorb(self, state: State, mean: Tensor, accepted: int) -> State:
        return state._replace(g=mean)


@dataclass(frozen=True, kw_only=True)
class Update(LocalUpdate[State, State, Tensor, Tensor]):
    """K corrected local steps of one block; the server averages the last iterates."""

    name: str
    block: Block
    step_size: float

    @property
    def evaluations(self) -> float:
        return 2 - 2 / self.work.K  # at k = 0 both gradients coincide, and a device needs neither

    def sends(self, state: State) -> State:
        return state

    def start(self, sent: State, memory: None) -> Tensor:
        return of(sent.z, self.block)

    def step(self, problem: Problem, sent: State, v: Tensor, batch: Batch) -> Tensor:
        assert sent.g is not None
        here = with_(sent.z, self.block, v)
        d = of(problem.gradient(here, batch), self.block) - of(problem.gradient(sent.z, batch), self.block) + sent.g
        step = with_(here.zeros_like(), self.block, d)
        return of(here.descent_ascent(step, self.step_size, self.step_size), self.block)

    def finish(self, sent: State, v: Tensor) -> Reply[Tensor]:
        return Reply(v)

    def absorb(self, state: State, mean: Tensor, accepted: int) -> State:
        return state._replace(z=with_(state.z, self.block, mean))


@record(frozen=True, kw_only=True, config=STRICT)
class FedNest(DescentAscent[State]):
    """FedNest: corrected local steps on y, several rounds of them, then on x (Tarzanagh et al. 2022).

    Attributes:
        inner: rounds on y for each on x.
        K: local steps of each of these rounds.
    """

    inner: PositiveInt = 1

    def init(self, z: Point) -> State:
        return State(z)

    def phases(self, t: int) -> tuple[Collect | Update, ...]:
        def nested(cohort: Cohort, suffix: str, block: Block, step_size: float) -> tuple[Collect, Update]:
            collect = Collect(cohort, WholeShard(self.batch), name=f"collect {suffix}", block=block)
            return collect, Update(Same(), self.steps, name=f"update {suffix}", block=block, step_size=step_size)

        phases: list[Collect | Update] = []
        for i in range(self.inner):
            phases += nested(self.cohort if i == 0 else Same(), f"y{i}", "y", self.gamma)
        return (*phases, *nested(Same(), "x", "x", self.eta))

    def point(self, state: State) -> Point:
        return state.z
