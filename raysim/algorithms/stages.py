"""Stages: stretches of an experiment after which a method moves its proximal centre and shortens its step.

J. Xie et al., "Efficient cross-device federated learning algorithms for minimax problems", 2021,
https://arxiv.org/abs/2105.14216v2, appendix B.1, where a stage is K_0 local updates: as many rounds as fit into it.
"""

from typing import Annotated

from pydantic import Field, PositiveInt

from raysim.errors import ConfigError

StageSteps = PositiveInt | tuple[PositiveInt, ...]
Decay = Annotated[float, Field(ge=1)]


def check_stages(stage_steps: StageSteps, K: int) -> None:
    """Raises ConfigError where a stage is shorter than a round of K local steps."""
    for steps in (stage_steps,) if isinstance(stage_steps, int) else stage_steps:
        if steps < K:
            raise ConfigError(
                "algorithm.stage_steps", f"a stage of {steps} local steps is shorter than a round of K = {K}; take more"
            )


def stage_of(t: int, stage_steps: StageSteps, K: int) -> int:
    """The stage of round t = 0, 1, ...: all of a length, or, after those that are listed, a last one without end."""
    if isinstance(stage_steps, int):
        return t // (stage_steps // K)
    stage = 0
    for steps in stage_steps:
        t -= steps // K
        stage += t >= 0
    return stage
