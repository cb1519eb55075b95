"""SAGDA: local descent-ascent with sampled gradients as control variates, and server steps.

H. Yang, Z. Liu, X. Zhang, J. Liu, "SAGDA: achieving O(eps^-2) communication complexity in federated min-max learning",
NeurIPS 2022, https://arxiv.org/abs/2210.00611, Algorithm 1; a baseline of Wu et al. 2023 (FedSGDA-M), section 4.

| symbol | name | meaning | default's source |
|---|---|---|---|
| m | S | clients per round, the same in both phases | all in Wu et al. |
| K, B | K, batch | local steps, rows of a minibatch | |
| | collect_batch | rows of the gradient that is sent | one minibatch |
| eta_x,l, eta_y,l | eta, gamma | local primal and dual step size | |
| eta_x,g, eta_y,g | eta_g, gamma_g | the server's primal and dual step | 0.9, 1, 1.5, 2 in Wu et al. |

A client subtracts the gradient c_i that it has sent; with `reeval` it subtracts its gradient at z_t on each minibatch
anew, which with whole shards in the first phase is CD-MAGE. A round uploads and downloads 2S|z| floats.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from pydantic import PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass as record

from raysim.algorithms.settings import DescentAscent
from raysim.batch import Batch
from raysim.phase import LocalSteps, LocalUpdate, Reply, Same, SinglePass
from raysim.point import Point
from raysim.problems.problem import Problem
from raysim.registry import STRICT


class State(NamedTuple):
    """z_t, the mean c of the sampled gradients (None before the first), and how many rounds were completed."""

    z: Point
    c: Point | None = None
    rounds: int = 0


class Query(NamedTuple):
    """The message of the first phase."""

    z: Point
    rounds: int


Memory = tuple[int, Point]  # the round in which a client uploaded its gradient c_i, and c_i


@dataclass(frozen=True)
class Collect(SinglePass[State, Query, Point, Point]):
    """A gradient of each client on one minibatch, averaged into c; the clients keep theirs."""

    name = "collect"
    remembers: ClassVar[bool] = True

    def sends(self, state: State) -> Query:
        return Query(state.z, state.rounds)

    def start(self, sent: Query, memory: Memory | None) -> Point:
        return sent.z.zeros_like()

    def step(self, problem: Problem, sent: Query, g: Point, batch: Batch) -> Point:
        return problem.gradient(sent.z, batch)

    def finish(self, sent: Query, g: Point) -> Reply[Point]:
        return Reply(g, (sent.rounds, g))

    def absorb(self, state: State, mean: Point, accepted: int) -> State:
        return state._replace(c=mean)


class Carry(NamedTuple):
    """The local point, and c_i."""

    z: Point
    c_i: Point


@dataclass(frozen=True, kw_only=True)
class Update(LocalUpdate[State, State, Carry, Point]):
    """K local steps corrected by c - c_i; the server steps towards the mean of the last iterates.

    A client without a c_i of this round, which a device's failure can bring about, takes plain steps.
    """

    eta: float
    gamma: float
    eta_g: float
    gamma_g: float
    reeval: bool

    remembers: ClassVar[bool] = True

    @property
    def evaluations(self) -> float:
        return 2 - 1 / self.work.K if self.reeval else 1.0  # at k = 0 both points coincide

    def sends(self, state: State) -> State:
        return state

    def start(self, sent: State, memory: Memory | None) -> Carry:
        assert sent.c is not None
        is_current = memory is not None and memory[0] == sent.rounds
        return Carry(sent.z, memory[1] if memory is not None and is_current else sent.c)

    def step(self, problem: Problem, sent: State, carry: Carry, batch: Batch) -> Carry:
        z, c_i = carry
        assert sent.c is not None
        d = problem.gradient(z, batch) - (problem.gradient(sent.z, batch) if self.reeval else c_i) + sent.c
        return Carry(z.descent_ascent(d, self.eta, self.gamma), c_i)

    def finish(self, sent: State, carry: Carry) -> Reply[Point]:
        return Reply(carry.z)  # and forgets c_i

    def absorb(self, state: State, mean: Point, accepted: int) -> State:
        return State(state.z.towards(mean, self.eta_g, self.gamma_g), state.c, state.rounds + 1)


@record(frozen=True, kw_only=True, config=STRICT)
class SAGDA(DescentAscent[State]):
    """SAGDA: sampled gradients correct the local steps of the same clients (Yang et al. 2022, Alg. 1).

    Attributes:
        eta_g, gamma_g: the server's steps towards the mean of the clients' points.
        collect_batch: rows of the gradient of the first phase; `batch` if none is given.
        reeval: subtract the gradient at z_t on each minibatch instead of the one that was sent.
    """

    eta_g: PositiveFloat = 1.0
    gamma_g: PositiveFloat = 1.0
    collect_batch: PositiveInt | None = None
    reeval: bool = False

    def init(self, z: Point) -> State:
        return State(z)

    def phases(self, t: int) -> tuple[Collect, Update]:
        update = Update(
            Same(), self.steps, eta=self.eta, gamma=self.gamma, eta_g=self.eta_g, gamma_g=self.gamma_g,
            reeval=self.reeval,
        )  # fmt: skip
        return Collect(self.cohort, LocalSteps(1, self.collect_batch or self.batch)), update

    def point(self, state: State) -> Point:
        return state.z
