"""Devices: when they are on, how fast they are, how they fail; pure functions of client, time and counters."""

from raysim.devices.availability import AVAILABILITY, NEVER, Availability
from raysim.devices.population import FOREVER_US, DeviceModel, Population, Tasks
from raysim.devices.traces import SECOND_US

__all__ = ["AVAILABILITY", "FOREVER_US", "NEVER", "SECOND_US", "Availability", "DeviceModel", "Population", "Tasks"]
