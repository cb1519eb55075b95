"""Models devices that are on by an independent draw at every instant."""

import numpy as np
from numpy.typing import NDArray
from pydantic.dataclasses import dataclass as record

from raysim import draws
from raysim.devices.availability.model import Times
from raysim.devices.availability.shares import ShareBased
from raysim.devices.clock import NEVER
from raysim.registry import STRICT


@record(frozen=True, kw_only=True, config=STRICT, eq=False)
class Bernoulli(ShareBased):
    """Each device is on with its own probability, drawn anew at every instant asked: the model of theory papers.

    Device k is on with probability pi_k, independently at every (round, instant). A device that takes part in a phase
    stays on until the phase ends. The attributes are those of `ShareBased`.
    """

    def on(self, clients: NDArray[np.int64], t_us: int, round: int) -> NDArray[np.bool_]:
        return draws.uniform(self.seed, "bernoulli availability", round, t_us, clients) < self.shares[clients]

    def off_at(self, clients: NDArray[np.int64], t_us: Times, round: int, horizon_us: int) -> NDArray[np.int64]:
        return np.full(len(clients), NEVER)

    on_at = off_at
