"""Files of recorded devices: when each was on, and how fast each computes and communicates.

Formats of on-times, all read into `Intervals`:

``fedscale``: FedScale's client_behave_trace (Lai et al., 2022), a pickle of {number: {duration, inactive, finish_time,
    active, model}} in seconds, or the same as .json. A device is on (charging) in [active[i], inactive[i]), and
    finish_time is its horizon; what lies beyond the horizon is cut off, as FedScale's own replay never reaches it.
``flash``: FLASH's state_traces.json (Yang et al., 2021), {uid: {guid, model, messages}}, messages being lines
    ``YYYY-MM-DD HH:MM:SS<TAB>event``. A phone is on where FLASH calls it ready: locked, on WiFi and charging, each of
    them false before the first event that says so. FLASH forgets an on-time that is still open at the last event; here
    it ends there. Clocks are the phones' own local time; time 0 is the earliest event of the file for all phones, so
    that they keep their hours of the day in common. The horizon is the phone's last event.
``flame``: {trainer: events}, events being a list of (seconds, state), or the text of one, in order of time; AVL_TRAIN
    is on, AVL_EVAL and UN_AVL are off, and so is the time before the first event. The horizon is the last event.
``intervals``: {"devices": {id: {"charging": [[start_s, end_s], ...], "horizon_s": seconds}}}.
``table``: a user's own measurements, CSV or Parquet, a row an on-time: columns ``device`` (text or integer),
    ``start_s`` and ``end_s`` (seconds), and ``horizon_s`` (seconds, the same in all rows of a device, one of which
    suffices) or, in its place, the latest end_s of the file for every device. A device that was never on has one row
    with start_s and end_s empty. Records are in the order of the ids as text; row numbers in errors count from 1,
    without the header.

Times are seconds since the start of the trace, from 0 to 1e9; on-times are half-open [start, end).
"""

import ast
import json
import pickle
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from raysim.data.root import find_file
from raysim.errors import DataError
from raysim.registry import nearest

Format = Literal["fedscale", "flash", "flame", "intervals", "table"]

SECOND_US = 1_000_000
_LATEST_S = 1e9  # 31 years: so that a Unix time or milliseconds given for seconds are noticed
_YEAR_S = 366 * 86_400


@dataclass(frozen=True, eq=False)
class Intervals:
    """When each of n recorded devices was on: record i in [starts[j], ends[j]) for j from offsets[i] to offsets[i + 1].

    Within a record intervals are in order of time, none is empty, no two touch, and all lie in [0, horizon].

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


@dataclass(frozen=True, eq=False)
class DeviceTable:
    """Measured devices, one a row; what was not measured is None. Rows are to be drawn whole: their columns correlate.

    Attributes:
        sec_per_sample: (rows,) seconds to train on one sample.
        ram_mb: (rows,) memory, in units of 2^20 bytes.
        down_bps, up_bps: (rows,) bits per second to and from the device; 0 is a device without a link.
        weights: (rows,) how often each row is to be drawn, in proportion; None: all alike.
    """

    sec_per_sample: NDArray[np.float64] | None = None
    ram_mb: NDArray[np.float64] | None = None
    down_bps: NDArray[np.float64] | None = None
    up_bps: NDArray[np.float64] | None = None
    weights: NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return next(
            (len(c) for c in (self.sec_per_sample, self.ram_mb, self.down_bps, self.up_bps) if c is not None), 0
        )


def read_intervals(path: str | Path, format: Format, merge_gap_s: float = 0.0) -> Intervals:
    """The on-times in a file.

    Args:
        path: the file; one that is not there is looked for under $RAYSIM_DATA_ROOT.
        format: see the top of this module.
        merge_gap_s: off-times of at most this many seconds are filled (a charger's loose contact).

    Raises:
        DataError: the file is missing, damaged, not in this format, or a time in it is impossible.
    """
    found = find_file(str(path))
    records = _READERS[format](found)
    if not records.ids:
        raise DataError(f"{found}: has no records")
    return records.build(round(merge_gap_s * SECOND_US))


def read_device_table(path: str | Path) -> DeviceTable:
    """A user's own table of devices: CSV or Parquet, a row a device; other columns are ignored.

    Columns: ``ms_per_sample`` (milliseconds to train on one sample, positive), and optionally ``ram_gb`` (2^30 bytes,
    positive), ``down_kbps`` and ``up_kbps`` (kbit/s, from 0), of which no cell may be empty. Times of inference, as
    in AI Benchmark, are taken as they are, though training on a sample takes about three times as long.

    Raises:
        DataError: the file, a column or a value is missing or wrong.
    """
    table = _Columns(find_file(str(path)), "ms_per_sample")

    def scaled(name: str, unit: float, positive: bool) -> NDArray[np.float64] | None:
        return table.numbers(name, positive=positive) * unit if name in table else None

    return DeviceTable(
        sec_per_sample=scaled("ms_per_sample", 1e-3, positive=True),
        ram_mb=scaled("ram_gb", 1024, positive=True),
        down_bps=scaled("down_kbps", 1e3, positive=False),
        up_bps=scaled("up_kbps", 1e3, positive=False),
    )


def read_fedscale_capacity(path: str | Path, training_factor: float = 3.0) -> DeviceTable:
    """FedScale's client_device_capacity: {number: {computation, communication}}, a pickle or the same as .json.

    Args:
        path: the file.
        training_factor: `computation` is milliseconds of inference per sample; training takes this many times as long
            (one pass forward, two backward).

    `communication` is kbit/s, one value for both directions.

    Raises:
        DataError: the file, a record or a value is missing or wrong.
    """
    found = find_file(str(path))
    rows = _fields(found, _pickle_or_json(found), computation=True, communication=False)
    link = rows["communication"] * 1e3
    return DeviceTable(sec_per_sample=rows["computation"] * training_factor * 1e-3, down_bps=link, up_bps=link)


def read_flash_links(path: str | Path, unit: Literal["kbit/s", "kB/s"]) -> DeviceTable:
    """FLASH's speed_distri.json: {user: {down_u, up_u, ...}}, the mean speeds of each user's WiFi.

    Args:
        path: the file.
        unit: of its numbers. The source says "kb/s" and its code divides bytes by 1024 one way and by 1000 the other,
            so that you have to decide. 1 kB is 1000 bytes here.

    Raises:
        DataError: the file, a record or a value is missing or wrong.
    """
    found = find_file(str(path))
    rows = _fields(found, _json(found), down_u=False, up_u=False)
    bits = {"kbit/s": 1e3, "kB/s": 8e3}[unit]
    return DeviceTable(down_bps=rows["down_u"] * bits, up_bps=rows["up_u"] * bits)


Workload = Literal["celeba", "femnist", "reddit", "shakespeare"]


@dataclass(frozen=True)
class _Profile:
    """What FLASH's authors measured: milliseconds of training on a batch on the slow, the middle and the fast phone."""

    batch: int
    ms: tuple[float, float, float]


# FLASH, models/utils/device_util/device_util.py and the batch sizes of its experiments.
_PROFILED = ("Google Nexus S", "Xiaomi Redmi Note 7 Pro", "Google Pixel 4")
_PROFILES: Mapping[Workload, _Profile] = {
    "celeba": _Profile(10, (5392, 1355, 561)),
    "femnist": _Profile(10, (1642, 588, 179)),
    "reddit": _Profile(10, (2596, 916, 527.7)),
    "shakespeare": _Profile(100, (28_621, 13_579, 10_681)),
}
# Keys of AI Benchmark's list, the part of each text that counts, and an example.
_LISTED = {
    "Model": (re.compile(r"(.+)"), "Google Pixel 4"),
    "AI_Score": (re.compile(r"([1-9]\d*)(\s.*)?"), "33289 1"),
    "RAM": (re.compile(r"(?=.*[1-9])(\d+(?:\.\d+)?)\s*GB"), "8GB"),
}
_UNKNOWN_PHONES = np.array([18_820, 16_428, 159])  # how FLASH draws the speed of a phone it does not know


def read_flash_devices(path: str | Path, workload: Workload, codes: str | Path | None = None) -> DeviceTable:
    """FLASH's phones: a row for each phone of AI Benchmark, as fast as the nearest of three that were measured.

    As in FLASH, nearest is by AI score, and a phone of unknown model is slow, middle or fast with 53.2, 46.4 and 0.4 %.
    Within each of these kinds phones are drawn as often as the codes name them, or without codes alike; a phone that is
    on the list twice shares its codes between its rows.

    Args:
        path: raw_ai_benchmark_list.json, a list of {Model, RAM, AI_Score, ...}: RAM as "8GB" (2^30 bytes each), the
            score the first number of the text.
        workload: whose training times are taken. They are for batches of 10 rows, in shakespeare 100, and divided by
            that.
        codes: real2benchmark.json, {code of an Android model: its name on the list, or "unknown"}, each code as
            frequent as any other; a name that is not on the list counts as unknown. None: all phones are unknown.

    Raises:
        DataError: a file, a record (counted from 0) or a value is missing or wrong.
    """
    found = find_file(str(path))
    names, scores, ram_mb = _flash_phones(found)
    missing = next((name for name in _PROFILED if name not in names), None)
    if missing is not None:
        raise DataError(
            f"{found}: has no phone {missing!r}; FLASH measured {', '.join(_PROFILED)}, so all three must be there"
        )
    measured = np.array([scores[np.argmax(names == name)] for name in _PROFILED])
    kind = np.abs(scores[:, None] - measured).argmin(axis=1)
    coded, unknown = (np.zeros(len(names)), 1) if codes is None else _flash_codes(find_file(str(codes)), names, found)
    weights = np.empty(len(names))
    for k, share in enumerate(_UNKNOWN_PHONES / _UNKNOWN_PHONES.sum()):
        of_kind = kind == k
        within = coded[of_kind] if coded[of_kind].any() else np.ones(of_kind.sum())
        weights[of_kind] = (coded[of_kind].sum() + unknown * share) * within / within.sum()
    profile = _PROFILES[workload]
    seconds = np.array(profile.ms) / profile.batch / 1e3
    return DeviceTable(sec_per_sample=seconds[kind], ram_mb=ram_mb, weights=weights)


def _flash_phones(path: Path) -> tuple[NDArray[np.str_], NDArray[np.float64], NDArray[np.float64]]:
    """Names, AI scores and memory in MB of the phones on AI Benchmark's list, (rows,) each."""
    tree = _json(path)
    if not isinstance(tree, list):
        raise DataError(f"{path}: holds a {type(tree).__name__} where a list of phones should be; check the format")
    names, scores, ram_mb = [], [], []
    for i, phone in enumerate(tree):
        name, score, ram_gb = (_leading(path, str(i), phone, key) for key in _LISTED)
        names.append(name)
        scores.append(float(score))
        ram_mb.append(float(ram_gb) * 1024)
    if not names:
        raise DataError(f"{path}: has no records")
    return np.array(names), np.array(scores), np.array(ram_mb)


def _leading(path: Path, id: str, phone: Any, key: str) -> str:
    """What counts of a phone's text under `key`."""
    value, (form, example) = _field(path, id, phone, key), _LISTED[key]
    match = form.fullmatch(value.strip()) if isinstance(value, str) else None
    if not match:
        raise DataError(f"{path}: record {id!r}: {key} is {value!r}; it must be text such as {example!r}")
    return match[1]


def _flash_codes(path: Path, names: NDArray[np.str_], listed: Path) -> tuple[NDArray[np.float64], int]:
    """How many codes each phone on the list has, (rows,), and how many codes are of phones that are not on it."""
    codes: Counter[str] = Counter()
    for id, name in _items(path, _json(path)):
        if not isinstance(name, str):
            raise DataError(f"{path}: record {id!r} is {name!r}; it must be the name of a phone, or 'unknown'")
        codes[name.strip()] += 1
    rows = Counter(names.tolist())
    known = sum(codes[name] for name in rows)
    if not known:
        raise DataError(f"{path}: none of its {codes.total()} codes is of a phone in {listed}; check the two files")
    return np.array([codes[name] / rows[name] for name in names.tolist()]), codes.total() - known


# Formats of on-times


class _Records:
    """Records as they are read, in seconds."""

    def __init__(self, path: Path, cut: bool = False) -> None:
        self.path = path
        self.cut = cut  # what lies beyond the horizon, instead of refusing it
        self.ids: list[str] = []
        self._counts: list[int] = []
        self._starts: list[float] = []
        self._ends: list[float] = []
        self._horizons: list[float] = []

    def add(self, id: str, starts: Sequence[Any], ends: Sequence[Any], horizon: Any) -> None:
        place = f"{self.path}: record {id!r}"
        _require_times(starts, lambda i: f"{place}: start {i}")
        _require_times(ends, lambda i: f"{place}: end {i}")
        _require_times([horizon], lambda _: f"{place}: the horizon")
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

    def build(self, gap_us: int) -> Intervals:
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
        fresh = np.ones(
            len(starts) + 1, dtype=bool
        )  # where an interval does not go on with the one before; and the end
        fresh[1:-1] = (record[1:] != record[:-1]) | (starts[1:] > latest[:-1] + gap_us)
        offsets = np.searchsorted(record[fresh[:-1]], np.arange(n + 1))
        return Intervals(starts[fresh[:-1]], latest[fresh[1:]], offsets, horizons, np.array(self.ids))


def _read_fedscale(path: Path) -> _Records:
    records = _Records(path, cut=True)
    for id, record in _items(path, _pickle_or_json(path)):
        active, inactive = (_sequence(path, id, record, key) for key in ("active", "inactive"))
        if len(active) != len(inactive):
            raise DataError(f"{path}: record {id!r} has {len(active)} active times, but {len(inactive)} inactive ones")
        records.add(id, active, inactive, _field(path, id, record, "finish_time"))
    return records


_EVENT = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\s*\t\s*(\S+)")
_FLASH_EVENTS = {
    "battery_charged_on": ("charging", True),
    "battery_charged_off": ("charging", False),
    "screen_lock": ("locked", True),
    "screen_unlock": ("locked", False),
    "wifi": ("wifi", True),
    **dict.fromkeys(("2g", "3g", "4g", "5g", "unknown"), ("wifi", False)),
}
_FLASH_IGNORED = re.compile(r"battery_(low|okay)|phone_(on|off)|screen_(on|off)|\d+(\.\d+)?%")


def _read_flash(path: Path) -> _Records:
    phones = [(id, *_flash_phone(path, id, record)) for id, record in _items(path, _json(path))]
    records = _Records(path)
    first = min((times[0] for _, times, _ in phones), default=0)
    last = max((times[-1] for _, times, _ in phones), default=0)
    if last - first > _YEAR_S:
        id = min(phones, key=lambda phone: phone[1][0])[0]
        raise DataError(
            f"{path}: events range over {(last - first) // 86_400} days, the first of them in record {id!r}; a phone's "
            "clock was wrong, so remove the events with impossible dates"
        )
    for id, times, ready in phones:
        since = times - first
        records.add(id, *_on_times(since, ready), int(since[-1]))
    return records


def _flash_phone(path: Path, id: str, record: Any) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The times of a phone's events in order, in seconds of its clock, and whether it was ready after each."""
    messages = _field(path, id, record, "messages")
    if not isinstance(messages, str):
        raise DataError(f"{path}: record {id!r}: messages are {type(messages).__name__}; they must be lines of text")
    stamps: list[str] = []
    events: list[str] = []
    for number, line in enumerate(messages.split("\n"), 1):
        if not line.strip():
            continue
        match = _EVENT.fullmatch(line.strip())
        event = match[2].lower() if match else ""
        if not match or not (event in _FLASH_EVENTS or _FLASH_IGNORED.fullmatch(event)):
            raise DataError(
                f"{path}: record {id!r}, line {number}: {line!r} is not a time, a tab and an event known to FLASH"
            )
        try:
            np.datetime64(match[1])
        except ValueError as error:
            raise DataError(f"{path}: record {id!r}, line {number}: there is no time {match[1]!r}") from error
        stamps.append(match[1])
        events.append(event)
    if not stamps:
        raise DataError(f"{path}: record {id!r} has no events; remove it")
    times = np.array(stamps, dtype="datetime64[s]").astype(np.int64)
    order = np.argsort(times, kind="stable")
    now = {"locked": False, "wifi": False, "charging": False}
    ready = np.empty(len(order), dtype=bool)
    for place, i in enumerate(order.tolist()):
        if events[i] in _FLASH_EVENTS:
            key, value = _FLASH_EVENTS[events[i]]
            now[key] = value
        ready[place] = all(now.values())
    return times[order], ready


def _read_flame(path: Path) -> _Records:
    records = _Records(path)
    for id, events in _items(path, _json(path)):
        times, states = _flame_events(path, id, events)
        records.add(id, *_on_times(np.array(times), np.array(states) == "AVL_TRAIN"), times[-1])
    return records


def _flame_events(path: Path, id: str, events: Any) -> tuple[list[float], list[str]]:
    if isinstance(events, str):
        try:
            events = ast.literal_eval(events)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
            raise DataError(f"{path}: record {id!r} is no list of (seconds, state) ({error})") from error
    if not isinstance(events, list) or not events:
        raise DataError(f"{path}: record {id!r} is not a list of one or more (seconds, state)")
    for i, event in enumerate(events):
        if not isinstance(event, list | tuple) or len(event) != 2:
            raise DataError(f"{path}: record {id!r}, event {i}: {event!r} is not (seconds, state)")
        if event[1] not in ("AVL_TRAIN", "AVL_EVAL", "UN_AVL"):
            raise DataError(
                f"{path}: record {id!r}, event {i}: state {event[1]!r} is none of AVL_TRAIN, AVL_EVAL, UN_AVL"
            )
    times = [event[0] for event in events]
    _require_times(times, lambda i: f"{path}: record {id!r}, event {i}: the time")
    fall = next((i for i in range(1, len(times)) if times[i] < times[i - 1]), None)
    if fall is not None:
        raise DataError(f"{path}: record {id!r}, event {fall}: is before the event above it; sort events by time")
    return times, [event[1] for event in events]


def _read_intervals(path: Path) -> _Records:
    devices = _field(path, None, _json(path), "devices")
    records = _Records(path)
    for id, device in _items(path, devices):
        pairs = _sequence(path, id, device, "charging")
        for i, pair in enumerate(pairs):
            if not isinstance(pair, list) or len(pair) != 2:
                raise DataError(f"{path}: record {id!r}: interval {i} is {pair!r}, not [start_s, end_s]")
        starts, ends = ([pair[side] for pair in pairs] for side in (0, 1))
        records.add(id, starts, ends, _field(path, id, device, "horizon_s"))
    return records


def _read_table(path: Path) -> _Records:
    table = _Columns(path, "device", "start_s", "end_s")
    ids = table.texts("device")
    starts, ends = (table.numbers(name, empty=True) for name in ("start_s", "end_s"))
    half = np.isnan(starts) != np.isnan(ends)
    if half.any():
        row = int(np.argmax(half)) + 1
        raise DataError(f"{path}: row {row} has only one of start_s and end_s; give both, or none for no on-time")
    if "horizon_s" in table:
        horizons = table.numbers("horizon_s", empty=True)
    else:
        horizons = np.full(len(ids), np.nan_to_num(ends).max())
    order = np.argsort(ids, kind="stable")
    names, first = np.unique(ids[order], return_index=True)
    records = _Records(path)
    for id, rows in zip(names.tolist(), np.split(order, first[1:]), strict=True):
        given = np.unique(horizons[rows][~np.isnan(horizons[rows])])
        if len(given) != 1:
            values = " and ".join(map(str, given.tolist())) or "none"
            raise DataError(f"{path}: device {id!r} must have one horizon_s and has {values}")
        rows = rows[~np.isnan(starts[rows])]
        records.add(id, starts[rows].tolist(), ends[rows].tolist(), float(given[0]))
    return records


_READERS: Mapping[Format, Callable[[Path], _Records]] = {
    "fedscale": _read_fedscale,
    "flash": _read_flash,
    "flame": _read_flame,
    "intervals": _read_intervals,
    "table": _read_table,
}


def _on_times(times: NDArray[Any], on: NDArray[np.bool_]) -> tuple[list[Any], list[Any]]:
    """Starts and ends of the on-times of a device that is on or off from each of these times to the next."""
    before = np.concatenate([[False], on[:-1]])
    ends = times[before & ~on].tolist()
    return times[on & ~before].tolist(), [*ends, times[-1].item()] if on[-1] else ends


def _require_times(values: Sequence[Any], place: Callable[[int], str]) -> None:
    for i, value in enumerate(values):
        if type(value) not in (int, float) or not 0 <= value <= _LATEST_S:
            raise DataError(f"{place(i)} is {value!r}; give seconds since the start of the trace, from 0 to 1e9")


def _microseconds(seconds: Sequence[float]) -> NDArray[np.int64]:
    return np.rint(np.array(seconds, dtype=np.float64) * SECOND_US).astype(np.int64)


# Pickles and JSON


class _Unpickler(pickle.Unpickler):
    """Of plain data only: a pickle may name any function and have it called, so that none but one is let through."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return dict  # keeps its order too, and has no attributes that a pickle could set
        raise _Forbidden(f"{module}.{name}")


class _Forbidden(Exception):
    """What a pickle tried to load."""


def _pickle_or_json(path: Path) -> Any:
    if path.suffix == ".json":
        return _json(path)
    try:
        with path.open("rb") as file:
            return _Unpickler(file).load()
    except _Forbidden as error:
        raise DataError(
            f"{path}: tries to load {error}, which no data of FedScale does; it may be malicious and was not opened"
        ) from None
    except Exception as error:  # a damaged pickle can fail in any way
        cause = " ".join(f"{type(error).__name__}: {error}".split())
        raise DataError(f"{path}: is no pickle or is damaged ({cause}); name a file of JSON .json") from error


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (ValueError, OSError, RecursionError) as error:
        raise DataError(f"{path}: is no JSON or is damaged ({error})") from error


def _items(path: Path, tree: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(tree, dict):
        raise DataError(f"{path}: holds a {type(tree).__name__} where records by their ids should be; check the format")
    return ((str(id), record) for id, record in tree.items())


def _field(path: Path, id: str | None, record: Any, key: str) -> Any:
    place = f"{path}" if id is None else f"{path}: record {id!r}"
    if not isinstance(record, dict):
        raise DataError(f"{place}: is a {type(record).__name__}, not keys and values; check the format")
    if key not in record:
        raise DataError(f"{place}: has no {key!r}{nearest(key, [str(k) for k in record])}; check the format")
    return record[key]


def _sequence(path: Path, id: str, record: Any, key: str) -> Sequence[Any]:
    value = _field(path, id, record, key)
    if not isinstance(value, list | tuple):
        raise DataError(f"{path}: record {id!r}: {key} is {value!r}, not a list")
    return value


def _fields(path: Path, tree: Any, **keys: bool) -> dict[str, NDArray[np.float64]]:
    """Each key's values, one a record; keys say whether their values must be positive (or else may be 0)."""
    columns: dict[str, list[float]] = {key: [] for key in keys}
    for id, record in _items(path, tree):
        for key, positive in keys.items():
            value = _field(path, id, record, key)
            if type(value) not in (int, float) or not 0 <= value < np.inf or (positive and value == 0):
                kind = "positive number" if positive else "number from 0"
                raise DataError(f"{path}: record {id!r}: {key} is {value!r}; it must be a {kind}")
            columns[key].append(float(value))
    if not all(columns.values()):
        raise DataError(f"{path}: has no records")
    return {key: np.array(values) for key, values in columns.items()}


# CSV and Parquet


class _Columns:
    """A CSV or Parquet file, read by column, with errors that name the file, the column and the row."""

    def __init__(self, path: Path, *required: str) -> None:
        self.path = path
        try:
            if path.suffix == ".csv":
                self._table = _csv(path)
            elif path.suffix == ".parquet":
                self._table = pa.parquet.read_table(path)
            else:
                raise DataError(f"{path}: has no known suffix; name it .csv or .parquet")
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{path}: is no {path.suffix[1:]} file or is damaged ({error})") from error
        names = self._table.column_names
        for name in required:
            if name not in names:
                raise DataError(f"{path}: has no column {name!r}{nearest(name, names)}")
        double = next((name for name in names if names.count(name) > 1), None)
        if double is not None:
            raise DataError(f"{path}: has two columns {double!r}; rename one of them")
        if not self._table.num_rows:
            raise DataError(f"{path}: has no rows")

    def __contains__(self, name: str) -> bool:
        return name in self._table.column_names

    def numbers(self, name: str, positive: bool = False, empty: bool = False) -> NDArray[np.float64]:
        """The column, finite and not below 0, or above it; empty cells, where allowed, as NaN."""
        column = self._table.column(name)
        if pa.types.is_string(column.type):
            column = self._parsed(name, pc.utf8_trim_whitespace(column))
        elif not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
            raise DataError(f"{self.path}: column {name!r} is {column.type}; it must be numbers")
        missing = column.is_null().to_numpy()
        values: NDArray[np.float64] = column.cast(pa.float64()).to_numpy().copy()
        good = np.isfinite(values) & ((values > 0) if positive else (values >= 0))
        if empty:
            good |= missing
        if not good.all():
            row = int(np.argmin(good))
            found = "empty" if missing[row] else values[row]
            kind = "positive number" if positive else "number from 0"
            raise DataError(f"{self.path}: row {row + 1}, column {name!r} is {found}; it must be a {kind}")
        return values

    def texts(self, name: str) -> NDArray[np.str_]:
        column = self._table.column(name)
        if column.null_count:
            row = pc.index(column.is_null(), True).as_py() + 1
            raise DataError(f"{self.path}: row {row}, column {name!r} is empty; fill it or remove the row")
        return np.array([str(value) for value in column.to_pylist()])

    def _parsed(self, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
        try:
            return column.cast(pa.float64())
        except pa.ArrowInvalid:
            for row, value in enumerate(column.to_pylist(), 1):
                try:
                    pa.scalar(value).cast(pa.float64())
                except pa.ArrowInvalid:
                    raise DataError(
                        f"{self.path}: row {row}, column {name!r} is {value!r}; it must be a number"
                    ) from None
            raise


def _csv(path: Path) -> pa.Table:
    """Every cell as text, so that a cell that is no number can be named; empty ones as missing."""
    with pa.csv.open_csv(path) as file:
        header = file.schema.names
    options = pa.csv.ConvertOptions(
        column_types=dict.fromkeys(header, pa.string()), null_values=[""], strings_can_be_null=True
    )
    return pa.csv.read_csv(path, convert_options=options)
