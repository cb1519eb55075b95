"""Holds when recorded devices were on, and builds that from what a trace format reads."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raysim.devices.clock import SECOND_US
from raysim.errors import DataError

_LATEST_S = 1e9  # 31 years: so that a Unix time or milliseconds given for seconds are noticed


@dataclass(frozen=True, eq=False)
class Intervals:
    """Holds when each of n recorded devices was on.

    Record i was on in [starts[j], ends[j]) for j from offsets[i] to offsets[i + 1]. Within a record intervals are in
    order of time, none is empty, no two touch, and all lie in [0, horizon].

    Attributes:
        starts, ends: (intervals,) int64 microseconds since the start of the record.
        offsets: (n + 1,) int64.
        horizons: (n,) int64 microseconds, how long each device was observed.
        ids: (n,) the device of each record, as text.
    """

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    offsets: NDArray[np.int64]
    horizons: NDArray[np.int64]
    ids: NDArray[np.str_]

    def __len__(self) -> int:
        return len(self.horizons)

    def in_seconds(self) -> dict[str, tuple[list[list[float]], float]]:
        """Returns {id: ([[start, end], ...], horizon)} in seconds, for a look at a small recording."""
        pairs = np.stack([self.starts, self.ends], axis=1) / SECOND_US
        return {
            id: (pairs[a:b].tolist(), horizon / SECOND_US)
            for id, a, b, horizon in zip(
                self.ids.tolist(), self.offsets[:-1], self.offsets[1:], self.horizons.tolist(), strict=True
            )
        }


class Records:
    """Collects the records of a file, in seconds since the start of the trace.

    Attributes:
        path: the file, which errors name.
        cut: cuts off what lies beyond a record's horizon; otherwise it is an error.
        ids: the devices of the records so far.
    """

    def __init__(self, path: Path, cut: bool = False) -> None:
        self.path = path
        self.cut = cut
        self.ids: list[str] = []
        self._counts: list[int] = []
        self._starts: list[float] = []
        self._ends: list[float] = []
        self._horizons: list[float] = []

    def add(self, id: str, starts: Sequence[Any], ends: Sequence[Any], horizon: Any) -> None:
        """Adds the record of one device.

        Args:
            id: the device.
            starts, ends: the on-times [start, end) in seconds, in any order; they may touch, overlap and be empty.
            horizon: how long the device was observed, in seconds.

        Raises:
            DataError: A time is no number from 0 to 1e9, or an on-time ends before it starts or after the horizon.
        """
        place = f"{self.path}: record {id!r}"
        require_times(starts, lambda i: f"{place}: start {i}")
        require_times(ends, lambda i: f"{place}: end {i}")
        require_times([horizon], lambda _: f"{place}: the horizon")
        for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
            if end < start:
                raise DataError(
                    f"{place}: interval {i} ends at {end} s, before its start at {start} s; mend the record"
                )
            if end > horizon and not self.cut:
                raise DataError(f"{place}: interval {i} ends at {end} s, after the horizon of {horizon} s; raise it")
        self.ids.append(id)
        self._counts.append(len(starts))
        self._starts.extend(starts)
        self._ends.extend(ends)
        self._horizons.append(horizon)

    def intervals(self, gap_us: int) -> Intervals:
        """Returns the records in order, with on-times merged that are at most `gap_us` microseconds apart."""
        n = len(self.ids)
        horizons = _microseconds(self._horizons)
        record = np.repeat(np.arange(n), self._counts)
        starts, ends = (np.minimum(_microseconds(s), horizons[record]) for s in (self._starts, self._ends))
        starts, ends, record = (a[ends > starts] for a in (starts, ends, record))
        order = np.lexsort((starts, record))
        starts, ends, record = starts[order], ends[order], record[order]
        # The latest end so far in each record: a running maximum of ranks in the order of (record, end), which does
        # not reach over to the next record, whose ranks are all higher.
        by_end = np.lexsort((ends, record))
        rank = np.empty(len(ends), dtype=np.int64)
        rank[by_end] = np.arange(len(ends))
        latest = ends[by_end[np.maximum.accumulate(rank)]]
        # True where an interval does not go on with the one before, and once more at the end.
        fresh = np.ones(len(starts) + 1, dtype=bool)
        fresh[1:-1] = (record[1:] != record[:-1]) | (starts[1:] > latest[:-1] + gap_us)
        offsets = np.searchsorted(record[fresh[:-1]], np.arange(n + 1))
        return Intervals(starts[fresh[:-1]], latest[fresh[1:]], offsets, horizons, np.array(self.ids))


def on_times(times: NDArray[Any], on: NDArray[np.bool_]) -> tuple[list[Any], list[Any]]:
    """Returns the starts and the ends of a device's on-times.

    Args:
        times: (events,) the instants of the device's events, in order.
        on: (events,) whether the device is on from each event to the next. An on-time that is still open ends at the
            last event.
    """
    before = np.concatenate([[False], on[:-1]])
    ends = times[before & ~on].tolist()
    return times[on & ~before].tolist(), [*ends, times[-1].item()] if on[-1] else ends


def require_times(values: Sequence[Any], place: Callable[[int], str]) -> None:
    """Raises DataError unless all values are seconds from 0 to 1e9; `place` names the one at an index."""
    for i, value in enumerate(values):
        if type(value) not in (int, float) or not 0 <= value <= _LATEST_S:
            raise DataError(f"{place(i)} is {value!r}; give seconds since the start of the trace, from 0 to 1e9")


def _microseconds(seconds: Sequence[float]) -> NDArray[np.int64]:
    """Rounds seconds to whole microseconds."""
    return np.rint(np.array(seconds, dtype=np.float64) * SECOND_US).astype(np.int64)
