"""Reads lists of on-times in JSON."""

from pathlib import Path

from pydantic.dataclasses import dataclass as record

from raysim.devices.files import field, list_field, read_json, records_by_id
from raysim.devices.traces.format import TraceFormat
from raysim.devices.traces.records import Records
from raysim.errors import DataError
from raysim.registry import STRICT


@record(frozen=True, config=STRICT)
class IntervalLists(TraceFormat):
    """Reads {"devices": {id: {"charging": [[start_s, end_s], ...], "horizon_s": seconds}}}, JSON.

    On-times that touch or overlap become one.

    >>> _ = Path("phones.json").write_text('''
    ... {"devices": {"a": {"charging": [[0, 5], [5, 9], [20, 40]], "horizon_s": 60},
    ...              "b": {"charging": [], "horizon_s": 10.25}}}
    ... ''')
    >>> read_intervals("phones.json", "intervals").in_seconds()
    {'a': ([[0.0, 9.0], [20.0, 40.0]], 60.0), 'b': ([], 10.25)}
    """

    def read(self, path: Path) -> Records:
        devices = field(path, None, read_json(path), "devices")
        records = Records(path)
        for id, device in records_by_id(path, devices):
            pairs = list_field(path, id, device, "charging")
            for i, pair in enumerate(pairs):
                if not isinstance(pair, list) or len(pair) != 2:
                    raise DataError(f"{path}: record {id!r}: interval {i} is {pair!r}, not [start_s, end_s]")
            starts, ends = ([pair[side] for pair in pairs] for side in (0, 1))
            records.add(id, starts, ends, field(path, id, device, "horizon_s"))
        return records
