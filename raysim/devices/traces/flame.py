"""Reads the traces of Flame: lists of (seconds, state)."""

import ast
from pathlib import Path
from typing import Any

import numpy as np
from pydantic.dataclasses import dataclass as record

from raysim.devices.files import read_json, records_by_id
from raysim.devices.traces.format import TraceFormat
from raysim.devices.traces.records import Records, on_times, require_times
from raysim.errors import DataError
from raysim.registry import STRICT


@record(frozen=True, config=STRICT)
class Flame(TraceFormat):
    """Reads {trainer: events}, JSON whose events are a list of (seconds, state), or the text of one.

    Events are in order of time. AVL_TRAIN is on, AVL_EVAL and UN_AVL are off, and so is the time before the first
    event. The horizon is the last event.

    >>> _ = Path("trainers.json").write_text('''
    ... {"t1": [[5, "AVL_TRAIN"], [9, "AVL_EVAL"], [20.5, "AVL_TRAIN"], [30, "UN_AVL"]],
    ...  "t2": "[(3, 'AVL_TRAIN'), (10, 'AVL_TRAIN')]"}
    ... ''')
    >>> read_intervals("trainers.json", "flame").in_seconds()
    {'t1': ([[5.0, 9.0], [20.5, 30.0]], 30.0), 't2': ([[3.0, 10.0]], 10.0)}
    """

    def read(self, path: Path) -> Records:
        records = Records(path)
        for id, events in records_by_id(path, read_json(path)):
            times, states = _events(path, id, events)
            records.add(id, *on_times(np.array(times), np.array(states) == "AVL_TRAIN"), times[-1])
        return records


def _events(path: Path, id: str, events: Any) -> tuple[list[float], list[str]]:
    """Returns the times and the states of a trainer's events. Raises DataError if one is wrong or out of order."""
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
    require_times(times, lambda i: f"{path}: record {id!r}, event {i}: the time")
    fall = next((i for i in range(1, len(times)) if times[i] < times[i - 1]), None)
    if fall is not None:
        raise DataError(f"{path}: record {id!r}, event {fall}: is before the event above it; sort events by time")
    return times, [event[1] for event in events]
