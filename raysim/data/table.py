"""A data set before its rows are dealt to clients: two tables of rows, and the source that loads them."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raysim import draws
from raysim.errors import DataError


@dataclass(frozen=True, eq=False)
class Table:
    """Rows of one data set.

    Attributes:
        features: (rows, *shape) uint8 (images, as on disk) or float32, all finite.
        labels: (rows,) int64 class numbers from 0, those of the data set; a problem may make them binary.
        clients: (rows,) the client that each row comes from, of any sortable type; None where the data does not say.

    Raises:
        DataError: lengths or types disagree, a label is negative, or a feature is not finite (row and feature named).
    """

    features: NDArray[Any]
    labels: NDArray[np.int64]
    clients: NDArray[Any] | None = None

    def __post_init__(self) -> None:
        if self.features.dtype not in (np.uint8, np.float32):
            raise DataError(f"features are {self.features.dtype}; convert them to uint8 or float32")
        if self.features.ndim < 2 or 0 in self.features.shape[1:]:
            raise DataError(f"features have shape {self.features.shape}; give (rows, ...) with one value or more a row")
        for name, column in (("labels", self.labels), ("clients", self.clients)):
            if column is not None and column.shape != (len(self.features),):
                raise DataError(
                    f"{name} have shape {column.shape}, but there are {len(self.features)} rows of features"
                )
        if self.labels.dtype != np.int64:
            raise DataError(f"labels are {self.labels.dtype}; convert them to int64 class numbers")
        if (self.labels < 0).any():
            row = int(np.argmax(self.labels < 0))
            raise DataError(f"row {row} has label {self.labels[row]}; number the classes from 0")
        if self.features.dtype == np.float32 and not np.isfinite(self.features).all():
            row, *place = (int(i) for i in np.argwhere(~np.isfinite(self.features))[0])
            index = place[0] if len(place) == 1 else tuple(place)
            value = self.features[(row, *place)]
            raise DataError(f"row {row}, feature {index} (both counted from 0) is {value}; mend or remove the row")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one row's features."""
        return self.features.shape[1:]

    def take(self, rows: NDArray[np.int64]) -> "Table":
        """Returns a copy of these rows, in this order."""
        return Table(self.features[rows], self.labels[rows], None if self.clients is None else self.clients[rows])

    def joined(self, other: "Table") -> "Table":
        """Returns these rows and then the other's, of the same shape; with clients where both tables have them."""
        clients = None
        if self.clients is not None and other.clients is not None:
            clients = np.concatenate([self.clients, other.clients])
        features, labels = (
            np.concatenate(pair) for pair in ((self.features, other.features), (self.labels, other.labels))
        )
        return Table(features, labels, clients)

    def thinned(self, classes: Iterable[int], keep: float, seed: int) -> "Table":
        """Returns the table with a share `keep`, rounded, of the rows of each of these classes, drawn by `seed`.

        Rows keep their order.
        """
        stays = np.ones(len(self), dtype=bool)
        for c in classes:
            rows = np.flatnonzero(self.labels == c)
            dropped = draws.permutation(len(rows), seed, "thin", c)[round(len(rows) * keep) :]
            stays[rows[dropped]] = False
        return self.take(np.flatnonzero(stays))

    def thinned_to(self, classes: Iterable[int], rows: int, seed: int) -> "Table":
        """Returns the table with so many rows of these classes together, drawn by `seed`; rows keep their order."""
        thinned = np.flatnonzero(np.isin(self.labels, list(classes)))
        stays = np.ones(len(self), dtype=bool)
        stays[thinned[draws.permutation(len(thinned), seed, "thin together")[rows:]]] = False
        return self.take(np.flatnonzero(stays))

    def split(self, fraction: float, seed: int) -> tuple["Table", "Table"]:
        """Returns (train, test), where a share `fraction` of the rows, rounded, is drawn by `seed` for the test.

        Rows keep their order in both.
        """
        order = draws.permutation(len(self), seed, "split")
        n_test = round(len(self) * fraction)
        return self.take(np.sort(order[n_test:])), self.take(np.sort(order[:n_test]))


@dataclass(frozen=True, eq=False)
class Splits:
    """A loaded data set: its training and its test rows.

    Attributes:
        train, test: tables of one row shape and dtype; the test may be empty.
        classes: the number of classes; every label is below it.
        mul, add: a network's inputs are ``features * mul + add``, applied when a minibatch is gathered, so that images
            stay uint8 on disk.

    Raises:
        DataError: the tables do not fit each other or `classes`.
    """

    train: Table
    test: Table
    classes: int
    mul: float = 1.0
    add: float = 0.0

    def __post_init__(self) -> None:
        a, b = self.train, self.test
        if (a.shape, a.features.dtype) != (b.shape, b.features.dtype):
            raise DataError(
                f"rows of the test are {b.features.dtype} {b.shape}, rows of the train {a.features.dtype} {a.shape}; "
                "both must have the same features"
            )
        for name, table in (("train", a), ("test", b)):
            if len(table) and table.labels.max() >= self.classes:
                row = int(np.argmax(table.labels))
                raise DataError(f"{name} row {row} has label {table.labels[row]}, but there are {self.classes} classes")


class Source(ABC):
    """A data set that can be loaded: a frozen dataclass whose fields are its settings."""

    @abstractmethod
    def load(self, seed: int) -> Splits:
        """Returns the data; `seed` decides whatever is random in it (a test split, synthetic numbers).

        Raises:
            DataError: a file is missing, damaged or not of the expected layout; the message names it.
        """

    @abstractmethod
    def fingerprint(self) -> str:
        """Returns a text that changes whenever the same settings load other data: files' sizes and times, versions."""


def stamps(paths: Iterable[Path]) -> str:
    """Returns a fingerprint of files: one line each with the full path, size and time of change.

    Raises:
        DataError: a file cannot be looked at.
    """
    try:
        return "\n".join(f"{path.resolve()} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in paths)
    except OSError as error:
        raise DataError(f"cannot read {error.filename}: {error.strerror}") from error
