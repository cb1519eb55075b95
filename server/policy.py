"""The server's policy for devices that are late or drop out, and for results that cannot be used.

The policy is the section `server` of a configuration.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, Field, model_validator

from raysim.registry import STRICT

# The clock counts whole microseconds, in int64.
Duration = Annotated[float, Field(ge=1e-6, le=1e9)]
Pause = Annotated[float, Field(ge=0, le=1e9)]


class DropoutOverride(BaseModel):
    """Replaces deadlines and over-selection by the drop rule of the CD-MAGE authors' code.

    Attributes:
        uniform_ratio: r. Of the S clients invited in a phase, S - floor(U r S) are kept, with U uniform on [0, 1) and
            drawn anew for each phase. Who is kept is random; the clock is not touched.
    """

    model_config = STRICT

    uniform_ratio: Annotated[float, Field(ge=0, le=1)]


class PolicyConfig(BaseModel):
    """Holds section `server`. All keys but the first three count only where there are devices; S is the algorithm's.

    Attributes:
        bad_results: what happens to a client's result that is not finite or larger than `max_norm`. `stop` ends the
            run; `reject` leaves the result out of the mean and counts it. A phase of which no result is left has
            failed.
        max_norm: the largest Euclidean norm that a client's whole upload in a phase may have.
        max_failed_rounds: how many rounds in a row may fail; the run ends after one more.
        over_select: ceil(over_select S) devices are invited, or all that are eligible if they are fewer.
        close: when a phase closes. `first_s` closes it at the S-th arrival; without S arrivals by the deadline the
            phase has failed. `deadline` does the same, but a share `min_report` of S is enough by the deadline.
            `wait_all` waits for every invited device and accepts all, up to the deadline.
        responders: `fastest` accepts the first S arrivals; `uniform` accepts a random S of those that arrive by the
            deadline, which costs time and favours nobody.
        deadline_s: the most seconds that a phase lasts, and each device in it.
        min_report: the share of S that makes a phase valid, for `deadline` and `wait_all`.
        late: whether devices that are not waited for `finish` their task, and stay busy, or are told to `cancel` it.
        phase2_clients: who may be invited to the second and later phases of a round. `resample` invites anybody
            eligible, `same_candidates` those invited to the phase before, `responders` those accepted in it; where too
            few of them are left, anybody eligible fills them up. Without a value the algorithm decides: anybody, or the
            same.
        dropout_override: the drop rule of the CD-MAGE authors' code, in place of deadlines and over-selection.
        min_separation_rounds: how many rounds a device rests after it was invited.
        poll_s, max_wait_s: how often the server looks for devices when too few are eligible, and for how long, in
            seconds.
        aggregate_s: how many seconds the server itself takes at the end of a phase.
    """

    model_config = STRICT

    bad_results: Literal["stop", "reject"] = "stop"
    # In single precision the square of a norm above 1e19 overflows.
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
    def _require_consistent(self) -> "PolicyConfig":
        if self.close == "first_s" and self.min_report != 1:
            raise ValueError("min_report counts with close: deadline or wait_all; first_s needs all S")
        if self.close == "wait_all" and self.responders == "uniform":
            raise ValueError("responders: uniform does not go with close: wait_all, which accepts everybody")
        return self
