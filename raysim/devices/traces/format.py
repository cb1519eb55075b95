"""Defines what a trace format does."""

from abc import ABC, abstractmethod
from pathlib import Path

from raysim.devices.traces.records import Records


class TraceFormat(ABC):
    """Reads files of one format, which say when recorded devices were on: a frozen record without settings."""

    @abstractmethod
    def read(self, path: Path) -> Records:
        """Returns the records of a file, in the order of the file.

        Times are seconds since the start of the trace, from 0 to 1e9; on-times are half-open [start, end).

        Raises:
            DataError: The file is damaged or not in this format, or a time in it is impossible.
        """
