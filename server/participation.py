"""The spread of participation over groups of clients, over clients and over rounds.

The cost of a phase here depends on its cohort, not on the population: arrays per client are changed in place, and the
Gini coefficient is computed from the number of clients for each number of participations.

Legend: N all clients, C accepted clients of a phase.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Clients = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Grouping:
    """A division of the clients into groups.

    Attributes:
        names: names of the groups, in order.
        of_N: the number of each client's group.
    """

    names: Sequence[str]
    of_N: NDArray[np.int16]

    def counts(self, clients_C: Clients) -> list[int]:
        """Returns how many of these clients are in each group, in the order of `names`."""
        counted: list[int] = np.bincount(self.of_N[clients_C], minlength=len(self.names)).tolist()
        return counted

    @classmethod
    def by_speed(cls, seconds_N: NDArray[np.float64], has_rows_N: NDArray[np.bool_]) -> "Grouping":
        """Divides clients by speed at the quartiles of those with rows; equally fast ones are in the faster group."""
        bounds = np.quantile(seconds_N[has_rows_N], (0.25, 0.5, 0.75), method="inverted_cdf")
        return cls(("fastest", "second", "third", "slowest"), np.searchsorted(bounds, seconds_N).astype(np.int16))

    @classmethod
    def by_label(cls, score_N: NDArray[np.float64]) -> "Grouping":
        """Divides clients by quarters of the range of label scores, 0 to 1, of which the last includes 1."""
        names = ("0 to 0.25", "0.25 to 0.5", "0.5 to 0.75", "0.75 to 1")
        return cls(names, np.minimum(4 * score_N, 3).astype(np.int16))


@dataclass
class Tally:
    """Counts how often each client took part, and when last.

    Attributes:
        has_rows_N: True for clients that could ever be accepted.
        times_N: number of phases that each client was accepted in.
        last_N: by phase name, the round that each client was last accepted in; -1 if it never was.
        clients: number of clients with rows that took part 0, 1, 2, ... times.
    """

    has_rows_N: NDArray[np.bool_]
    times_N: NDArray[np.int32] = field(init=False)
    last_N: dict[str, NDArray[np.int32]] = field(default_factory=dict)
    clients: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        self.times_N = np.zeros(len(self.has_rows_N), np.int32)
        self.clients = np.array([np.count_nonzero(self.has_rows_N)])

    def accept(self, t: int, phase: str, clients_C: Clients) -> float | None:
        """Counts a phase's accepted clients, each of them once.

        Returns:
            The mean number of rounds since these clients were last accepted in a phase of that name, over the clients
            that ever were; None if none was.
        """
        if phase not in self.last_N:
            self.last_N[phase] = np.full(len(self.times_N), -1, np.int32)
        last_N = self.last_N[phase]
        last_C = last_N[clients_C]
        last_N[clients_C] = t
        times_C = self.times_N[clients_C]
        self.times_N[clients_C] += 1
        more = int(times_C.max(initial=-1)) + 2 - len(self.clients)
        if more > 0:
            self.clients = np.concatenate([self.clients, np.zeros(more, np.int64)])
        moved = np.bincount(times_C, minlength=len(self.clients))
        self.clients -= moved
        self.clients[1:] += moved[:-1]
        before_C = last_C[last_C >= 0]
        return float((t - before_C).mean()) if len(before_C) else None

    @property
    def gini(self) -> float:
        """The Gini coefficient of participation over clients with rows; 0 where nobody took part.

        With counts c_1 <= ... <= c_n it is sum_i (2i - n - 1) c_i / (n sum_i c_i), in whole numbers up to the division.
        Over m clients with the same count, which come after a others, the factors 2i - n - 1 add up to m (2a + m - n).
        """
        counts = np.arange(len(self.clients))
        n, total = int(self.clients.sum()), int(counts @ self.clients)
        after = np.cumsum(self.clients) - self.clients
        return int((counts * self.clients) @ (2 * after + self.clients - n)) / (n * total) if total else 0.0
