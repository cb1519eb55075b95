"""Defines what every model of availability answers.

Times are int64 microseconds since the start of the experiment. No model has state: an answer does not depend on earlier
questions, on which clients are asked together, or on how many clients there are.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

Times = int | NDArray[np.int64]

Positive = Annotated[float, Field(gt=0)]
Probability = Annotated[float, Field(ge=0, le=1)]


class Availability(ABC):
    """Answers when devices are on: a frozen record whose fields are the settings of the model.

    Clients are numbered from 0 and may be asked in any order. Only models without time depend on `round`.
    """

    @abstractmethod
    def on(self, clients: NDArray[np.int64], t_us: int, round: int) -> NDArray[np.bool_]:
        """Returns (clients,) whether each client is on at the instant `t_us`."""

    @abstractmethod
    def off_at(self, clients: NDArray[np.int64], t_us: Times, round: int, horizon_us: int) -> NDArray[np.int64]:
        """Returns (clients,) the first instant in (t_us, t_us + horizon_us] at which each is off, NEVER if none is.

        `t_us` is one instant for all clients or (clients,) one for each. The clients must be on then; for others the
        answer has no meaning.
        """

    @abstractmethod
    def on_at(self, clients: NDArray[np.int64], t_us: Times, round: int, horizon_us: int) -> NDArray[np.int64]:
        """Returns (clients,) the first instant in (t_us, t_us + horizon_us] at which each is on, NEVER if none is.

        `t_us` is one instant for all clients or (clients,) one for each. The clients must be off then; for others the
        answer has no meaning.
        """

    def next_change(self, t_us: int) -> int | None:
        """Returns the first instant after `t_us` at which any client turns on or off.

        None says that there is no such instant, or that the model does not know it.
        """
        return None

    @property
    def zones(self) -> tuple[Sequence[str], NDArray[np.int16]] | None:
        """Names the time zones and gives (clients,) the number of each client's zone; None if there is only one."""
        return None
