"""Partitions say which client holds which row, as pure functions of the table and the seed.

Every row goes to exactly one client. A client may get no row, and there may be more clients than rows.
"""

import heapq
from abc import ABC, abstractmethod
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from pydantic.dataclasses import dataclass

from raysim import draws
from raysim.data.table import Table
from raysim.errors import ConfigError
from raysim.registry import STRICT

Count = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Concentration = Annotated[float, Field(ge=1e-6)]  # with a smaller one, one client has all of a class anyway


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Partitioner(ABC):
    """A way to deal rows to clients: a frozen dataclass whose fields are its settings.

    Attributes:
        test_fraction: the share of each client's rows, rounded, that is drawn for a test of its own; the training and
            test rows of the data are then dealt together. None leaves the data's test as it is, without a client.
    """

    test_fraction: Fraction | None = None

    @abstractmethod
    def n_clients(self, table: Table) -> int:
        """Returns the number of clients, those without rows included."""

    @abstractmethod
    def assign(self, table: Table, seed: int) -> NDArray[np.int64]:
        """Returns the client of each row of the table, (rows,), from 0 to n_clients - 1."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Sized(Partitioner):
    """A partition among a given number of clients.

    Attributes:
        clients: the number of clients.
    """

    clients: Count

    def n_clients(self, table: Table) -> int:
        return self.clients


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ByLabel(Sized):
    """Rows sorted by class and cut into equal blocks, so that most clients hold one class.

    The partition of CD-MAGE (Xie et al., section 5.1). The sort is stable; a block at the border of two classes holds
    both. Sizes differ by one row at most. No randomness.
    """

    def assign(self, table: Table, seed: int) -> NDArray[np.int64]:
        return _owners(np.argsort(table.labels, kind="stable"), _even_sizes(len(table), self.clients))


@dataclass(frozen=True, kw_only=True, config=STRICT)
class IID(Sized):
    """Rows shuffled and cut into equal blocks; sizes differ by one row at most."""

    def assign(self, table: Table, seed: int) -> NDArray[np.int64]:
        return _owners(draws.permutation(len(table), seed, "partition"), _even_sizes(len(table), self.clients))


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Stride(Sized):
    """Rows sorted by class and dealt in turn: every client has the same share of every class, but for one row.

    The partition of FedSGDA's fair classification (Wu et al. 2023, section 4.1). The sort is stable. No randomness.
    """

    def assign(self, table: Table, seed: int) -> NDArray[np.int64]:
        clients = np.empty(len(table), dtype=np.int64)
        clients[np.argsort(table.labels, kind="stable")] = np.arange(len(table)) % self.clients
        return clients


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ClassesPerClient(Sized):
    """Each client holds at most a given number of classes, through single-class pieces dealt at random.

    The partition follows McMahan et al. (2017): rows are sorted by class and cut into clients * classes pieces, and
    `classes` pieces are dealt to each client. There a piece at the border of two classes holds both, so that a client
    can hold more classes than it should; here classes are cut one by one, each into a number of pieces that keeps
    pieces as equal in size as can be. Where class sizes are multiples of the piece size, the two agree.

    Attributes:
        classes: the most classes a client may hold.

    Raises (by `assign`):
        ConfigError: clients * classes is below the number of classes in the data.
    """

    classes: Count = 2

    def assign(self, table: Table, seed: int) -> NDArray[np.int64]:
        kinds, sizes = np.unique(table.labels, return_counts=True)
        n_pieces = self.clients * self.classes
        if n_pieces < len(kinds):
            raise ConfigError(
                "partition.classes",
                f"{self.clients} clients with {self.classes} classes each cannot hold the {len(kinds)} classes of the "
                "data; raise partition.classes or partition.clients",
            )
        pieces = [
            _even_sizes(int(size), k) for size, k in zip(sizes, _piece_counts(sizes.tolist(), n_pieces), strict=True)
        ]
        piece_of_row = _owners(np.argsort(table.labels, kind="stable"), np.concatenate([*pieces, _NONE]))
        return draws.permutation(n_pieces, seed, "partition")[piece_of_row] // self.classes


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ConsecutiveClasses(Sized):
    """Client i holds the classes i, i + 1, ..., modulo the number of classes; a class is cut evenly among its holders.

    The partition of FedReCo's code, where clients are as many as a multiple of the classes, which it is balanced for.

    Attributes:
        classes: the number of classes that each client holds.

    Raises (by `assign`):
        ConfigError: the data has fewer classes, or a class has no holder.
    """

    classes: Count

    def assign(self, table: Table, seed: int) -> NDArray[np.int64]:
        kinds = int(table.labels.max()) + 1
        if self.classes > kinds:
            raise ConfigError("partition.classes", f"cannot be {self.classes}: the data has {kinds} classes")
        if self.clients + self.classes <= kinds:
            raise ConfigError(
                "partition.clients",
                f"{self.clients} clients with {self.classes} of {kinds} consecutive classes each leave a class without "
                f"a client; take {kinds - self.classes + 1} clients or more",
            )
        owner = np.empty(len(table), dtype=np.int64)
        for kind in range(kinds):
            holders = np.flatnonzero((kind - np.arange(self.clients)) % kinds < self.classes)
            rows = np.flatnonzero(table.labels == kind)
            order = draws.permutation(len(rows), seed, "partition", kind)
            owner[rows] = holders[_owners(order, _even_sizes(len(rows), len(holders)))]
        return owner


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Dirichlet(Sized):
    """Each class is spread over the clients by proportions drawn from Dirichlet(alpha): label and size skew.

    Each class has one draw over clients, as in Yurochkin et al. (2019) and Li et al. (2022); Hsu et al. (2019), with
    whom the method is often credited, draw over classes for each client and keep sizes equal.

    Attributes:
        alpha: the concentration; 0.1 is very uneven, 100 nearly IID.
    """

    alpha: Concentration

    def assign(self, table: Table, seed: int) -> NDArray[np.int64]:
        owner = np.empty(len(table), dtype=np.int64)
        for kind in np.unique(table.labels).tolist():
            rows = np.flatnonzero(table.labels == kind)
            sizes = _dirichlet_sizes(
                len(rows), self.clients, self.alpha, draws.generator(seed, "partition sizes", kind)
            )
            owner[rows] = _owners(draws.permutation(len(rows), seed, "partition", kind), sizes)
        return owner


@dataclass(frozen=True, kw_only=True, config=STRICT)
class QuantitySkew(Sized):
    """Rows shuffled and cut into blocks whose sizes are drawn from Dirichlet(alpha): size skew alone (Li et al., 2022).

    Attributes:
        alpha: the concentration; 0.1 is very uneven, 100 nearly equal.
    """

    alpha: Concentration

    def assign(self, table: Table, seed: int) -> NDArray[np.int64]:
        sizes = _dirichlet_sizes(len(table), self.clients, self.alpha, draws.generator(seed, "partition sizes"))
        return _owners(draws.permutation(len(table), seed, "partition"), sizes)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Natural(Partitioner):
    """The data's own clients, numbered by their sorted ids.

    Raises (by either method):
        ConfigError: the data does not say to which client a row belongs.
    """

    def n_clients(self, table: Table) -> int:
        return len(np.unique(self._ids(table)))

    def assign(self, table: Table, seed: int) -> NDArray[np.int64]:
        places: NDArray[np.int64] = np.unique(self._ids(table), return_inverse=True)[1].astype(np.int64)
        return places

    def _ids(self, table: Table) -> NDArray[np.generic]:
        if table.clients is None:
            raise ConfigError(
                "partition.name",
                "'natural' needs data that says whose its rows are ('quadratic', or 'parquet' with data.client)",
            )
        return table.clients


_NONE = np.empty(0, dtype=np.int64)


def _owners(order: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the client of each row, (rows,), where rows are dealt in this order, in blocks of these sizes."""
    owner = np.empty(len(order), dtype=np.int64)
    owner[order] = np.repeat(np.arange(len(sizes)), sizes)
    return owner


def _even_sizes(rows: int, parts: int) -> NDArray[np.int64]:
    """Returns the sizes of np.array_split: equal, but for one row more in the first few."""
    size, larger = divmod(rows, parts)
    return size + (np.arange(parts) < larger).astype(np.int64)


def _dirichlet_sizes(rows: int, parts: int, alpha: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draws sizes in proportions from Dirichlet(alpha).

    The gamma variates are kept as logarithms (a Gamma(alpha) is a Gamma(alpha + 1) times U^(1/alpha)): for a small
    alpha all of them underflow, and their proportions would be 0/0.
    """
    logs = np.log(rng.standard_gamma(alpha + 1, parts)) + np.log1p(-rng.random(parts)) / alpha
    weights = np.exp(logs - logs.max())
    ends = np.rint(np.cumsum(weights / weights.sum()) * rows).astype(np.int64)
    ends[-1] = rows
    sizes: NDArray[np.int64] = np.diff(ends, prepend=0)
    return sizes


def _piece_counts(sizes: list[int], total: int) -> list[int]:
    """Returns the number of pieces of each class: at least one, and each further cut where pieces are largest."""
    counts = [1] * len(sizes)
    heap = [(-float(size), kind) for kind, size in enumerate(sizes)]
    heapq.heapify(heap)
    for _ in range(total - len(sizes) if sizes else 0):
        _, kind = heap[0]
        counts[kind] += 1
        heapq.heapreplace(heap, (-sizes[kind] / counts[kind], kind))
    return counts
