"""Device populations that are chosen by name: `devices: phones_global`, or `devices.preset` beside other keys."""

from collections.abc import Mapping
from typing import Any

from raysim.errors import ConfigError
from raysim.registry import nearest

# Availability of 300 FLASH phones has mean 0.19, and over hours the memory of sessions of 6,400 s on average; a daily
# swing of amplitude 0.64 in one time zone is the factor of four between night and day of Bonawitz et al. (2019).
_NIGHT = {"amplitude": 0.64, "peak_hour": 2.0}
_WORLD = [
    {"offset_h": -8.0, "weight": 0.07},
    {"offset_h": -5.0, "weight": 0.14},
    {"offset_h": -3.0, "weight": 0.10},
    {"offset_h": 1.0, "weight": 0.24},
    {"offset_h": 3.0, "weight": 0.11},
    {"offset_h": 5.5, "weight": 0.18},
    {"offset_h": 8.0, "weight": 0.16},
]
_CENTRAL = [{"offset_h": -6.0, "weight": 1.0}]
_RELIABLE = {"failure": {"hazard_per_s": 0.0}}

PRESETS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "always_on": (
        "every device on all day and never failing; speeds and links of phones",
        {"devices": {"availability": {"name": "always"}, **_RELIABLE}},
    ),
    "phones_global": (
        "phones of all time zones: on 19 % of the time, 1.6 times as many at the peak as at the trough",
        {"devices": {"availability": {"name": "markov", "diurnal": {**_NIGHT, "zones": _WORLD}}}},
    ),
    "phones_us_night": (
        "phones of one time zone: on 19 % of the time, 4 times as many at night as by day",
        {"devices": {"availability": {"name": "markov", "diurnal": {**_NIGHT, "zones": _CENTRAL}}}},
    ),
    "flash_trace": (
        "the recorded days of 300 FLASH phones, from traces/flash300_availability.json under RAYSIM_DATA_ROOT",
        {
            "devices": {
                "availability": {
                    "name": "trace",
                    "path": "traces/flash300_availability.json",
                    "format": "intervals",
                    "shift": True,
                }
            }
        },
    ),
    "paper_drop": (
        "always on; up to half of a phase's clients lost at random, as in the CD-MAGE authors' code",
        {
            "devices": {"availability": {"name": "always"}, **_RELIABLE},
            "server": {"over_select": 1.0, "close": "wait_all", "dropout_override": {"uniform_ratio": 0.5}},
        },
    ),
    "stragglers": (
        "always on, but speeds far apart (sigma 1.27): the slowest of ten takes about seven times the median",
        {"devices": {"availability": {"name": "always"}, "compute": {"sigma": 1.27}, **_RELIABLE}},
    ),
}


def expand(tree: dict[str, Any]) -> dict[str, Any]:
    """Returns a configuration with its device preset, if it names one; its own keys win over the preset's.

    `devices: NAME` is short for `devices: {preset: NAME}`. Availability is replaced as a whole, since its settings
    belong to its model.
    """
    devices = tree.get("devices")
    if isinstance(devices, str):
        devices = {"preset": devices}
    if not isinstance(devices, dict) or "preset" not in devices:
        return tree
    name = devices["preset"]
    if name not in PRESETS:
        raise ConfigError("devices.preset", f"there is no preset {name!r}{nearest(str(name), PRESETS)}")
    own = {**tree, "devices": devices}
    for section, under in PRESETS[name][1].items():
        given = own.get(section, {})
        if isinstance(given, dict):
            own[section] = _over(under, given)
    return own


def _over(under: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(given)
    for key, value in under.items():
        if key not in given:
            merged[key] = value
        elif key != "availability" and isinstance(value, dict) and isinstance(given[key], dict):
            merged[key] = _over(value, given[key])
    return merged
