"""Models devices that replay recorded ones."""

from functools import cached_property
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass as record

from raysim import draws
from raysim.devices.availability.model import Availability, Times
from raysim.devices.clock import NEVER
from raysim.devices.traces import TRACE_FORMATS, Intervals, read_intervals
from raysim.registry import STRICT


def _known_format(name: str) -> str:
    """Returns the name of a trace format if there is such a format. Raises ConfigError otherwise."""
    TRACE_FORMATS.find(name, "devices.availability.format")
    return name


@record(frozen=True, kw_only=True, config=STRICT, eq=False)
class Trace(Availability):
    """Devices are on when recorded ones were.

    Attributes:
        path: the file; one that is not there is looked for under $RAYSIM_DATA_ROOT.
        format: the file's format, by its name in `raysim.devices.traces.TRACE_FORMATS` or, for a format of your own, by
            ``package.module:Name``.
        assign: ``permute`` gives clients records in a random order, which begins anew whenever the records are used up;
            ``in_order`` gives client k record k modulo their number. FedScale's file is sorted by falling on-time, so
            that in order a small experiment meets only the most available phones.
        end: after the end of its record a device starts over (``wrap``: each after the length of its own record) or
            stays off (``hold``: see `horizon_us`).
        shift: each client starts at a random instant of its record. Without it records keep their hours in common.
        merge_gap_s: off-times of at most this many seconds are filled.
        seed: the seed of the devices' chance, which the simulator supplies.
        clients: the number of clients, which the simulator supplies.

    Raises:
        DataError: The file is missing, damaged or not in this format.
        ConfigError: There is no such format.
    """

    path: str
    format: Annotated[str, AfterValidator(_known_format)]
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
        """Holds the records of the file."""
        return read_intervals(self.path, self.format, self.merge_gap_s)

    @cached_property
    def records(self) -> NDArray[np.int64]:
        """Holds (clients,) the number of each client's record."""
        n = len(self.intervals)
        if self.assign == "in_order":
            return np.arange(self.clients) % n
        repeats = np.arange(-(-self.clients // n))[:, None]
        orders = np.argsort(draws.bits(self.seed, "trace record", repeats, np.arange(n)), axis=1, kind="stable")
        return orders.ravel()[: self.clients]

    @property
    def horizon_us(self) -> int | None:
        """Gives the instant from which every client stays off; None where records start over."""
        if self.end == "wrap":
            return None
        return int((self.intervals.horizons[self.records] - self._shifts_us).max(initial=0))

    def on(self, clients: NDArray[np.int64], t_us: int, round: int) -> NDArray[np.bool_]:
        return self._replayed(clients, t_us)[0]

    def off_at(self, clients: NDArray[np.int64], t_us: Times, round: int, horizon_us: int) -> NDArray[np.int64]:
        _, change = self._replayed(clients, t_us)
        return np.where(change > t_us + horizon_us, NEVER, change)

    on_at = off_at  # either is the next change

    def next_change(self, t_us: int) -> int | None:
        first = int(self._replayed(np.arange(self.clients), t_us)[1].min(initial=NEVER))
        return None if first == NEVER else first

    @cached_property
    def _shifts_us(self) -> NDArray[np.int64]:
        """Holds (clients,) the instant of its record at which each client starts, in microseconds."""
        if not self.shift:
            return np.zeros(self.clients, dtype=np.int64)
        u = draws.uniform(self.seed, "trace shift", np.arange(self.clients))
        return (u * self.intervals.horizons[self.records]).astype(np.int64)

    def _replayed(self, clients: NDArray[np.int64], t_us: Times) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Tells (clients,) whether each is on, and (clients,) the first instant after `t_us` when that changes.

        The instant is NEVER where nothing changes any more.
        """
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
            # A device that is on at the end of its record and at the start of it stays on between.
            over = here[on[here] & (stop == horizon[here])]
            over = over[trace.starts[first[over]] == 0]
            stop = trace.ends[first[over]]
            change[over] = np.where(stop == horizon[over], NEVER, horizon[over] + stop)
        known = change < NEVER
        change[known] += (t_us - local)[known]
        return on, change
