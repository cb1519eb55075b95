"""Reads FLASH's speed_distri.json."""

from pathlib import Path
from typing import Literal

from raysim.data.root import find_file
from raysim.devices.files import number_fields, read_json
from raysim.devices.tables.table import DeviceTable


def read_flash_links(path: str | Path, unit: Literal["kbit/s", "kB/s"]) -> DeviceTable:
    """Reads FLASH's {user: {down_u, up_u, ...}} (Yang et al., 2021), the mean speeds of each user's WiFi.

    Args:
        path: the file.
        unit: the unit of its numbers. The source says "kb/s" and its code divides bytes by 1024 one way and by 1000 the
            other, so that you have to decide. 1 kB is 1000 bytes here.

    Raises:
        DataError: The file, a record or a value is missing or wrong.
    """
    found = find_file(str(path))
    rows = number_fields(found, read_json(found), down_u=False, up_u=False)
    bits = {"kbit/s": 1e3, "kB/s": 8e3}[unit]
    return DeviceTable(down_bps=rows["down_u"] * bits, up_bps=rows["up_u"] * bits)
