"""Dispatchers decide who takes part in a phase: a draw from all clients, or the fates of devices on a simulated clock.

The order of events in a phase: the eligible devices; waiting while they are too few; invitations; the fate of each
device; the close; the bookings. All of it is computed before any training, so that only accepted clients cost compute
here, while late and dropped ones are booked in seconds and bytes up to the instant that they reached.

Legend: N all clients, C invited clients. Times are int64 microseconds since the experiment's start, unless another
origin is named.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from raysim import draws
from raysim.devices import FOREVER_US, NEVER, SECOND_US, Availability, Population, Tasks
from raysim.errors import NotEnoughDevices, RoundsFailed
from raysim.phase import Phase, Same, Uniform
from raysim.wire import Traffic
from server import fates
from server.fates import ACCEPTED, FATES, Absences, Draw, microseconds
from server.plan import Planner
from server.policy import PolicyConfig

AnyClock = TypeVar("AnyClock")
Clients = NDArray[np.int64]
AnyPhase = Phase[Any, Any, Any, Any]


@dataclass(frozen=True)
class Outcome:
    """The outcome of a phase.

    Attributes:
        wanted: S.
        accepted: clients whose results count, ascending.
        invited: all clients that were asked, ascending.
        informed: the invited clients that have received the whole message.
        valid: True if enough clients were accepted; otherwise the round has failed.
        bytes_down, bytes_up: bytes of all invited clients together.
        devices: the ledger's device columns; empty where there are no devices.
        spent: for each cost among `devices`, the share of each accepted client.
        rejected: clients that would have been accepted, but whose results could not be used, ascending.
    """

    wanted: int
    accepted: Clients
    invited: Clients
    informed: Clients
    valid: bool
    bytes_down: int
    bytes_up: int
    devices: Mapping[str, float | int] = field(default_factory=dict)
    spent: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    rejected: Clients = field(default_factory=lambda: np.zeros(0, np.int64))

    def without(self, rejected: Sequence[int]) -> "Outcome":
        """Returns the outcome after the results of some accepted clients have turned out to be unusable."""
        unusable = np.isin(self.accepted, rejected)
        devices = dict(self.devices)
        if devices:
            devices["accepted"] -= int(unusable.sum())
        for cost, spent in self.spent.items():
            wasted = float(spent[unusable].sum())
            devices[f"{cost}_wasted"] += wasted if cost == "compute_s" else round(wasted)
        left, others = self.accepted[~unusable], self.accepted[unusable]
        return replace(self, accepted=left, valid=len(left) > 0, devices=devices, rejected=others)


class Dispatcher(Protocol[AnyClock]):
    """Decides the cohort of a phase. Its only state between phases is a clock, which the server holds."""

    def start(self) -> AnyClock:
        """Returns the clock before the first round."""

    def dispatch(self, clock: AnyClock, phase: AnyPhase, t: int, traffic: Traffic, before: Outcome | None) -> Outcome:
        """Returns the outcome of round t's `phase` and moves the clock; `before` is the outcome of the phase before."""

    def round_ended(self, clock: AnyClock, t: int, last: Outcome) -> None:
        """Takes note of each round's last phase. Raises RoundsFailed where too many rounds in a row have failed."""

    def now_s(self, clock: AnyClock) -> float | None:
        """Returns the simulated seconds since the start; None without a clock."""


@dataclass
class Streak:
    """Counts the rounds that have failed in a row.

    Attributes:
        failed: the number of rounds.
        rejected: the number of results of their last phases that could not be used.
    """

    failed: int = 0
    rejected: int = 0

    def count(self, last: Outcome) -> None:
        """Counts another round, by the outcome of its last phase."""
        self.failed = 0 if last.valid else self.failed + 1
        self.rejected = 0 if last.valid else self.rejected + len(last.rejected)

    def require_success(self, t: int, policy: PolicyConfig, why: str, instead: str) -> None:
        """Raises RoundsFailed where more rounds have failed in a row than the policy allows."""
        if self.failed > policy.max_failed_rounds:
            rejected = f"; {self.rejected} results could not be used" if self.rejected else ""
            raise RoundsFailed(
                f"round {t}: {self.failed} rounds in a row have failed{why}{rejected}. {instead}, or allow more with "
                "server.max_failed_rounds"
            )


@dataclass(frozen=True)
class Ideal:
    """Samples S of N clients uniformly, all of which answer at once and never fail; there is no simulated time."""

    planner: Planner
    policy: PolicyConfig

    def start(self) -> Streak:
        return Streak()

    def dispatch(self, clock: Streak, phase: AnyPhase, t: int, traffic: Traffic, before: Outcome | None) -> Outcome:
        cohort = self.planner.cohort(phase.cohort, t, phase.name, None if before is None else before.accepted)
        n = len(cohort)
        return Outcome(n, cohort, cohort, cohort, True, n * traffic.to(phase), n * traffic.up)

    def round_ended(self, clock: Streak, t: int, last: Outcome) -> None:
        clock.count(last)
        clock.require_success(t, self.policy, "", "Lower the algorithm's steps")

    def now_s(self, clock: Streak) -> None:
        return None


@dataclass(kw_only=True)
class Clock(Streak):
    """The simulated clock, with the server's knowledge of its devices between phases.

    Attributes:
        now_us: simulated time.
        busy_until_us: (N,) the instant at which each device has finished its last task.
        last_round: (N,) the round in which each device was last invited; far in the past if it never was.
        fates: number of devices by fate, over the rounds that have failed in a row.
    """

    busy_until_us: NDArray[np.int64]
    last_round: NDArray[np.int64]
    now_us: int = 0
    fates: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FATES, 0))

    @property
    def now_s(self) -> float:
        """The simulated seconds since the start."""
        return self.now_us / SECOND_US


@dataclass(frozen=True)
class Devices:
    """Decides cohorts by the fates of devices.

    Attributes:
        planner: its seed draws invitations, and its minibatches decide how long tasks take.
        population, availability: the devices, and when they are on.
        policy: the section `server` of the configuration.
    """

    planner: Planner
    population: Population
    availability: Availability
    policy: PolicyConfig

    def start(self) -> Clock:
        """Returns a clock at time 0, with devices that have never been invited."""
        size = self.population.size
        return Clock(busy_until_us=np.zeros(size, np.int64), last_round=np.full(size, -(2**40), np.int64))

    def dispatch(self, clock: Clock, phase: AnyPhase, t: int, traffic: Traffic, before: Outcome | None) -> Outcome:
        """Returns the outcome of a phase and moves the clock, as Dispatcher says. Raises NotEnoughDevices."""
        S = phase.cohort.S if isinstance(phase.cohort, Uniform) else _wanted(before)
        asked_us = clock.now_us
        eligible, available = self._await_devices(clock, t, phase.name, S)
        start_us = clock.now_us
        invited, topped_up = self._invite(phase, t, S, eligible, before)
        informed = before is not None and np.isin(invited, before.informed)
        down_C = traffic.down - traffic.held * np.broadcast_to(informed, invited.shape)
        gradients = (self.planner.samples(each.work, invited) * each.evaluations for each in phase.passes)
        samples_C = np.rint(sum(gradients)).astype(np.int64)
        tasks = self.population.tasks(invited, t, phase.name, samples_C, down_C, traffic.up)
        absences = self._absences(invited, start_us, t, tasks)
        drawn = Draw(self.planner.seed, t, phase.name, invited)
        ends, close_us = fates.close(fates.undisturbed(tasks, absences, self.policy), tasks, S, self.policy, drawn)

        accepted = ends.fate == ACCEPTED
        valid = int(accepted.sum()) >= (1 if self.policy.dropout_override else self._needed(S))
        clock.busy_until_us[invited] = start_us + ends.at_us
        clock.last_round[invited] = t
        clock.now_us = start_us + close_us + microseconds(self.policy.aggregate_s)
        counts = {name: int((ends.fate == code).sum()) for code, name in enumerate(FATES)}
        for name, count in counts.items():
            clock.fates[name] += count

        received_C, computed_C, sent_C = fates.shares(tasks, absences.worked_us(ends.at_us))
        useful = accepted & valid
        bytes_down_C, bytes_up_C = received_C * down_C, sent_C * traffic.up
        compute_s_C = computed_C * tasks.compute_us / SECOND_US
        devices = {
            "start_s": start_us / SECOND_US,
            "close_s": (start_us + close_us) / SECOND_US,
            "wait_s": (start_us - asked_us) / SECOND_US,
            "available": available,
            "eligible": len(eligible),
            "invited": len(invited),
            "topped_up": topped_up,
            **counts,
            "bytes_down_wasted": round(bytes_down_C[~useful].sum()),
            "bytes_up_wasted": round(bytes_up_C[~useful].sum()),
            "compute_s": float(compute_s_C.sum()),
            "compute_s_wasted": float(compute_s_C[~useful].sum()),
        } | self._energy(tasks, received_C, computed_C, sent_C)
        spent = {"bytes_down": bytes_down_C, "bytes_up": bytes_up_C, "compute_s": compute_s_C}
        return Outcome(
            S, invited[accepted], invited, invited[received_C == 1], valid,
            round(bytes_down_C.sum()), round(bytes_up_C.sum()), devices,
            {cost: spent_C[accepted] for cost, spent_C in spent.items()},
        )  # fmt: skip

    def round_ended(self, clock: Clock, t: int, last: Outcome) -> None:
        clock.count(last)
        counts = ", ".join(f"{n} {name}" for name, n in clock.fates.items() if n)
        clock.require_success(
            t, self.policy,
            f" at {clock.now_s / 3600:.1f} simulated hours; of the devices invited in them: {counts or 'none'}",
            "Raise server.over_select or server.deadline_s, lower S or server.min_report",
        )  # fmt: skip
        if last.valid:
            clock.fates = dict.fromkeys(FATES, 0)

    def now_s(self, clock: Clock) -> float:
        return clock.now_s

    @cached_property
    def _able_N(self) -> NDArray[np.bool_]:
        """The devices that could ever take part, (N,): with rows, enough memory and a link."""
        return (self.planner.rows_N > 0) & self.population.has_memory_N & self.population.has_link_N

    def _needed(self, S: int) -> int:
        return max(1, fates.ceil(self.policy.min_report * S))

    def _await_devices(self, clock: Clock, t: int, phase: str, S: int) -> tuple[Clients, int]:
        """Moves the clock until enough devices are eligible. Returns these, and the number of devices that are on.

        Raises NotEnoughDevices after `max_wait_s`.
        """
        policy = self.policy
        everybody = np.arange(len(self._able_N))
        rested = (t == clock.last_round) | (t - clock.last_round > policy.min_separation_rounds)
        asked_us = clock.now_us
        hopeless = int((self._able_N & rested).sum()) < self._needed(S)  # no waiting would help
        while True:
            on = self.availability.on(everybody, clock.now_us, t)
            idle = clock.busy_until_us <= clock.now_us
            eligible = np.flatnonzero(on & self._able_N & idle & rested)
            if len(eligible) >= self._needed(S):
                return eligible, int(on.sum())
            if hopeless or clock.now_us - asked_us >= microseconds(policy.max_wait_s):
                break
            change = self.availability.next_change(clock.now_us)
            clock.now_us = min(NEVER if change is None else change, clock.now_us + microseconds(policy.poll_s))
        reasons = {
            "without rows": ~(self.planner.rows_N > 0),
            "with too little memory": ~self.population.has_memory_N,
            "without a link": ~self.population.has_link_N,
            "busy": ~idle,
            "resting": ~rested,
            "off": ~on,
        }
        counts = ", ".join(f"{int(excluded.sum())} {name}" for name, excluded in reasons.items() if excluded.any())
        raise NotEnoughDevices(
            f"round {t}, phase {phase!r}: {self._needed(S)} devices are needed, and {len(eligible)} of {len(on)} are "
            f"eligible after waiting {(clock.now_us - asked_us) / SECOND_US:.0f} s ({counts}; one may count "
            "twice). Lower S, raise the devices' availability, or wait longer with server.max_wait_s"
        )

    def _invite(
        self, phase: AnyPhase, t: int, S: int, eligible: Clients, before: Outcome | None
    ) -> tuple[Clients, int]:
        """Draws the invited devices. Returns them, and how many of them are from outside `phase2_clients`' rule."""
        policy = self.policy
        n = min(len(eligible), S if policy.dropout_override else fates.ceil(policy.over_select * S))
        rule = policy.phase2_clients or ("same_candidates" if isinstance(phase.cohort, Same) else "resample")
        pool = eligible
        if before is not None and rule != "resample":
            pool = np.intersect1d(eligible, before.invited if rule == "same_candidates" else before.accepted)
        where = (self.planner.seed, t, draws.code(phase.name))
        first = draws.sample(pool, min(n, len(pool)), where[0], "cohort", *where[1:])
        others = np.setdiff1d(eligible, first, assume_unique=True)
        more = draws.sample(others, n - len(first), where[0], "top up", *where[1:])
        return np.sort(np.concatenate([first, more])), len(more)

    def _absences(self, invited: Clients, start_us: int, t: int, tasks: Tasks) -> Absences:
        """Returns when devices are off within their tasks, up to the deadline; once only where that ends a task."""
        deadline_us = microseconds(self.policy.deadline_s)
        pause = self.population.model.failure.on_offline == "pause"
        left_us, now_us = tasks.total_us.copy(), np.zeros(len(invited), np.int64)
        absences: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        active = np.arange(len(invited))
        while len(active):
            off_us = self.availability.off_at(invited[active], start_us + now_us[active], t, deadline_us)
            off_us = np.where(off_us == NEVER, FOREVER_US, off_us - start_us)
            early = (off_us < now_us[active] + left_us[active]) & (off_us <= deadline_us)
            active, off_us = active[early], off_us[early]
            if not len(active):
                break
            back_us = np.full(len(active), NEVER)
            if pause:
                back_us = self.availability.on_at(invited[active], start_us + off_us, t, deadline_us)
            back_us = np.where(back_us == NEVER, FOREVER_US, back_us - start_us)
            begin, end = np.full(len(invited), FOREVER_US), np.full(len(invited), FOREVER_US)
            begin[active], end[active] = off_us, back_us
            absences.append((begin, end))
            left_us[active] -= off_us - now_us[active]
            now_us[active] = back_us
            active = active[back_us < deadline_us]
        return Absences(absences, pause)

    def _energy(self, tasks: Tasks, *shares: NDArray[np.float64]) -> dict[str, float]:
        """Returns `energy_j` of all invited devices together, or nothing where the devices' powers are unknown."""
        watts = self.population.model.energy
        if watts is None:
            return {}
        parts = (tasks.down_us, tasks.compute_us, tasks.up_us)
        powers = (watts.rx_w, watts.compute_w, watts.tx_w)
        joules = sum(
            power * float((share * part_us).sum()) / SECOND_US
            for power, share, part_us in zip(powers, shares, parts, strict=True)
        )
        return {"energy_j": joules}


def _wanted(before: Outcome | None) -> int:
    assert before is not None, "a phase for the same clients follows another"
    return before.wanted
