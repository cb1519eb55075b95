"""The small experiment on which a device model of a user's own is tried."""

from pathlib import Path
from typing import Any


def on_devices(name: str, availability: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Returns the configuration of three rounds among 40 clients with this section `devices.availability`."""
    return {
        "name": name,
        "rounds": 3,
        "data": {"name": "quadratic", "clients": 40},
        "partition": {"name": "natural"},
        "problem": {"name": "quadratic"},
        "algorithm": {"name": "parallel_sgda", "S": 4, "eta": 0.05, "gamma": 0.05},
        "clients": {"fleet": "in_process"},
        "devices": {"availability": availability},
        "output": {"folder": str(folder / "runs")},
    }
