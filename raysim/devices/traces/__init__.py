"""Reads files that say when recorded devices were on: one format a file, all read into `Intervals`.

A further format is a class that derives from `TraceFormat`, in a file of its own, and a line in `TRACE_FORMATS`; a
user's own needs no line, since `devices.availability.format` can name it by ``package.module:Name``.
"""

from pathlib import Path

from raysim.data.root import find_file
from raysim.devices.clock import SECOND_US
from raysim.devices.traces.fedscale import FedScale
from raysim.devices.traces.flame import Flame
from raysim.devices.traces.flash import Flash
from raysim.devices.traces.format import TraceFormat
from raysim.devices.traces.intervals import IntervalLists
from raysim.devices.traces.records import Intervals, Records, on_times
from raysim.devices.traces.table import OnTimeTable
from raysim.errors import DataError
from raysim.registry import Registry

TRACE_FORMATS = Registry(
    "trace format",
    {
        "fedscale": FedScale,
        "flash": Flash,
        "flame": Flame,
        "intervals": IntervalLists,
        "table": OnTimeTable,
    },
    base=TraceFormat,
)


def read_intervals(path: str | Path, format: str, merge_gap_s: float = 0.0) -> Intervals:
    """Returns the on-times in a file.

    Args:
        path: the file; one that is not there is looked for under $RAYSIM_DATA_ROOT.
        format: the name of the format in `TRACE_FORMATS`, or ``package.module:Name``.
        merge_gap_s: off-times of at most this many seconds are filled (a charger's loose contact).

    Raises:
        DataError: The file is missing, damaged, not in this format, or a time in it is impossible.
        ConfigError: There is no such format.
    """
    found = find_file(str(path))
    reader: TraceFormat = TRACE_FORMATS.build(format, {}, "devices.availability.format")
    records = reader.read(found)
    if not records.ids:
        raise DataError(f"{found}: has no records")
    return records.intervals(round(merge_gap_s * SECOND_US))


__all__ = [
    "TRACE_FORMATS",
    "FedScale",
    "Flame",
    "Flash",
    "IntervalLists",
    "Intervals",
    "OnTimeTable",
    "Records",
    "TraceFormat",
    "on_times",
    "read_intervals",
]
