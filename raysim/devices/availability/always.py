"""Models devices that are always on."""

import numpy as np
from numpy.typing import NDArray
from pydantic.dataclasses import dataclass as record

from raysim.devices.availability.model import Availability, Times
from raysim.devices.clock import NEVER
from raysim.registry import STRICT


@record(frozen=True, kw_only=True, config=STRICT)
class Always(Availability):
    """Every device is always on."""

    def on(self, clients: NDArray[np.int64], t_us: int, round: int) -> NDArray[np.bool_]:
        return np.ones(len(clients), dtype=bool)

    def off_at(self, clients: NDArray[np.int64], t_us: Times, round: int, horizon_us: int) -> NDArray[np.int64]:
        return np.full(len(clients), NEVER)

    on_at = off_at
