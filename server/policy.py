"""What the server does about devices that come late or not at all, and about results that cannot be used.

It is section `server` of a configuration.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, Field, model_validator

from raysim.registry import STRICT

# The clock counts whole microseconds, in int64.
Duration = Annotated[float, Field(ge=1e-6, le=1e9)]
Pause = Annotated[float, Field(ge=0, le=1e9)]


class DropoutOverride(BaseModel):
    """The drop rule of the CD-MAGE authors' code, in place of deadlines and over-selection.

    Attributes:
        uniform_ratio: r; of the S invited in a phase, S - floor(U r S) are kept, U uniform on [0, 1) and drawn anew for
            each phase. Who is kept is random; the clock is not touched.
    """

    model_config = STRICT

    uniform_ratio: Annotated[float, Field(ge=0, le=1)]


class PolicyConfig(BaseModel):
    """Section `server`. But for its first three keys it counts only where there are devices; S is the algorithm's.

    Attributes:
        bad_results: whether a client's result that is not finite or larger than `max_norm` will `stop` the run, or
            `reject` leaves it out of the mean and counts it. A phase of which no result is left has failed.
        max_norm: largest Euclidean norm of all that a client uploads in a phase.
        max_failed_rounds: failed rounds in a row that are put up with.
        over_select: ceil(over_select S) devices are invited, at most the eligible.
        close: `first_s` closes the phase at the S-th arrival, and without S arrivals by the deadline it has failed;
            `deadline` alike, but a share `min_report` of S is enough by then; `wait_all` waits for every invited device
            and accepts all, up to the deadline.
        responders: `fastest` accepts the first S arrivals; `uniform` a random S of those that arrive by the deadline,
            which costs time and favours nobody.
        deadline_s: of a phase and of each device in it, seconds.
        min_report: share of S that makes a phase valid, for `deadline` and `wait_all`.
        late: whether devices that are not waited for `finish` their task (and stay busy) or are told to `cancel`.
        phase2_clients: who may be invited to the second and later phases of a round: `resample` anybody eligible,
            `same_candidates` those invited to the phase before, `responders` those accepted in it; filled up from
            anybody eligible where too few of them are left. None follows the algorithm: anybody, or the same.
        dropout_override: see DropoutOverride.
        min_separation_rounds: rounds a device rests after it was invited.
        poll_s, max_wait_s: how often, and for how long, the server looks for devices when too few are eligible.
        aggregate_s: the server's own time at the end of a phase.
    """

    model_config = STRICT

    bad_results: Literal["stop", "reject"] = "stop"
    # In single precision the norm itself ends at 1e19.
    max_norm: Annotated[float, Field(gt=0, le=1e18)] = 1e12
    max_failed_rounds: Annotated[int, Field(ge=0)] = 10
    over_select: Annotated[float, Field(ge=1)] = 1.3
    close: Literal["first_s", "deadline", "wait_all"] = "first_s"
    responders: Literal["fastest", "uniform"] = "fastest"
    deadline_s: Duration = 300.0
    min_report: Annotated[float, Field(gt=0, le=1)] = 1.0
    late: Literal["finish", "cancel"] = "finish"
    phase2_clients: Literal["resample", "same_candidates", "responders"] | None = None
    dropout_override: DropoutOverride | None = None
    min_separation_rounds: Annotated[int, Field(ge=0)] = 0
    poll_s: Duration = 60.0
    max_wait_s: Pause = 86_400.0
    aggregate_s: Pause = 1.0

    @model_validator(mode="after")
    def _together(self) -> "PolicyConfig":
        if self.close == "first_s" and self.min_report != 1:
            raise ValueError("min_report counts with close: deadline or wait_all; first_s needs all S")
        if self.close == "wait_all" and self.responders == "uniform":
            raise ValueError("responders: uniform does not go with close: wait_all, which accepts everybody")
        return self
