"""Reads FedScale's client_behave_trace."""

from pathlib import Path

from pydantic.dataclasses import dataclass as record

from raysim.devices.files import field, list_field, read_pickle_or_json, records_by_id
from raysim.devices.traces.format import TraceFormat
from raysim.devices.traces.records import Records
from raysim.errors import DataError
from raysim.registry import STRICT


@record(frozen=True, config=STRICT)
class FedScale(TraceFormat):
    """Reads FedScale's client_behave_trace (Lai et al., 2022), a pickle or the same as .json.

    The file is {number: {duration, inactive, finish_time, active, model}}, with times in seconds. A device is on
    (charging) in [active[i], inactive[i]), and finish_time is its horizon; what lies beyond the horizon is cut off, as
    FedScale's own replay never reaches it.

    >>> _ = Path("trace.json").write_text('''
    ... {"1": {"duration": 20, "active": [10, 90], "inactive": [20, 130], "finish_time": 100, "model": "A"},
    ...  "2": {"duration": 0, "active": [], "inactive": [], "finish_time": 50, "model": "B"}}
    ... ''')
    >>> read_intervals("trace.json", "fedscale").in_seconds()
    {'1': ([[10.0, 20.0], [90.0, 100.0]], 100.0), '2': ([], 50.0)}
    """

    def read(self, path: Path) -> Records:
        records = Records(path, cut=True)
        for id, device in records_by_id(path, read_pickle_or_json(path)):
            active, inactive = (list_field(path, id, device, key) for key in ("active", "inactive"))
            if len(active) != len(inactive):
                raise DataError(
                    f"{path}: record {id!r} has {len(active)} active times, but {len(inactive)} inactive ones"
                )
            records.add(id, active, inactive, field(path, id, device, "finish_time"))
        return records
