"""Draws the events of Poisson processes so that they can be looked up at any time without a history."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from raysim import draws

# P(N <= n) for N ~ Poisson(1), by sums and quotients alone, which are the same to the bit on every machine.
_COUNTS = np.cumsum(1 / np.array([math.factorial(n) for n in range(20)], dtype=np.float64)) / math.e
_COUNTS[-1] = 1.0


@dataclass(frozen=True, eq=False)
class PoissonProcess:
    """Holds one Poisson process for each client, whose events can be looked up at any time, before and after 0.

    A client's time is cut into blocks as long as its mean gap. One hash gives the number of events of a block, by the
    inverse of the distribution function; the rest of that hash places the first event, and further hashes the others.

    Attributes:
        seed: the seed of the hashes.
        purpose: the purpose of the hashes, which tells this process from others of the same seed.
        gap_us: (clients,) the mean time between events, in microseconds.
    """

    seed: int
    purpose: str
    gap_us: NDArray[np.float64]

    def nearest(
        self,
        clients: NDArray[np.int64],
        low_us: np.float64 | NDArray[np.float64],
        high_us: np.float64 | NDArray[np.float64],
        forward: bool,
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Finds the first (`forward`) or the last event of each client in (low_us, high_us].

        Args:
            clients: (C,) the clients.
            low_us: the bound that events must be later than, one or (C,).
            high_us: the bound that events must not be later than, one or (C,).
            forward: finds the first event if true, the last one if false.

        Returns:
            (C,) the time of each event, infinite where there is none, and (C,) its number, which tells the client's
            events apart and does not depend on the client's gap.
        """
        gap = self.gap_us[clients]
        low, high = np.broadcast_to(low_us, gap.shape), np.broadcast_to(high_us, gap.shape)
        block = np.floor((low if forward else high) / gap).astype(np.int64)
        sign = 1 if forward else -1
        best = np.full(len(clients), sign * np.inf)
        numbers = np.zeros(len(clients), dtype=np.int64)
        left = np.arange(len(clients))
        while len(left):
            for inside, positions, index in self._events(clients[left], block[left]):
                places = left[inside]
                times = (block[places] + positions) * gap[places]
                good = (times > low[places]) & (times <= high[places]) & (sign * times < sign * best[places])
                places = places[good]
                best[places] = times[good]
                numbers[places] = block[places] * len(_COUNTS) + index
            left = left[np.isinf(best[left])]
            if forward:
                left = left[(block[left] + 1) * gap[left] < high[left]]
            else:
                left = left[block[left] * gap[left] > low[left]]
            block[left] += sign
        return best, numbers

    def _events(
        self, clients: NDArray[np.int64], block: NDArray[np.int64]
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64], int]]:
        """Yields, for index 0, 1, ..., the blocks that have more than `index` events and where that event is in each.

        Each item is (places of these blocks among those given, positions in [0, 1) within the block, index).
        """
        u = draws.uniform(self.seed, self.purpose, 0, clients, block)
        count = np.searchsorted(_COUNTS, u, side="right")
        inside = np.flatnonzero(count)
        count = count[inside]
        below = _COUNTS[count - 1]
        yield inside, (u[inside] - below) / (_COUNTS[count] - below), 0
        for index in range(1, int(count.max(initial=0))):
            more = count > index
            inside, count = inside[more], count[more]
            yield inside, draws.uniform(self.seed, self.purpose, index, clients[inside], block[inside]), index
