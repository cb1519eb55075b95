"""Reads a user's own measurements of on-times from CSV or Parquet."""

from pathlib import Path

import numpy as np
from pydantic.dataclasses import dataclass as record

from raysim.devices.files import Columns
from raysim.devices.traces.format import TraceFormat
from raysim.devices.traces.records import Records
from raysim.errors import DataError
from raysim.registry import STRICT


@record(frozen=True, config=STRICT)
class OnTimeTable(TraceFormat):
    """Reads a user's own measurements, CSV or Parquet, a row an on-time.

    Columns are ``device`` (text or integer), ``start_s`` and ``end_s`` (seconds), and optionally ``horizon_s``
    (seconds). The horizon is the same in all rows of a device, one of which suffices; without the column it is the
    latest end_s of the file for every device. A device that was never on has one row with start_s and end_s empty.
    Records are in the order of the ids as text; row numbers in errors count from 1, without the header.

    >>> _ = Path("phones.csv").write_text('''device,start_s,end_s,horizon_s
    ... b,0,10,100
    ... a,3.5,4,50
    ... b,20,30,
    ... c,,,70
    ... ''')
    >>> read_intervals("phones.csv", "table").in_seconds()
    {'a': ([[3.5, 4.0]], 50.0), 'b': ([[0.0, 10.0], [20.0, 30.0]], 100.0), 'c': ([], 70.0)}
    """

    def read(self, path: Path) -> Records:
        table = Columns(path, "device", "start_s", "end_s")
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
        records = Records(path)
        for id, rows in zip(names.tolist(), np.split(order, first[1:]), strict=True):
            given = np.unique(horizons[rows][~np.isnan(horizons[rows])])
            if len(given) != 1:
                values = " and ".join(map(str, given.tolist())) or "none"
                raise DataError(f"{path}: device {id!r} must have one horizon_s and has {values}")
            rows = rows[~np.isnan(starts[rows])]
            records.add(id, starts[rows].tolist(), ends[rows].tolist(), float(given[0]))
        return records
