"""Catalyst-Scaffold-S: SCAFFOLD-S for saddle points inside an outer proximal loop, communicating at random times.

C. Hou, K. K. Thekumparampil, G. Fanti, S. Oh, "Efficient algorithms for federated saddle point optimization", 2021,
https://arxiv.org/abs/2102.06333 (Catalyst, SCAFFOLD-S), as a baseline of J. Xie et al., "Efficient cross-device
federated learning algorithms for minimax problems", 2021, https://arxiv.org/abs/2105.14216v2, section 5 and B.1.

| symbol | name | meaning | default's source |
|---|---|---|---|
| S | S | clients per phase; the two phases draw independently | 5, Xie et al., section 5 |
| K | K | mean number of local steps: a round ends after each with probability 1/K | Xie et al., section 5.1 |
| B | batch | rows of a minibatch | Xie et al., section 5.1 |
| eta_l = eta_g | eta | step size of both blocks | tuned per task, Xie et al., tables 1-3 |
| theta | theta | weight of the proximal terms of both blocks | 0, 0.1, 10, Xie et al., B.1 |
| K_0 | stage_steps | local steps of a stage, after which the centre moves to z_t | 2000, 4000, Xie et al., B.1 |

The server tosses the coins of a stage in advance, so that all clients of a round take equally many steps; those after a
stage's last head are not taken. The centre is not extrapolated and the step does not shrink, as in the code of Xie et
al. With theta = 0 and random_steps off it is CD-MAGE with eta = gamma. A round uploads 2S|z| and downloads 3S|z|
floats, and S|z| more where theta > 0.
"""

import itertools
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

import numpy as np
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass as record

from raysim import draws
from raysim.algorithms import cd_mage
from raysim.algorithms.settings import check_stages
from raysim.batch import Batch
from raysim.phase import LocalSteps
from raysim.point import Point
from raysim.problems.problem import Problem
from raysim.registry import STRICT


@dataclass(frozen=True, kw_only=True)
class State(cd_mage.State):
    """CD-MAGE's state, the proximal centre and its stage."""

    centre: Point
    stage: int = 0

    def at(self, stage: int) -> "State":
        """Returns the state with the centre of `stage`; a new stage begins at the point that the one before reached."""
        return self if stage == self.stage else replace(self, centre=self.z, stage=stage)


class Sent(NamedTuple):
    """The message: z_t, the estimate u_t, and the centre where there are proximal terms."""

    z: Point
    u: Point
    centre: Point | None


@dataclass(frozen=True, kw_only=True)
class Update(cd_mage.Update):
    """CD-MAGE's corrected local steps, towards the centre in both blocks."""

    theta: float
    stage: int

    def sends(self, state: State) -> Sent:  # type: ignore[override]
        assert state.u is not None
        return Sent(state.z, state.u, state.at(self.stage).centre if self.theta else None)

    def step(self, problem: Problem, sent: Sent, z: Point, batch: Batch) -> Point:  # type: ignore[override]
        d = problem.gradient(z, batch) - problem.gradient(sent.z, batch) + sent.u
        if sent.centre is not None:
            away = z - sent.centre
            d = Point(d.x + self.theta * away.x, d.y - self.theta * away.y)
        return z.descent_ascent(d, self.eta, self.gamma)

    def absorb(self, state: State, mean: Point, accepted: int) -> State:  # type: ignore[override]
        return replace(state.at(self.stage), z=mean, z_prev=state.z)


@cache
def gaps(seed: int, K: int, steps: int, stage: int) -> tuple[int, ...]:
    """Returns the local steps of each round of a stage: the gaps between the heads of `steps` coins of chance 1/K."""
    for toss in itertools.count():
        heads = np.flatnonzero(draws.uniform(seed, "coins", stage, toss, np.arange(steps)) < 1 / K)
        if len(heads):
            return tuple(np.diff(heads, prepend=-1).tolist())
    raise AssertionError


@record(frozen=True, kw_only=True, config=STRICT)
class CatalystScaffoldS(cd_mage.TwoPhases):
    """Catalyst-Scaffold-S: corrected local steps, randomly many, in proximal stages (Hou et al. 2021).

    Attributes:
        seed: seed of the coins, supplied by the simulator.
        K: mean number of local steps of a round.
        eta: step size of both blocks.
        theta: weight of the proximal terms; 0 leaves them out.
        stage_steps: local steps of a stage.
        random_steps: whether the number of a round's local steps is random; otherwise each round takes exactly K.
    """

    seed: NonNegativeInt
    eta: PositiveFloat
    theta: NonNegativeFloat = 0.0
    stage_steps: PositiveInt = 2000
    random_steps: bool = True

    def __post_init__(self) -> None:
        check_stages(self.stage_steps, self.K)

    def init(self, z: Point) -> State:
        return State(z=z, z_prev=z, centre=z)

    def local_steps(self, t: int) -> tuple[int, int]:
        """Returns the stage of round t and the local steps that the round takes."""
        for stage in itertools.count():
            of_stage = self._gaps(stage)
            if t < len(of_stage):
                return stage, of_stage[t]
            t -= len(of_stage)
        raise AssertionError

    def phases(self, t: int) -> tuple[cd_mage.Collect, Update]:
        stage, K = self.local_steps(t)
        update = Update(
            self.update_cohort, LocalSteps(K, self.batch),
            eta=self.eta, gamma=self.eta, theta=self.theta, stage=stage,
        )  # fmt: skip
        return self.collect(), update

    def _gaps(self, stage: int) -> tuple[int, ...]:
        if self.random_steps:
            return gaps(self.seed, self.K, self.stage_steps, stage)
        return (self.K,) * (self.stage_steps // self.K)
