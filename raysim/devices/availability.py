"""When devices are on: models of availability, each a pure function of the seed, the client and the instant.

Times are int64 microseconds since the start of the experiment. No model has state: an answer does not depend on earlier
questions, on which clients are asked together, or on how many there are.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Discriminator, Field, Tag
from pydantic.dataclasses import dataclass as record
from scipy.special import betaincinv, expit, logit

from raysim import draws
from raysim.devices.traces import SECOND_US, Format, Intervals, read_intervals
from raysim.errors import ConfigError
from raysim.registry import STRICT, Registry

NEVER = int(np.iinfo(np.int64).max)

Times = int | NDArray[np.int64]

Positive = Annotated[float, Field(gt=0)]
Probability = Annotated[float, Field(ge=0, le=1)]

_CERTAIN = 1e-9  # a device that is on with a probability this close to 0 or 1 is always off or always on
_DAY_US = 86_400 * SECOND_US

# P(N <= n) for N ~ Poisson(1); by sums and quotients alone, which are the same to the bit on every machine.
_COUNTS = np.cumsum(1 / np.array([math.factorial(n) for n in range(20)], dtype=np.float64)) / math.e
_COUNTS[-1] = 1.0


class Availability(ABC):
    """A model of availability: a frozen record whose fields are its settings.

    `round` matters only to models without time. `clients` are numbers from 0, in any order.
    """

    @abstractmethod
    def on(self, clients: NDArray[np.int64], t_us: int, round: int) -> NDArray[np.bool_]:
        """(clients,) whether each is on at `t_us`."""

    @abstractmethod
    def off_at(self, clients: NDArray[np.int64], t_us: Times, round: int, horizon_us: int) -> NDArray[np.int64]:
        """(clients,) the first instant in (t_us, t_us + horizon_us] at which each is off, NEVER where there is none.

        The clients must be on at `t_us`, one instant or one each; for others the answer has no meaning.
        """

    @abstractmethod
    def on_at(self, clients: NDArray[np.int64], t_us: Times, round: int, horizon_us: int) -> NDArray[np.int64]:
        """(clients,) the first instant in (t_us, t_us + horizon_us] at which each is on, NEVER where there is none.

        The clients must be off at `t_us`, one instant or one each; for others the answer has no meaning.
        """

    def next_change(self, t_us: int) -> int | None:
        """The first instant after `t_us` at which any client turns on or off; None: not known, or never."""
        return None

    @property
    def zones(self) -> "tuple[Sequence[str], NDArray[np.int16]] | None":
        """Names of time zones, and (clients,) which of them each client is in; None where there is but one."""
        return None


@record(frozen=True, kw_only=True, config=STRICT)
class Always(Availability):
    """Every device is always on."""

    def on(self, clients: NDArray[np.int64], t_us: int, round: int) -> NDArray[np.bool_]:
        return np.ones(len(clients), dtype=bool)

    def off_at(self, clients: NDArray[np.int64], t_us: Times, round: int, horizon_us: int) -> NDArray[np.int64]:
        return np.full(len(clients), NEVER)

    on_at = off_at


@record(frozen=True, kw_only=True, config=STRICT)
class Beta:
    """Shares drawn from a Beta distribution, one for each client.

    Attributes:
        beta: its two parameters. 1.42 and 5.92, with the mean 0.193, were fitted to the charging times of 291 phones of
            the FLASH traces (Yang et al., 2021).
    """

    beta: tuple[Positive, Positive] = (1.42, 5.92)


@record(frozen=True, kw_only=True, config=STRICT)
class Label:
    """Availability that depends on a client's labels, as in MIFA (Gu et al., 2021).

    Attributes:
        p_min: a client with score g keeps p_min + (1 - p_min) g of its share; the score is the share of positives.
    """

    p_min: Probability = 0.1


def _kind(share: Any) -> str:
    """Which of its two forms a share has, so that errors speak of that form alone."""
    return "distribution" if isinstance(share, dict | Beta) else "number"


@record(frozen=True, kw_only=True, config=STRICT, eq=False)
class Shared(Availability):
    """A model in which each client is on for a share of time of its own.

    Attributes:
        share: the same number from 0 to 1 for every client, or the distribution that they are drawn from.
        label: multiplies shares by a function of labels; None leaves them alone.
        seed, clients: supplied: the seed of the devices' chance and the number of clients.
        scores: supplied: (clients,) each client's label score from 0 to 1.

    Raises:
        ConfigError: `label` is set and there is no score for each client, or one out of range.
    """

    share: Annotated[
        Annotated[Probability, Tag("number")] | Annotated[Beta, Tag("distribution")], Discriminator(_kind)
    ] = Beta()
    label: Label | None = None
    seed: int
    clients: int
    scores: np.ndarray | None = None

    def __post_init__(self) -> None:
        if self.label is None:
            return
        key = "devices.availability.label"
        if self.scores is None:
            raise ConfigError(key, "needs a label score for each client, which this problem's data does not give")
        if self.scores.shape != (self.clients,):
            raise ConfigError(key, f"needs {self.clients} scores, one a client, and got shape {self.scores.shape}")
        good = (self.scores >= 0) & (self.scores <= 1)
        if not good.all():
            client = int(np.argmin(good))
            raise ConfigError(key, f"the score of client {client} is {self.scores[client]}; it must be from 0 to 1")

    @cached_property
    def shares(self) -> NDArray[np.float64]:
        """(clients,) pi_k, the share of time that each client is on, a daily rhythm apart."""
        if isinstance(self.share, Beta):
            shares = _beta(draws.uniform(self.seed, "availability share", np.arange(self.clients)), *self.share.beta)
        else:
            shares = np.full(self.clients, self.share)
        if self.label is not None and self.scores is not None:
            shares = shares * (self.label.p_min + (1 - self.label.p_min) * self.scores)
        return shares


@record(frozen=True, kw_only=True, config=STRICT, eq=False)
class Bernoulli(Shared):
    """Each device is on with its own probability, drawn anew at every instant asked: the model of theory papers.

    A device that takes part in a phase stays on to its end. Attributes: see `Shared`.
    """

    def on(self, clients: NDArray[np.int64], t_us: int, round: int) -> NDArray[np.bool_]:
        return draws.uniform(self.seed, "bernoulli availability", round, t_us, clients) < self.shares[clients]

    def off_at(self, clients: NDArray[np.int64], t_us: Times, round: int, horizon_us: int) -> NDArray[np.int64]:
        return np.full(len(clients), NEVER)

    on_at = off_at


@record(frozen=True, kw_only=True, config=STRICT)
class Zone:
    """A time zone.

    Attributes:
        offset_h: hours ahead of the experiment's clock.
        weight: its part of the clients, relative to the other zones' weights.
    """

    offset_h: Annotated[float, Field(ge=-24, le=24)] = 0.0
    weight: Positive = 1.0


@record(frozen=True, kw_only=True, config=STRICT)
class Diurnal:
    """A daily rhythm: pi_k(t) = pi_k (1 + amplitude cos(2 pi (hour of day - peak_hour) / 24)), cut to [0, 1].

    The experiment starts at midnight of the clock with offset 0.

    Attributes:
        amplitude: from 0 to 1. 0.64 and one zone give the factor of 4 between day and night that Google reports
            (Bonawitz et al., 2019), after the damping of 0.94 that the memory of devices brings.
        peak_hour: the hour of a client's local day at which most are on.
        zones: the time zones, of which each client is in one at random by weight.
    """

    amplitude: Probability
    peak_hour: Annotated[float, Field(ge=0, le=24)] = 2.0
    zones: Annotated[tuple[Zone, ...], Field(min_length=1)] = (Zone(),)


@record(frozen=True, kw_only=True, config=STRICT, eq=False)
class Markov(Shared):
    """Devices turn on and off as a two-state Markov chain in continuous time, with a daily rhythm or without.

    At the events of a Poisson process of rate r_k = 1 / (mean_on_s (1 - pi_k)) device k forgets its past: it is on from
    then with probability pi_k(t), and off otherwise. Without a rhythm that is exactly the chain whose on-times have the
    mean mean_on_s and whose share of on-time is pi_k, in its stationary law, with correlation exp(-r_k h) over time h.
    With one, the probability m(t) of being on obeys m' = r_k (pi_k(t) - m).

    Attributes:
        mean_on_s: the mean on-time without rhythm. 6,400 s is that of 300 phones of the FLASH traces with off-times
            of up to a minute filled, and reproduces their autocorrelation over minutes and hours.
        diurnal: the daily rhythm; None for none. With it a device's memory 1 / r_k is no shorter than a minute, lest
            one with pi_k near 1 flicker in its less available hours. By default that is those with pi_k above 0.99.

    Other attributes: see `Shared`.
    """

    mean_on_s: Annotated[float, Field(ge=1, le=1e9)] = 6400.0
    diurnal: Diurnal | None = None

    def on(self, clients: NDArray[np.int64], t_us: int, round: int) -> NDArray[np.bool_]:
        answer = self._floors[clients] > 1 - _CERTAIN
        places = np.flatnonzero(self._turning[clients])
        turning = clients[places]
        last, events = self._turns.nearest(turning, np.float64(-np.inf), np.float64(t_us), forward=False)
        answer[places] = self._stays_on(turning, last, events)
        # An event that cannot turn a device off, after the last one that can.
        unsure = np.flatnonzero(~answer[places] & (self._floors[turning] > 0))
        rescue, _ = self._rescues.nearest(turning[unsure], last[unsure], np.float64(t_us), forward=False)
        answer[places[unsure]] = np.isfinite(rescue)
        return answer

    def off_at(self, clients: NDArray[np.int64], t_us: Times, round: int, horizon_us: int) -> NDArray[np.int64]:
        answer = np.full(len(clients), NEVER)
        places = np.flatnonzero(self._turning[clients])
        begin = np.broadcast_to(np.asarray(t_us, dtype=np.float64), len(clients))[places]
        answer[places] = _whole(self._next_turn(clients[places], begin, begin + horizon_us, to_on=False))
        return answer

    def on_at(self, clients: NDArray[np.int64], t_us: Times, round: int, horizon_us: int) -> NDArray[np.int64]:
        answer = np.full(len(clients), NEVER)
        places = np.flatnonzero(self._turning[clients])
        turning = clients[places]
        begin = np.broadcast_to(np.asarray(t_us, dtype=np.float64), len(clients))[places]
        first = self._next_turn(turning, begin, begin + horizon_us, to_on=True)
        rescued = np.flatnonzero(self._floors[turning] > 0)
        rescue, _ = self._rescues.nearest(
            turning[rescued], begin[rescued], np.minimum(first, begin + horizon_us)[rescued], forward=True
        )
        first[rescued] = np.minimum(first[rescued], rescue)
        answer[places] = _whole(first)
        return answer

    def _next_turn(
        self, clients: NDArray[np.int64], after: NDArray[np.float64], until: NDArray[np.float64], to_on: bool
    ) -> NDArray[np.float64]:
        """The first turn of each client in (after, until] that is to on, or to off; infinite if there is none."""
        found = np.full(len(clients), np.inf)
        places = np.arange(len(clients))
        while len(places):
            after, events = self._turns.nearest(clients[places], after, until[places], forward=True)
            some = np.isfinite(after)
            right = some & (self._stays_on(clients[places], after, events) == to_on)
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
        return self.shares if self.diurnal is None else self.shares * (1 - self.diurnal.amplitude)

    @cached_property
    def _turning(self) -> NDArray[np.bool_]:
        """(clients,) whether a client is ever on and ever off."""
        return (self.shares >= _CERTAIN) & (self._floors <= 1 - _CERTAIN)

    @cached_property
    def _memory_us(self) -> NDArray[np.float64]:
        """(clients,) 1 / r_k."""
        memory = self.mean_on_s * SECOND_US * (1 - self.shares)
        return memory if self.diurnal is None else np.maximum(memory, 60 * SECOND_US)

    @cached_property
    def _turns(self) -> "_Poisson":
        return _Poisson(self.seed, "availability turn", _ratio(self._memory_us, 1 - self._floors, self._turning))

    @cached_property
    def _rescues(self) -> "_Poisson":
        return _Poisson(
            self.seed, "availability rescue", _ratio(self._memory_us, self._floors, self._turning & (self._floors > 0))
        )

    @property
    def zones(self) -> tuple[Sequence[str], NDArray[np.int16]] | None:
        if self.diurnal is None or len(self.diurnal.zones) == 1:
            return None
        return [f"UTC{zone.offset_h:+g}" for zone in self.diurnal.zones], self._zone

    @cached_property
    def _zone(self) -> NDArray[np.int16]:
        """(clients,) the number of each client's time zone."""
        zones = (Zone(),) if self.diurnal is None else self.diurnal.zones
        bounds = np.cumsum([zone.weight for zone in zones])
        u = draws.uniform(self.seed, "time zone", np.arange(self.clients))
        return np.searchsorted(bounds[:-1] / bounds[-1], u, side="right").astype(np.int16)

    @cached_property
    def _offsets_us(self) -> NDArray[np.float64]:
        """(clients,) how far each client's clock is ahead."""
        zones = (Zone(),) if self.diurnal is None else self.diurnal.zones
        return np.array([zone.offset_h for zone in zones])[self._zone] * 3600.0 * SECOND_US

    def _stays_on(
        self, clients: NDArray[np.int64], t_us: NDArray[np.float64], events: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Whether the turn of each client at `t_us`, its event of this number, is to on."""
        if self.diurnal is None:
            return np.zeros(len(clients), dtype=bool)
        days = (t_us + self._offsets_us[clients]) / _DAY_US - self.diurnal.peak_hour / 24
        days = np.where(np.isfinite(days), days, 0.0)  # no event, no meaning
        shares, floors = self.shares[clients], self._floors[clients]
        now = np.minimum(shares * (1 + self.diurnal.amplitude * np.cos(2 * np.pi * days)), 1)
        return draws.uniform(self.seed, "availability mark", clients, events) * (1 - floors) < now - floors


@record(frozen=True, kw_only=True, config=STRICT)
class Cyclic(Availability):
    """Groups of devices take turns: client k is in group k modulo `groups`, and one group at a time is on.

    As in Cho et al. (2023), On the convergence of federated averaging with cyclic client participation.

    Attributes:
        groups: how many groups; at most one a client.
        period_s: how long a turn lasts; None: a round, in which nothing turns off.
        clients: supplied: the number of clients.

    Raises:
        ConfigError: there are more groups than clients.
    """

    groups: Annotated[int, Field(ge=1)]
    period_s: Annotated[float, Field(ge=1e-6, le=1e9)] | None = None
    clients: int

    def __post_init__(self) -> None:
        if self.groups > self.clients:
            raise ConfigError(
                "devices.availability.groups", f"is {self.groups}, but there are {self.clients} clients; lower it"
            )

    def on(self, clients: NDArray[np.int64], t_us: int, round: int) -> NDArray[np.bool_]:
        turn = round if self._period_us is None else t_us // self._period_us
        return np.equal(clients % self.groups, turn % self.groups)

    def off_at(self, clients: NDArray[np.int64], t_us: Times, round: int, horizon_us: int) -> NDArray[np.int64]:
        t = np.broadcast_to(np.asarray(t_us, dtype=np.int64), len(clients))
        if self._period_us is None or self.groups == 1:
            return np.full(len(clients), NEVER)
        end = (t // self._period_us + 1) * self._period_us
        return np.where(end > t + horizon_us, NEVER, end)

    def on_at(self, clients: NDArray[np.int64], t_us: Times, round: int, horizon_us: int) -> NDArray[np.int64]:
        t = np.broadcast_to(np.asarray(t_us, dtype=np.int64), len(clients))
        if self._period_us is None or self.groups == 1:
            return np.full(len(clients), NEVER)
        turn = t // self._period_us
        start = (turn + (clients - turn) % self.groups) * self._period_us
        return np.where(start > t + horizon_us, NEVER, start)

    def next_change(self, t_us: int) -> int | None:
        if self._period_us is None or self.groups == 1:
            return None
        return (t_us // self._period_us + 1) * self._period_us

    @property
    def _period_us(self) -> int | None:
        return None if self.period_s is None else round(self.period_s * SECOND_US)


@record(frozen=True, kw_only=True, config=STRICT, eq=False)
class Trace(Availability):
    """Devices are on when recorded ones were.

    Attributes:
        path: the file; one that is not there is looked for under $RAYSIM_DATA_ROOT.
        format: of the file, see `raysim.devices.traces`.
        assign: ``permute`` gives clients records in a random order, which begins anew whenever the records are used up;
            ``in_order`` gives client k record k modulo their number. FedScale's file is sorted by falling on-time, so
            that in order a small experiment meets only the most available phones.
        end: after the end of its record a device starts over (``wrap``: each at the period of its own record) or stays
            off (``hold``: see `horizon_us`).
        shift: each client starts at a random instant of its record. Without it records keep their hours in common.
        merge_gap_s: off-times of at most this many seconds are filled.
        seed, clients: supplied: the seed of the devices' chance and the number of clients.

    Raises:
        DataError: the file is missing, damaged or not in this format.
    """

    path: str
    format: Format
    assign: Literal["permute", "in_order"] = "permute"
    end: Literal["wrap", "hold"] = "wrap"
    shift: bool = False
    merge_gap_s: Annotated[float, Field(ge=0, le=1e9)] = 0.0
    seed: int
    clients: int

    def __post_init__(self) -> None:
        _ = self.intervals  # so that a bad file is met now, not in the middle of a run

    @cached_property
    def intervals(self) -> Intervals:
        """The records of the file."""
        return read_intervals(self.path, self.format, self.merge_gap_s)

    @cached_property
    def records(self) -> NDArray[np.int64]:
        """(clients,) the record of each client."""
        n = len(self.intervals)
        if self.assign == "in_order":
            return np.arange(self.clients) % n
        repeats = np.arange(-(-self.clients // n))[:, None]
        orders = np.argsort(draws.bits(self.seed, "trace record", repeats, np.arange(n)), axis=1, kind="stable")
        return orders.ravel()[: self.clients]

    @property
    def horizon_us(self) -> int | None:
        """The instant from which every client stays off; None where records start over."""
        if self.end == "wrap":
            return None
        return int((self.intervals.horizons[self.records] - self._shifts_us).max(initial=0))

    def on(self, clients: NDArray[np.int64], t_us: int, round: int) -> NDArray[np.bool_]:
        return self._now(clients, t_us)[0]

    def off_at(self, clients: NDArray[np.int64], t_us: Times, round: int, horizon_us: int) -> NDArray[np.int64]:
        _, change = self._now(clients, t_us)
        return np.where(change > t_us + horizon_us, NEVER, change)

    on_at = off_at  # the next change, either way

    def next_change(self, t_us: int) -> int | None:
        first = int(self._now(np.arange(self.clients), t_us)[1].min(initial=NEVER))
        return None if first == NEVER else first

    @cached_property
    def _shifts_us(self) -> NDArray[np.int64]:
        """(clients,) the instant of its record at which each client starts."""
        if not self.shift:
            return np.zeros(self.clients, dtype=np.int64)
        u = draws.uniform(self.seed, "trace shift", np.arange(self.clients))
        return (u * self.intervals.horizons[self.records]).astype(np.int64)

    def _now(self, clients: NDArray[np.int64], t_us: Times) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """(clients,) whether each is on, and the first instant after `t_us` at which that changes, or NEVER."""
        trace, rows = self.intervals, self.records[clients]
        horizon, first, end = trace.horizons[rows], trace.offsets[rows], trace.offsets[rows + 1]
        local = self._shifts_us[clients] + t_us
        if self.end == "wrap":
            local %= np.maximum(horizon, 1)  # a record of a single instant has horizon 0, and is never on

        # The first interval of the record that ends after now, by bisection of all records at once.
        low, high = first.copy(), end.copy()
        while (open_ := low < high).any():
            middle = (low + high) // 2
            past = open_ & (trace.ends[np.minimum(middle, len(trace.ends) - 1)] <= local)
            low, high = np.where(past, middle + 1, low), np.where(open_ & ~past, middle, high)

        on = np.zeros(len(clients), dtype=bool)
        change = np.full(len(clients), NEVER)
        here = np.flatnonzero(low < end)
        start, stop = trace.starts[low[here]], trace.ends[low[here]]
        on[here] = start <= local[here]
        change[here] = np.where(on[here], stop, start)
        if self.end == "wrap":
            over = np.flatnonzero((low == end) & (first < end))  # off to the end of the record
            change[over] = horizon[over] + trace.starts[first[over]]
            # On to the end of the record and on from its start: the on-time goes on.
            over = here[on[here] & (stop == horizon[here])]
            over = over[trace.starts[first[over]] == 0]
            stop = trace.ends[first[over]]
            change[over] = np.where(stop == horizon[over], NEVER, horizon[over] + stop)
        known = change < NEVER
        change[known] += (t_us - local)[known]
        return on, change


def _beta(u: NDArray[np.float64], a: float, b: float) -> NDArray[np.float64]:
    """The quantiles u of Beta(a, b), by interpolation: a million exact ones take over a second.

    The logit of a quantile is nearly a straight line in the logit of u, at both ends exactly; the grid's step of 1/64
    keeps the error of a share below 1e-5.
    """
    grid = np.linspace(-38, 38, 76 * 64 + 1)
    quantiles = logit(np.clip(betaincinv(a, b, expit(grid)), 1e-300, 1 - 2.0**-53))
    return np.asarray(expit(np.interp(logit(np.clip(u, 2.0**-54, 1 - 2.0**-53)), grid, quantiles)))


def _whole(times: NDArray[np.float64]) -> NDArray[np.int64]:
    """Times in whole microseconds, not before them; NEVER where infinite."""
    finite = np.isfinite(times)
    return np.where(finite, np.ceil(np.where(finite, times, 0)).astype(np.int64), NEVER)


AVAILABILITY = Registry(
    "devices.availability",
    {
        "always": Always,
        "bernoulli": Bernoulli,
        "markov": Markov,
        "cyclic": Cyclic,
        "trace": Trace,
    },
    injected=("seed", "clients", "scores"),
    base=Availability,
)


@dataclass(frozen=True, eq=False)
class _Poisson:
    """Events of a Poisson process for each client, which can be looked up at any time, on either side of 0.

    A client's time is cut into blocks of its mean gap. The number of events of a block comes from one hash, by the
    inverse of the distribution function; what is left of the hash places the first event, further hashes the others.

    Attributes:
        seed, purpose: the hashes'.
        gap_us: (clients,) the mean time between events.
    """

    seed: int
    purpose: str
    gap_us: NDArray[np.float64]

    def nearest(
        self,
        clients: NDArray[np.int64],
        low_us: np.float64 | NDArray[np.float64],
        high_us: np.float64 | NDArray[np.float64],
        forward: bool,
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """The first (`forward`) or last event of each client in (low_us, high_us], and its number.

        The number is the client's own, whatever its gap; the time of no event is infinite.
        """
        gap = self.gap_us[clients]
        low, high = np.broadcast_to(low_us, gap.shape), np.broadcast_to(high_us, gap.shape)
        block = np.floor((low if forward else high) / gap).astype(np.int64)
        sign = 1 if forward else -1
        best = np.full(len(clients), sign * np.inf)
        numbers = np.zeros(len(clients), dtype=np.int64)
        left = np.arange(len(clients))
        while len(left):
            for inside, positions, index in self._events(clients[left], block[left]):
                places = left[inside]
                times = (block[places] + positions) * gap[places]
                good = (times > low[places]) & (times <= high[places]) & (sign * times < sign * best[places])
                places = places[good]
                best[places] = times[good]
                numbers[places] = block[places] * len(_COUNTS) + index
            left = left[np.isinf(best[left])]
            if forward:
                left = left[(block[left] + 1) * gap[left] < high[left]]
            else:
                left = left[block[left] * gap[left] > low[left]]
            block[left] += sign
        return best, numbers

    def _events(
        self, clients: NDArray[np.int64], block: NDArray[np.int64]
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64], int]]:
        """For each index: the places of the blocks with more events than that, and where in the block that event is."""
        u = draws.uniform(self.seed, self.purpose, 0, clients, block)
        count = np.searchsorted(_COUNTS, u, side="right")
        inside = np.flatnonzero(count)
        count = count[inside]
        below = _COUNTS[count - 1]
        yield inside, (u[inside] - below) / (_COUNTS[count] - below), 0
        for index in range(1, int(count.max(initial=0))):
            more = count > index
            inside, count = inside[more], count[more]
            yield inside, draws.uniform(self.seed, self.purpose, index, clients[inside], block[inside]), index


def _ratio(a: NDArray[np.float64], b: NDArray[np.float64], where: NDArray[np.bool_]) -> NDArray[np.float64]:
    """a / b where that is wanted, 1 elsewhere."""
    return np.divide(a, b, out=np.ones_like(a), where=where)
