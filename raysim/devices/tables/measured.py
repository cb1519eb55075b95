"""Reads a user's own table of devices from CSV or Parquet."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from raysim.data.root import find_file
from raysim.devices.files import Columns
from raysim.devices.tables.table import DeviceTable


def read_device_table(path: str | Path) -> DeviceTable:
    """Reads a user's own table of devices: CSV or Parquet, a row a device; other columns are ignored.

    Columns are ``ms_per_sample`` (milliseconds to train on one sample, positive), and optionally ``ram_gb`` (2^30
    bytes, positive), ``down_kbps`` and ``up_kbps`` (kbit/s, from 0), of which no cell may be empty. Times of inference,
    as in AI Benchmark, are taken as they are, though training on a sample takes about three times as long.

    Raises:
        DataError: The file, a column or a value is missing or wrong.
    """
    table = Columns(find_file(str(path)), "ms_per_sample")

    def scaled(name: str, unit: float, positive: bool) -> NDArray[np.float64] | None:
        return table.numbers(name, positive=positive) * unit if name in table else None

    return DeviceTable(
        sec_per_sample=scaled("ms_per_sample", 1e-3, positive=True),
        ram_mb=scaled("ram_gb", 1024, positive=True),
        down_bps=scaled("down_kbps", 1e3, positive=False),
        up_bps=scaled("up_kbps", 1e3, positive=False),
    )
