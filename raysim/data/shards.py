"""One data set dealt to clients, as Arrow files that every process maps into memory and none copies.

A folder holds ``train.arrow`` and ``test.arrow``, each one record batch of a fixed-size-list column ``features`` and an
int64 column ``label``, and ``offsets.arrow``. The training rows are sorted by client, so that a shard is a slice; and
so are the test rows, where clients have tests of their own.

Shapes: N clients, N1 = N + 1, R rows.
"""

import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from raysim import draws
from raysim.data.partition import Partitioner
from raysim.data.table import Source, Splits, Table
from raysim.errors import ConfigError, DataError
from raysim.output import folder_whole

FORMAT = 3  # raised with every change of the files' layout or of the content that the same settings give
_META = b"raysim"

Split = Literal["train", "test"]


@dataclass(frozen=True)
class Sample:
    """A sample of a split's rows: one row, drawn, of each stretch of `every` rows in the file's order.

    Attributes:
        split: the split.
        every: the length of a stretch; 1 takes all rows.
        client: the only client whose rows are sampled; None takes all clients' rows.
    """

    split: Split
    every: int = 1
    client: int | None = None

    def rows(self, places: NDArray[np.int64], shards: "Shards") -> NDArray[np.int64]:
        """Returns the row numbers in the split of these places in the sample."""
        first, _ = self._within(shards)
        if self.every == 1:
            return first + places
        # The row is drawn because the order in a file may be periodic, and every nth row would follow the period.
        within: NDArray[np.int64] = (draws.uniform(0, "sample", places) * self.every).astype(np.int64)
        return first + self.every * places + within

    def size(self, shards: "Shards") -> int:
        """Returns the number of rows of the sample, N."""
        first, last = self._within(shards)
        return (last - first) // self.every

    def labels(self, shards: "Shards") -> NDArray[np.int64]:
        """Returns the labels of the sample's rows, (N,)."""
        labels: NDArray[np.int64] = getattr(shards, self.split).labels
        first, last = self._within(shards)
        if self.every == 1:
            return labels[first:last]
        return labels[self.rows(np.arange(self.size(shards)), shards)]

    def spread(self, rows: int, of: int) -> "Sample":
        """Returns a sample of at most `rows` of its own `of` rows, and of at least half as many, evenly spread."""
        return dataclasses.replace(self, every=self.every * math.ceil(of / rows))

    def _within(self, shards: "Shards") -> tuple[int, int]:
        """Returns the first row of the split that may be sampled, and the row after the last."""
        if self.client is None:
            return 0, len(getattr(shards, self.split))
        offsets_N1 = shards.offsets_N1 if self.split == "train" else shards.test_offsets_N1
        assert offsets_N1 is not None, "the test belongs to no client"
        return int(offsets_N1[self.client]), int(offsets_N1[self.client + 1])


def build(source: Source, partitioner: Partitioner, seed: int, cache: Path) -> Path:
    """Returns the folder of shards for these settings, which is built if the cache does not hold it yet.

    The folder's name is a hash of both records, the source's fingerprint and the seed. It appears at once and complete,
    or not at all; where several processes build the same folder, all use the one that appears first.

    Raises:
        DataError: the data cannot be loaded, no client has a row, or the cache cannot be written.
        ConfigError: the partition does not suit the data.
    """
    identity = {
        "format": FORMAT,
        "source": _identity(source, "data.name"),
        "fingerprint": source.fingerprint(),
        "partitioner": _identity(partitioner, "partition.name"),
        "seed": seed,
    }
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()[:16]
    folder = cache.expanduser().absolute() / f"{type(source).__name__.lower()}-{digest}"
    if folder.is_dir():
        return folder
    splits = source.load(seed)
    if not len(splits.train):
        raise DataError(f"every client has 0 rows: the train of {type(source).__name__} is empty")
    if partitioner.test_fraction is None:
        train, offsets_N1 = _by_client(splits.train, partitioner, seed)
        test, offsets = splits.test, {"offset": offsets_N1}
    else:
        dealt, offsets_N1 = _by_client(splits.train.joined(splits.test), partitioner, seed)
        is_test = _is_test(offsets_N1, partitioner.test_fraction, seed)
        train, test = dealt.take(np.flatnonzero(~is_test)), dealt.take(np.flatnonzero(is_test))
        tests_N1 = np.concatenate([[0], np.cumsum(is_test)])[offsets_N1]
        offsets = {"offset": offsets_N1 - tests_N1, "test_offset": tests_N1}
    meta = {
        "format": FORMAT,
        "build": digest,
        "shape": train.shape,
        "classes": splits.classes,
        "mul": splits.mul,
        "add": splits.add,
        "content": _content(splits, train, test, offsets),
    }
    try:
        with folder_whole(folder) as unfinished:
            _write(unfinished / "train.arrow", _columns(train), meta)
            _write(unfinished / "test.arrow", _columns(test), meta)
            _write(unfinished / "offsets.arrow", {name: pa.array(column) for name, column in offsets.items()}, meta)
    except OSError as error:
        raise DataError(
            f"cannot write the data cache {folder.parent}: {error}; free space or choose another"
        ) from error
    return folder


@dataclass(frozen=True, eq=False)
class SplitRows:
    """The rows of one split, "train" or "test": read-only views of the mapped file.

    Attributes:
        features: (R, *shape) uint8 or float32.
        labels: (R,) int64 classes.
    """

    features: NDArray[Any]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class Shards:
    """A built data set, mapped into memory; pickles as the name of its folder.

    Attributes:
        folder: the folder of its files.
        shape: the shape of one row's features.
        classes: the number of classes.
        mul, add: inputs are ``features * mul + add``.
        offsets_N1: (N + 1,) int64; client i has the train rows offsets_N1[i] to offsets_N1[i + 1] - 1.
        train: all clients' rows, sorted by client and, for one client, in the order of the source.
        test: the rows of the test; may be empty.
        test_offsets_N1: (N + 1,) int64; client i has the test rows test_offsets_N1[i] to test_offsets_N1[i + 1] - 1;
            None where test rows belong to no client.
        content: a digest of all of this, which does not depend on where the folder or the data's own files are.
    """

    folder: Path
    shape: tuple[int, ...]
    classes: int
    mul: float
    add: float
    offsets_N1: NDArray[np.int64]
    train: SplitRows
    test: SplitRows
    content: str
    test_offsets_N1: NDArray[np.int64] | None = None

    @classmethod
    def open(cls, folder: Path) -> "Shards":
        """Maps the files of a folder that `build` returned.

        Raises:
            DataError: a file is missing, cut short, damaged or not of raysim; the message names it.
        """
        folder = Path(folder).absolute()
        train, meta = _read(folder / "train.arrow", _split_rows)
        test, test_meta = _read(folder / "test.arrow", _split_rows)
        (offsets_N1, tests_N1), offsets_meta = _read(folder / "offsets.arrow", _offsets)
        counts = (offsets_N1[-1], len(test) if tests_N1 is None else tests_N1[-1])
        if not meta == test_meta == offsets_meta or counts != (len(train), len(test)):
            raise DataError(f"the files in {folder} do not belong together; delete the folder to build it anew")
        shape, classes, mul, add, content = (meta[key] for key in ("shape", "classes", "mul", "add", "content"))
        return cls(folder, tuple(shape), classes, mul, add, offsets_N1, train, test, content, tests_N1)

    def __reduce__(self) -> tuple[Callable[[Path], "Shards"], tuple[Path]]:
        return Shards.open, (self.folder,)

    @property
    def n_clients(self) -> int:
        """The number of clients, those without rows included."""
        return len(self.offsets_N1) - 1

    @property
    def rows_N(self) -> NDArray[np.int64]:
        """The number of training rows of each client, (N,)."""
        return np.diff(self.offsets_N1)

    def lengths(self, clients_C: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the number of training rows of these clients, (C,), at a cost that does not grow with N."""
        lengths: NDArray[np.int64] = self.offsets_N1[clients_C + 1] - self.offsets_N1[clients_C]
        return lengths

    def shard(self, client: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Returns (features, labels) of one client's training rows, as read-only slices of the mapped file.

        Raises:
            IndexError: there is no such client.
        """
        if not 0 <= client < self.n_clients:
            raise IndexError(f"there is no client {client}; there are {self.n_clients}, counted from 0")
        start, end = self.offsets_N1[client : client + 2].tolist()
        return self.train.features[start:end], self.train.labels[start:end]

    def inputs(
        self, rows: NDArray[np.integer], split: Split = "train", dtype: torch.dtype = torch.float32
    ) -> torch.Tensor:
        """Returns the scaled inputs of these rows, (*rows.shape, *shape), in new memory, which may be changed in place.

        Args:
            rows: row numbers of the whole train or test, an integer array of one dimension or more.
        """
        features = self._rows(split).features[np.asarray(rows, dtype=np.int64)]
        inputs = torch.from_numpy(features).to(dtype).mul_(self.mul)
        return inputs.add_(self.add) if self.add else inputs

    def labels(self, rows: NDArray[np.integer], split: Split = "train") -> torch.Tensor:
        """Returns the classes of these rows, (*rows.shape,) int64, in new memory."""
        return torch.from_numpy(self._rows(split).labels[np.asarray(rows, dtype=np.int64)])

    def class_counts(self) -> NDArray[np.int64]:
        """Returns the number of training rows of each class, (classes,)."""
        return np.bincount(self.train.labels, minlength=self.classes)

    def single_class_clients(self) -> int:
        """Returns the number of clients that have training rows of exactly one class."""
        # Equal at two rows if no label changes in between.
        changes = np.cumsum(np.diff(self.train.labels, prepend=0) != 0)
        starts, ends = self.offsets_N1[:-1], self.offsets_N1[1:]
        held = ends > starts
        return int(np.count_nonzero(changes[starts[held]] == changes[ends[held] - 1]))

    def _rows(self, split: Split) -> SplitRows:
        return {"train": self.train, "test": self.test}[split]


def _identity(record: Source | Partitioner, key: str) -> dict[str, Any]:
    kind = type(record)
    if not dataclasses.is_dataclass(record):
        raise ConfigError(key, f"{kind.__name__} is no dataclass; make it one, whose fields are its settings")
    fields = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
    return {"class": f"{kind.__module__}:{kind.__qualname__}", "fields": fields}


def _by_client(table: Table, partitioner: Partitioner, seed: int) -> tuple[Table, NDArray[np.int64]]:
    """Returns the table, stably sorted by client, and the offsets of the clients, (N + 1,). Raises DataError."""
    n_clients = partitioner.n_clients(table)
    owner = np.asarray(partitioner.assign(table, seed))
    fits = owner.shape == table.labels.shape and np.issubdtype(owner.dtype, np.integer)
    if not fits or owner.min() < 0 or owner.max() >= n_clients:
        raise DataError(
            f"{type(partitioner).__name__}.assign must give each of the {len(table)} rows a client from 0 to "
            f"{n_clients - 1}, as integers"
        )
    offsets_N1 = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=n_clients))]).astype(np.int64)
    order = np.argsort(owner, kind="stable")
    return Table(table.features[order], table.labels[order]), offsets_N1


def _is_test(offsets_N1: NDArray[np.int64], fraction: float, seed: int) -> NDArray[np.bool_]:
    """Draws the rows of the clients' own tests: (R,) True for a test row, rows being sorted by client."""
    rows_N = np.diff(offsets_N1)
    owner = np.repeat(np.arange(len(rows_N)), rows_N)
    shuffled = np.lexsort((draws.bits(seed, "own test", np.arange(len(owner))), owner))
    place = np.arange(len(owner)) - offsets_N1[owner]  # the place of each row of `shuffled` among its client's rows
    is_test = np.zeros(len(owner), dtype=bool)
    is_test[shuffled] = place < np.rint(rows_N * fraction)[owner]
    return is_test


def _content(splits: Splits, train: Table, test: Table, offsets: Mapping[str, NDArray[np.int64]]) -> str:
    """Returns a digest of the numbers alone; the folder's name depends on where they come from as well."""
    digest = hashlib.sha256(json.dumps([train.shape, splits.classes, splits.mul, splits.add]).encode())
    for numbers in (*offsets.values(), train.features, train.labels, test.features, test.labels):
        digest.update(f"{numbers.dtype} {numbers.shape}".encode())
        digest.update(np.ascontiguousarray(numbers).data)
    return digest.hexdigest()


def _columns(table: Table) -> dict[str, pa.Array]:
    flat = pa.array(np.ascontiguousarray(table.features).reshape(-1))
    features = pa.FixedSizeListArray.from_arrays(flat, math.prod(table.shape))
    return {"features": features, "label": pa.array(table.labels)}


def _write(path: Path, columns: dict[str, pa.Array], meta: dict[str, Any]) -> None:
    batch = pa.RecordBatch.from_pydict(columns)
    batch = batch.replace_schema_metadata({_META: json.dumps(meta).encode()})
    with path.open("wb") as file:
        with pa.ipc.new_file(file, batch.schema) as writer:
            writer.write_batch(batch)
        file.flush()
        os.fsync(file.fileno())


def _read(path: Path, take: Callable[[pa.RecordBatch, dict[str, Any]], Any]) -> tuple[Any, dict[str, Any]]:
    """Returns the result of `take` on the file's only record batch, and the file's metadata. Raises DataError."""
    try:
        with pa.memory_map(str(path)) as file:  # the buffers keep the mapping when the file is closed
            reader = pa.ipc.open_file(file)
            if reader.num_record_batches != 1 or _META not in (reader.schema.metadata or {}):
                raise ValueError("it is not of raysim")
            meta = json.loads(reader.schema.metadata[_META])
            if meta["format"] != FORMAT:
                raise ValueError(f"its format is {meta['format']}, and this raysim reads {FORMAT}")
            batch = reader.get_batch(0)
            batch.validate()  # damaged lengths would otherwise be followed out of the mapped memory
            return take(batch, meta), meta
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"cannot use {path}: {error}; delete the folder {path.parent} to build it anew") from error


def _split_rows(batch: pa.RecordBatch, meta: dict[str, Any]) -> SplitRows:
    labels = batch.column("label").to_numpy(zero_copy_only=True)
    flat = batch.column("features").flatten().to_numpy(zero_copy_only=True)
    if flat.dtype not in (np.uint8, np.float32) or labels.dtype != np.int64:
        raise ValueError(f"it holds {flat.dtype} features and {labels.dtype} labels")
    if len(labels) and not 0 <= labels.min() <= labels.max() < meta["classes"]:
        raise ValueError(f"a label is outside 0..{meta['classes'] - 1}")
    return SplitRows(flat.reshape(len(labels), *meta["shape"]), labels)


def _offsets(batch: pa.RecordBatch, meta: dict[str, Any]) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
    """Returns the offsets of the training rows and, where clients have tests of their own, of the test rows."""
    columns = {name: batch.column(name).to_numpy(zero_copy_only=True) for name in batch.schema.names}
    for offsets in columns.values():
        if len(offsets) < 2 or offsets[0] != 0 or (np.diff(offsets) < 0).any():
            raise ValueError("its offsets do not ascend from 0")
    return columns["offset"], columns.get("test_offset")
