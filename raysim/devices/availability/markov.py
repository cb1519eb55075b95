"""Models devices that turn on and off as a two-state Markov chain, with a daily rhythm or without."""

from collections.abc import Sequence
from functools import cached_property
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from pydantic.dataclasses import dataclass as record

from raysim import draws
from raysim.devices.availability.model import Positive, Probability, Times
from raysim.devices.availability.poisson import PoissonProcess
from raysim.devices.availability.shares import ShareBased
from raysim.devices.clock import DAY_US, NEVER, SECOND_US
from raysim.registry import STRICT

_CERTAIN = 1e-9  # a device that is on with a probability this close to 0 or 1 is always off or always on


@record(frozen=True, kw_only=True, config=STRICT)
class Zone:
    """Describes a time zone.

    Attributes:
        offset_h: the hours by which the zone is ahead of the experiment's clock.
        weight: the zone's part of the clients, relative to the other zones' weights.
    """

    offset_h: Annotated[float, Field(ge=-24, le=24)] = 0.0
    weight: Positive = 1.0


@record(frozen=True, kw_only=True, config=STRICT)
class Diurnal:
    """Describes a daily rhythm: pi_k(t) = pi_k (1 + amplitude cos(2 pi (hour of day - peak_hour) / 24)), cut to [0, 1].

    The experiment starts at midnight in the zone with offset 0.

    Attributes:
        amplitude: a number from 0 to 1. 0.64 and one zone give the factor of 4 between day and night that Google
            reports (Bonawitz et al., 2019), after the damping of 0.94 that the memory of devices brings.
        peak_hour: the hour of a client's local day at which most devices are on.
        zones: the time zones. Each client is in one of them, which is drawn by weight.
    """

    amplitude: Probability
    peak_hour: Annotated[float, Field(ge=0, le=24)] = 2.0
    zones: Annotated[tuple[Zone, ...], Field(min_length=1)] = (Zone(),)


@record(frozen=True, kw_only=True, config=STRICT, eq=False)
class Markov(ShareBased):
    """Devices turn on and off as a two-state Markov chain in continuous time, with a daily rhythm or without.

    At the events of a Poisson process of rate r_k = 1 / (mean_on_s (1 - pi_k)) device k forgets its past: it is on from
    then with probability pi_k(t), and off otherwise. Without a rhythm that is exactly the chain whose on-times have the
    mean mean_on_s and whose share of on-time is pi_k, in its stationary law, with correlation exp(-r_k h) over time h.
    With one, the probability m(t) of being on obeys m' = r_k (pi_k(t) - m).

    Attributes:
        mean_on_s: the mean on-time without a rhythm, in seconds. 6,400 s is that of 300 phones of the FLASH traces with
            off-times of up to a minute filled, and reproduces their autocorrelation over minutes and hours.
        diurnal: the daily rhythm; None for none. With a rhythm a device's memory 1 / r_k is at least a minute, since
            a device with pi_k near 1 would flicker in its less available hours. By default that concerns devices with
            pi_k above 0.99.

    The other attributes are those of `ShareBased`.
    """

    mean_on_s: Annotated[float, Field(ge=1, le=1e9)] = 6400.0
    diurnal: Diurnal | None = None

    def on(self, clients: NDArray[np.int64], t_us: int, round: int) -> NDArray[np.bool_]:
        answer = self._floors[clients] > 1 - _CERTAIN
        places = np.flatnonzero(self._changes[clients])
        changing = clients[places]
        last, events = self._turns.nearest(changing, np.float64(-np.inf), np.float64(t_us), forward=False)
        answer[places] = self._turns_on(changing, last, events)
        # A rescue after the last turn has turned the device on again.
        unsure = np.flatnonzero(~answer[places] & (self._floors[changing] > 0))
        rescue, _ = self._rescues.nearest(changing[unsure], last[unsure], np.float64(t_us), forward=False)
        answer[places[unsure]] = np.isfinite(rescue)
        return answer

    def off_at(self, clients: NDArray[np.int64], t_us: Times, round: int, horizon_us: int) -> NDArray[np.int64]:
        answer = np.full(len(clients), NEVER)
        places = np.flatnonzero(self._changes[clients])
        begin = np.broadcast_to(np.asarray(t_us, dtype=np.float64), len(clients))[places]
        answer[places] = _whole(self._next_turn(clients[places], begin, begin + horizon_us, to_on=False))
        return answer

    def on_at(self, clients: NDArray[np.int64], t_us: Times, round: int, horizon_us: int) -> NDArray[np.int64]:
        answer = np.full(len(clients), NEVER)
        places = np.flatnonzero(self._changes[clients])
        changing = clients[places]
        begin = np.broadcast_to(np.asarray(t_us, dtype=np.float64), len(clients))[places]
        first = self._next_turn(changing, begin, begin + horizon_us, to_on=True)
        rescued = np.flatnonzero(self._floors[changing] > 0)
        rescue, _ = self._rescues.nearest(
            changing[rescued], begin[rescued], np.minimum(first, begin + horizon_us)[rescued], forward=True
        )
        first[rescued] = np.minimum(first[rescued], rescue)
        answer[places] = _whole(first)
        return answer

    @property
    def zones(self) -> tuple[Sequence[str], NDArray[np.int16]] | None:
        if self.diurnal is None or len(self.diurnal.zones) == 1:
            return None
        return [f"UTC{zone.offset_h:+g}" for zone in self.diurnal.zones], self._zone

    def _next_turn(
        self, clients: NDArray[np.int64], after: NDArray[np.float64], until: NDArray[np.float64], to_on: bool
    ) -> NDArray[np.float64]:
        """Returns the time of each client's first turn in (after, until] to on, or to off; infinite if none is."""
        found = np.full(len(clients), np.inf)
        places = np.arange(len(clients))
        while len(places):
            after, events = self._turns.nearest(clients[places], after, until[places], forward=True)
            some = np.isfinite(after)
            right = some & (self._turns_on(clients[places], after, events) == to_on)
            found[places[right]] = after[right]
            other = some & ~right
            places, after = places[other], after[other]
        return found

    # The Poisson process of rate r is split in two, by the least value `floor` of pi(t): events of rate r * floor
    # always turn the device on ("rescues"), and those of rate r * (1 - floor) turn it on with probability
    # (pi(t) - floor) / (1 - floor), or off ("turns"). Without a rhythm every turn is to off, so that the end of an
    # on-time is the next event of a process of rate 1/mean_on, however close to 1 the share is.

    @cached_property
    def _floors(self) -> NDArray[np.float64]:
        """Holds (clients,) the least value of pi_k(t)."""
        return self.shares if self.diurnal is None else self.shares * (1 - self.diurnal.amplitude)

    @cached_property
    def _changes(self) -> NDArray[np.bool_]:
        """Tells (clients,) whether each client is ever on and ever off."""
        return (self.shares >= _CERTAIN) & (self._floors <= 1 - _CERTAIN)

    @cached_property
    def _memory_us(self) -> NDArray[np.float64]:
        """Holds (clients,) 1 / r_k in microseconds."""
        memory = self.mean_on_s * SECOND_US * (1 - self.shares)
        return memory if self.diurnal is None else np.maximum(memory, 60 * SECOND_US)

    @cached_property
    def _turns(self) -> PoissonProcess:
        gap_us = _quotient(self._memory_us, 1 - self._floors, self._changes)
        return PoissonProcess(self.seed, "availability turn", gap_us)

    @cached_property
    def _rescues(self) -> PoissonProcess:
        gap_us = _quotient(self._memory_us, self._floors, self._changes & (self._floors > 0))
        return PoissonProcess(self.seed, "availability rescue", gap_us)

    @cached_property
    def _zone(self) -> NDArray[np.int16]:
        """Holds (clients,) the number of each client's time zone."""
        zones = (Zone(),) if self.diurnal is None else self.diurnal.zones
        bounds = np.cumsum([zone.weight for zone in zones])
        u = draws.uniform(self.seed, "time zone", np.arange(self.clients))
        return np.searchsorted(bounds[:-1] / bounds[-1], u, side="right").astype(np.int16)

    @cached_property
    def _offsets_us(self) -> NDArray[np.float64]:
        """Holds (clients,) the microseconds by which each client's clock is ahead of the experiment's."""
        zones = (Zone(),) if self.diurnal is None else self.diurnal.zones
        return np.array([zone.offset_h for zone in zones])[self._zone] * 3600.0 * SECOND_US

    def _turns_on(
        self, clients: NDArray[np.int64], t_us: NDArray[np.float64], events: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Tells (clients,) whether each client's turn at `t_us`, whose number is in `events`, is to on."""
        if self.diurnal is None:
            return np.zeros(len(clients), dtype=bool)
        days = (t_us + self._offsets_us[clients]) / DAY_US - self.diurnal.peak_hour / 24
        days = np.where(np.isfinite(days), days, 0.0)  # where there is no turn, the answer has no meaning
        shares, floors = self.shares[clients], self._floors[clients]
        now = np.minimum(shares * (1 + self.diurnal.amplitude * np.cos(2 * np.pi * days)), 1)
        return draws.uniform(self.seed, "availability mark", clients, events) * (1 - floors) < now - floors


def _whole(times: NDArray[np.float64]) -> NDArray[np.int64]:
    """Rounds times up to whole microseconds, and makes infinite ones NEVER."""
    finite = np.isfinite(times)
    return np.where(finite, np.ceil(np.where(finite, times, 0)).astype(np.int64), NEVER)


def _quotient(a: NDArray[np.float64], b: NDArray[np.float64], where: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Returns a / b at the places `where` and 1 at the others."""
    return np.divide(a, b, out=np.ones_like(a), where=where)
