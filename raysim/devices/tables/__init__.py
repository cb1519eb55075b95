"""Reads files that say how fast measured devices compute and communicate: one format a file, all into `DeviceTable`."""

from raysim.devices.tables.fedscale import read_fedscale_capacity
from raysim.devices.tables.flash_devices import Workload, read_flash_devices
from raysim.devices.tables.flash_links import read_flash_links
from raysim.devices.tables.measured import read_device_table
from raysim.devices.tables.table import DeviceTable

__all__ = [
    "DeviceTable",
    "Workload",
    "read_device_table",
    "read_fedscale_capacity",
    "read_flash_devices",
    "read_flash_links",
]
