"""Reads FLASH's state_traces.json."""

import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic.dataclasses import dataclass as record

from raysim.devices.clock import DAY_S
from raysim.devices.files import field, read_json, records_by_id
from raysim.devices.traces.format import TraceFormat
from raysim.devices.traces.records import Records, on_times
from raysim.errors import DataError
from raysim.registry import STRICT

_LONGEST_S = 366 * DAY_S  # FLASH recorded for less than a year

_MESSAGE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\s*\t\s*(\S+)")
_EVENTS = {
    "battery_charged_on": ("charging", True),
    "battery_charged_off": ("charging", False),
    "screen_lock": ("locked", True),
    "screen_unlock": ("locked", False),
    "wifi": ("wifi", True),
    **dict.fromkeys(("2g", "3g", "4g", "5g", "unknown"), ("wifi", False)),
}
_IGNORED = re.compile(r"battery_(low|okay)|phone_(on|off)|screen_(on|off)|\d+(\.\d+)?%")


@record(frozen=True, config=STRICT)
class Flash(TraceFormat):
    r"""Reads FLASH's state_traces.json (Yang et al., 2021).

    The file is {uid: {guid, model, messages}}, messages being lines ``YYYY-MM-DD HH:MM:SS<TAB>event``. A phone is on
    where FLASH calls it ready: locked, on WiFi and charging, each of them false before the first event that says so.
    FLASH forgets an on-time that is still open at the last event; here it ends there. Clocks are the phones' own local
    time; time 0 is the earliest event of the file for all phones, so that they keep their hours of the day in common.
    The horizon is the phone's last event.

    >>> u = '''2020-02-01 00:00:10\tscreen_lock
    ... 2020-02-01 00:00:20\twifi
    ... 2020-02-01 00:00:30\tbattery_charged_on
    ... 2020-02-01 00:01:00\tscreen_unlock
    ... 2020-02-01 00:01:10\t50%'''
    >>> v = '''2020-02-01 00:00:00\tphone_on
    ... 2020-02-01 00:00:40\tscreen_on'''
    >>> phones = {"u": {"guid": "g", "model": "m", "messages": u}, "v": {"guid": "h", "model": "m", "messages": v}}
    >>> _ = Path("state_traces.json").write_text(json.dumps(phones))
    >>> read_intervals("state_traces.json", "flash").in_seconds()
    {'u': ([[30.0, 60.0]], 70.0), 'v': ([], 40.0)}
    """

    def read(self, path: Path) -> Records:
        phones = [(id, *_events(path, id, phone)) for id, phone in records_by_id(path, read_json(path))]
        records = Records(path)
        first = min((times[0] for _, times, _ in phones), default=0)
        last = max((times[-1] for _, times, _ in phones), default=0)
        if last - first > _LONGEST_S:
            id = min(phones, key=lambda phone: phone[1][0])[0]
            raise DataError(
                f"{path}: events range over {(last - first) // DAY_S} days, the first of them in record {id!r}; a "
                "phone's clock was wrong, so remove the events with impossible dates"
            )
        for id, times, ready in phones:
            since = times - first
            records.add(id, *on_times(since, ready), int(since[-1]))
        return records


def _events(path: Path, id: str, phone: Any) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Returns (events,) the times of a phone's events in order, in seconds of its clock, and if it was ready after."""
    messages = field(path, id, phone, "messages")
    if not isinstance(messages, str):
        raise DataError(f"{path}: record {id!r}: messages are {type(messages).__name__}; they must be lines of text")
    stamps: list[str] = []
    events: list[str] = []
    for number, line in enumerate(messages.split("\n"), 1):
        if not line.strip():
            continue
        match = _MESSAGE.fullmatch(line.strip())
        event = match[2].lower() if match else ""
        if not match or not (event in _EVENTS or _IGNORED.fullmatch(event)):
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
        if events[i] in _EVENTS:
            key, value = _EVENTS[events[i]]
            now[key] = value
        ready[place] = all(now.values())
    return times[order], ready
