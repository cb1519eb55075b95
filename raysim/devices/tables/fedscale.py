"""Reads FedScale's client_device_capacity."""

from pathlib import Path

from raysim.data.root import find_file
from raysim.devices.files import number_fields, read_pickle_or_json
from raysim.devices.tables.table import DeviceTable


def read_fedscale_capacity(path: str | Path, training_factor: float = 3.0) -> DeviceTable:
    """Reads FedScale's {number: {computation, communication}} (Lai et al., 2022), a pickle or the same as .json.

    `communication` is kbit/s, one value for both directions.

    Args:
        path: the file.
        training_factor: `computation` is milliseconds of inference per sample; training takes this many times as long
            (one pass forward, two backward).

    Raises:
        DataError: The file, a record or a value is missing or wrong.
    """
    found = find_file(str(path))
    rows = number_fields(found, read_pickle_or_json(found), computation=True, communication=False)
    link = rows["communication"] * 1e3
    return DeviceTable(sec_per_sample=rows["computation"] * training_factor * 1e-3, down_bps=link, up_bps=link)
