"""Models groups of devices that are on in turn."""

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from pydantic.dataclasses import dataclass as record

from raysim.devices.availability.model import Availability, Times
from raysim.devices.clock import NEVER, SECOND_US
from raysim.errors import ConfigError
from raysim.registry import STRICT


@record(frozen=True, kw_only=True, config=STRICT)
class Cyclic(Availability):
    """Groups of devices take turns: client k is in group k modulo `groups`, and one group at a time is on.

    The source is Cho et al. (2023), "On the convergence of federated averaging with cyclic client participation".

    Attributes:
        groups: the number of groups, which is at most the number of clients.
        period_s: how long a turn lasts, in seconds; None makes a turn last one round, in which no device turns off.
        clients: the number of clients, which the simulator supplies.

    Raises:
        ConfigError: There are more groups than clients.
    """

    groups: Annotated[int, Field(ge=1)]
    period_s: Annotated[float, Field(ge=1e-6, le=1e9)] | None = None
    clients: int

    def __post_init__(self) -> None:
        if self.groups > self.clients:
            raise ConfigError(
                "devices.availability.groups", f"is {self.groups}, but there are {self.clients} clients; lower it"
            )

    def on(self, clients: NDArray[np.int64], t_us: int, round: int) -> NDArray[np.bool_]:
        turn = round if self._period_us is None else t_us // self._period_us
        return np.equal(clients % self.groups, turn % self.groups)

    def off_at(self, clients: NDArray[np.int64], t_us: Times, round: int, horizon_us: int) -> NDArray[np.int64]:
        t = np.broadcast_to(np.asarray(t_us, dtype=np.int64), len(clients))
        if self._period_us is None or self.groups == 1:
            return np.full(len(clients), NEVER)
        end = (t // self._period_us + 1) * self._period_us
        return np.where(end > t + horizon_us, NEVER, end)

    def on_at(self, clients: NDArray[np.int64], t_us: Times, round: int, horizon_us: int) -> NDArray[np.int64]:
        t = np.broadcast_to(np.asarray(t_us, dtype=np.int64), len(clients))
        if self._period_us is None or self.groups == 1:
            return np.full(len(clients), NEVER)
        turn = t // self._period_us
        start = (turn + (clients - turn) % self.groups) * self._period_us
        return np.where(start > t + horizon_us, NEVER, start)

    def next_change(self, t_us: int) -> int | None:
        if self._period_us is None or self.groups == 1:
            return None
        return (t_us // self._period_us + 1) * self._period_us

    @property
    def _period_us(self) -> int | None:
        return None if self.period_s is None else round(self.period_s * SECOND_US)
