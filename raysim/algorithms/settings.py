"""Hyper-parameters that many algorithms have in common, each written once: the cohort, the local steps and the stages.

Stages are stretches of an experiment after which a method moves its proximal centre and shortens its step: J. Xie et
al., "Efficient cross-device federated learning algorithms for minimax problems", 2021,
https://arxiv.org/abs/2105.14216v2, appendix B.1, where a stage is K_0 local updates: as many rounds as fit into it.
"""

from typing import Annotated

from pydantic import Field, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass as record

from raysim.algorithm import Algorithm
from raysim.errors import ConfigError
from raysim.phase import LocalSteps, State, Uniform
from raysim.registry import STRICT

Share = Annotated[float, Field(ge=0, le=1)]
StageSteps = PositiveInt | tuple[PositiveInt, ...]
Decay = Annotated[float, Field(ge=1)]


@record(frozen=True, kw_only=True, config=STRICT)
class Sampled(Algorithm[State]):
    """Settings of algorithms whose rounds are played by all clients, or by S of them.

    Attributes:
        clients: how many clients have data, supplied by the simulator.
        S: clients per round; all of them if none is given.
    """

    clients: PositiveInt
    S: PositiveInt | None = None

    @property
    def cohort(self) -> Uniform:
        """The S clients of a round."""
        return Uniform(self.S or self.clients)


@record(frozen=True, kw_only=True, config=STRICT)
class Local(Sampled[State]):
    """Settings of algorithms whose clients take local steps on minibatches.

    Attributes:
        K: local steps.
        batch: rows of a minibatch.
    """

    K: PositiveInt
    batch: PositiveInt

    @property
    def steps(self) -> LocalSteps:
        """The K minibatches of a round."""
        return LocalSteps(self.K, self.batch)


@record(frozen=True, kw_only=True, config=STRICT)
class Staged(Local[State]):
    """Settings of algorithms whose step sizes fall in stages.

    Attributes:
        stage_steps: local steps of each stage but the last, the whole rounds of which are played; () is a single stage.
            A number instead of a list makes all stages of this length.
        decay: what step sizes are divided by after a stage.
    """

    stage_steps: StageSteps = ()
    decay: Decay = 10.0

    def __post_init__(self) -> None:
        check_stages(self.stage_steps, self.K)

    def stage(self, t: int) -> int:
        """Returns the stage 0, 1, ... of round t."""
        return stage_of(t, self.stage_steps, self.K)


def check_stages(stage_steps: StageSteps, K: int) -> None:
    """Raises ConfigError where a stage is shorter than a round of K local steps."""
    for steps in (stage_steps,) if isinstance(stage_steps, int) else stage_steps:
        if steps < K:
            raise ConfigError(
                "algorithm.stage_steps", f"a stage of {steps} local steps is shorter than a round of K = {K}; take more"
            )


def stage_of(t: int, stage_steps: StageSteps, K: int) -> int:
    """Returns the stage of round t = 0, 1, ...; after the stages of a list comes a last one without end."""
    if isinstance(stage_steps, int):
        return t // (stage_steps // K)
    stage = 0
    for steps in stage_steps:
        t -= steps // K
        stage += t >= 0
    return stage


@record(frozen=True, kw_only=True, config=STRICT)
class DescentAscent(Local[State]):
    """Settings of algorithms with a step size for each block.

    Attributes:
        eta, gamma: primal and dual step size.
    """

    eta: PositiveFloat
    gamma: PositiveFloat
