"""Models devices: when they are on, how fast they are, how they fail; pure functions of client, time and counters."""

from raysim.devices.availability import AVAILABILITY, Availability
from raysim.devices.clock import FOREVER_US, NEVER, SECOND_US
from raysim.devices.population import DeviceModel, Population, Tasks

__all__ = ["AVAILABILITY", "FOREVER_US", "NEVER", "SECOND_US", "Availability", "DeviceModel", "Population", "Tasks"]
