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
    """The drop rule of the CD-MAGE authors' code, in place of deadlines and over-selection.

    Attributes:
        uniform_ratio: r; of the S devices invited to a phase S - floor(U r S) are kept, with U uniform on [0, 1) and
            drawn anew for each phase. A random order decides which are kept; the clock is not touched.
    """

    model_config = STRICT

    uniform_ratio: Annotated[float, Field(ge=0, le=1)]


class PolicyConfig(BaseModel):
    """The section `server`, of which all but the first three keys count only where there are devices.

    Attributes:
        bad_results: `stop` ends the run at a client's result that is not finite or larger than `max_norm`; `reject`
            leaves the result out of the mean and counts it. A phase without any usable result has failed.
        max_norm: largest Euclidean norm of all that a client uploads in a phase.
        max_failed_rounds: the most rounds in a row that may fail before the run ends.
        over_select: ceil(over_select S) devices are invited, or all eligible ones if they are fewer; S is the
            algorithm's.
        close: `first_s` closes the phase at the S-th arrival, and the phase fails without S arrivals by the deadline;
            `deadline` does the same, but a share `min_report` of S is enough at the deadline; `wait_all` waits for
            every invited device and accepts all, up to the deadline.
        responders: `fastest` accepts the first S arrivals; `uniform` a random S of those that arrive by the deadline,
            which costs time and favours nobody.
        deadline_s: seconds from the invitations until the phase closes at the latest.
        min_report: share of S that makes a phase valid, for `deadline` and `wait_all`.
        late: `finish` lets devices that are not waited for finish their task, and they stay busy; `cancel` stops them.
        phase2_clients: the clients that may be invited to the second and later phases of a round: `resample` all
            eligible ones, `same_candidates` those invited to the phase before, `responders` those accepted in it; other
            eligible clients are added where too few of them are left. None follows the algorithm's cohort rule.
        dropout_override: see DropoutOverride.
        min_separation_rounds: rounds that a device rests after it was invited.
        poll_s, max_wait_s: seconds between two looks for devices when too few are eligible, and until the run ends.
        aggregate_s: seconds of the server's own work at the end of a phase.
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
