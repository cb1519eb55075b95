"""The fates of the devices that are invited to a phase, as pure functions of their tasks, absences and the policy.

Legend: C invited clients. Times are int64 microseconds, counted from the invitation.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from raysim import draws
from raysim.devices import FOREVER_US, SECOND_US, Tasks
from server.policy import PolicyConfig

# The names of fates, in the order of the ledger's columns.
FATES = ("accepted", "late", "cancelled", "dropped_offline", "dropped_failed", "dropped_link", "timed_out")
ACCEPTED, LATE, CANCELLED, OFFLINE, FAILED, LINK, TIMED_OUT = range(len(FATES))

Times = NDArray[np.int64]


@dataclass(frozen=True)
class Ends:
    """The end of each task, arrays of shape (C,).

    Attributes:
        fate: an index of FATES.
        at_us: the instant of the end.
    """

    fate: NDArray[np.int64]
    at_us: Times


@dataclass(frozen=True)
class Absences:
    """The times at which devices are off within their tasks.

    Attributes:
        stretches: (off from, on again) of each device's first absence, its second, ...; FOREVER_US where there is none.
        pause: True if a task goes on when its device comes back; False if it ends with the first absence.
    """

    stretches: Sequence[tuple[Times, Times]]
    pause: bool

    def first_us(self, size: int) -> Times:
        """Returns the instant at which each of `size` devices first turns off, FOREVER_US if it never does."""
        return self.stretches[0][0] if self.stretches else np.full(size, FOREVER_US)

    def worked_us(self, at_us: Times) -> Times:
        """Returns how long each device has been on at its own instant `at_us`, (C,)."""
        return at_us - sum((np.clip(at_us, begin, end) - begin for begin, end in self.stretches), np.zeros_like(at_us))

    def off(self, at_us: int, size: int) -> NDArray[np.bool_]:
        """Returns True for the devices that are off at the instant `at_us`, (C,)."""
        away = np.zeros(size, bool)
        for begin, end in self.stretches:
            away |= (begin <= at_us) & (at_us < end)
        return away

    def done_us(self, total_us: Times) -> Times:
        """Returns when tasks of these lengths are done if only absences delay them, FOREVER_US if they never are."""
        done_us = total_us
        for begin, end in self.stretches:
            away = begin < done_us
            done_us = np.where(away, np.minimum(done_us + (end - begin), FOREVER_US), done_us)
        return done_us


@dataclass(frozen=True)
class Draw:
    """The random draws at the close of a phase."""

    seed: int
    round: int
    phase: str
    clients_C: NDArray[np.int64]

    def ties(self) -> NDArray[np.uint64]:
        """Draws a random order of the invited devices, (C,), which decides between equal arrivals."""
        return draws.bits(self.seed, "tie", self.round, draws.code(self.phase), self.clients_C)

    def dropout(self) -> float:
        """Draws a uniform number on [0, 1)."""
        return float(draws.uniform(self.seed, "dropout", self.round, draws.code(self.phase)))


def undisturbed(tasks: Tasks, absences: Absences, policy: PolicyConfig) -> Ends:
    """Returns how each task would end if the server never closed: by arrival, absence, failure, or the deadline."""
    deadline_us, size = microseconds(policy.deadline_s), len(tasks.total_us)
    arrival_us = absences.done_us(tasks.total_us)
    off_us = np.full(size, FOREVER_US) if absences.pause else absences.first_us(size)
    hurdle_us = np.minimum(np.minimum(off_us, tasks.fail_us), deadline_us)
    worked_us = absences.worked_us(np.full(size, deadline_us))
    computing = (worked_us >= tasks.wait_us + tasks.down_us) & (
        worked_us < tasks.wait_us + tasks.down_us + tasks.compute_us
    )
    fate = np.select(
        [
            arrival_us <= hurdle_us,
            off_us == hurdle_us,
            tasks.fail_us == hurdle_us,
            absences.off(deadline_us, size),
            ~computing,
        ],
        [ACCEPTED, OFFLINE, FAILED, OFFLINE, LINK],
        TIMED_OUT,
    )
    return Ends(fate, np.minimum(arrival_us, hurdle_us))


def close(ends: Ends, tasks: Tasks, S: int, policy: PolicyConfig, drawn: Draw) -> tuple[Ends, int]:
    """Returns the ends of the tasks when the phase closes, and the instant of the close, by the policy."""
    tie_C = drawn.ties()
    arrived = np.flatnonzero(ends.fate == ACCEPTED)
    fate, at_us = ends.fate.copy(), ends.at_us.copy()
    deadline_us = microseconds(policy.deadline_s)
    everyone_us = int(ends.at_us.max()) if len(arrived) == len(fate) else deadline_us
    if policy.dropout_override:
        kept = S - math.floor(drawn.dropout() * policy.dropout_override.uniform_ratio * S)
        dropped = arrived[np.argsort(tie_C[arrived])][kept:]
        fate[dropped] = FAILED
        at_us[dropped] -= tasks.up_us[dropped]  # everything was done but the upload
        return Ends(fate, at_us), everyone_us
    if policy.close == "wait_all":
        return ends, everyone_us
    order = np.lexsort((tie_C[arrived], ends.at_us[arrived]) if policy.responders == "fastest" else (tie_C[arrived],))
    chosen = arrived[order][:S]
    close_us = int(ends.at_us[chosen].max()) if len(chosen) == S else deadline_us
    fate[arrived] = LATE
    fate[chosen] = ACCEPTED
    if policy.late == "cancel":
        running = at_us > close_us
        fate[running], at_us[running] = CANCELLED, close_us
    return Ends(fate, at_us), close_us


def shares(tasks: Tasks, worked_us: Times) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Returns the shares in [0, 1] of download, computation and upload that are done after `worked_us` of work."""

    def share(begin_us: Times, part_us: Times) -> NDArray[np.float64]:
        spent_us = np.clip(worked_us - begin_us, 0, part_us)
        return np.where(part_us > 0, spent_us / np.maximum(part_us, 1), worked_us >= begin_us)

    down, compute = tasks.wait_us, tasks.wait_us + tasks.down_us
    return (
        share(down, tasks.down_us),
        share(compute, tasks.compute_us),
        share(compute + tasks.compute_us, tasks.up_us),
    )


def microseconds(seconds: float) -> int:
    """Returns a duration of the configuration in whole microseconds of the clock."""
    return round(seconds * SECOND_US)


def ceil(x: float) -> int:
    """Returns the ceiling of x, with x a rounding error above a whole number taken for that number: 1.1 x 10 is 11."""
    return math.ceil(x - 1e-9)
