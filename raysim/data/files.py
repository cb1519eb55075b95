"""Data sets in the user's own files: Parquet (images of the Hugging Face hub, or numeric columns) and LIBSVM text."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import Field
from pydantic.dataclasses import dataclass

from raysim.data.images import Encoded, Size, pixels
from raysim.data.root import find_file
from raysim.data.standard import PIXELS
from raysim.data.table import Splits, Table, stamps
from raysim.data.thinned import TestFraction, Thinned
from raysim.errors import ConfigError, DataError
from raysim.registry import STRICT, nearest


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Parquet(Thinned):
    """A Parquet file: images in the Hugging Face hub's layout, or numeric feature columns.

    An image column is a ``struct<bytes, path>``; its images become (channels, height, width) uint8 rows, scaled to
    [-1, 1] as inputs. Otherwise the numeric columns, in the file's order, become float32 rows, used as they are.

    Attributes:
        train: the file.
        test: the file of the test; None draws `test_fraction` of the train by the seed.
        label: the column of classes: integers from 0, booleans, or strings, which are numbered by their sorted order.
        image: the image column; None takes the only ``struct<bytes, path>`` column, where there is one.
        features: the feature columns; None takes every numeric column but the label and the client.
        client: the column that says to which client each row belongs, for the partition ``natural``.
        size: height and width to which images are scaled, in RGB; None takes them as they are, which must be alike.
        thin, thin_keep, thin_share: see Thinned.

    Raises (by `load`):
        DataError: a file or column is missing or damaged, a value is missing or not finite, or images differ in size.
    """

    train: str
    test: str | None = None
    test_fraction: TestFraction = 0.2
    label: str = "label"
    image: str | None = None
    features: tuple[str, ...] | None = None
    client: str | None = None
    size: Size | None = None

    def read(self, seed: int) -> Splits:
        if self.image is not None and self.features is not None:
            raise ConfigError("data.features", "cannot stand beside data.image; keep one of the two")
        train_file = _ParquetColumns(self.train)
        image = self._image_column(train_file)
        if self.size is not None and image is None:
            raise ConfigError(
                "data.size", f"is of images, and no image column of {train_file.path} is used; leave it out"
            )
        names = None if image else self._feature_columns(train_file)

        def table(file: _ParquetColumns, labels: NDArray[np.int64], clients: NDArray[Any] | None) -> Table:
            with _naming(file.path):
                return Table(file.images(image, self.size) if image else file.numbers(names or ()), labels, clients)

        values = train_file.labels(self.label)
        kinds = np.unique(values) if values.dtype == object else None
        clients = None if self.client is None else train_file.plain(self.client, "data.client")
        train = table(train_file, _class_numbers(values, kinds, train_file.path), clients)
        if self.test is None:
            train, test = train.split(self.test_fraction, seed)
        else:
            test_file = _ParquetColumns(self.test)
            test = table(test_file, _class_numbers(test_file.labels(self.label), kinds, test_file.path), None)
        classes = 1 + max(int(part.labels.max(initial=0)) for part in (train, test)) if kinds is None else len(kinds)
        with _naming(train_file.path):
            return Splits(train, test, classes, **(PIXELS if image else {}))

    def fingerprint(self) -> str:
        import PIL

        # A lossy image decodes to other pixels in another version of the decoder.
        return f"{stamps(find_file(p) for p in (self.train, self.test) if p is not None)}\nPillow {PIL.__version__}"

    def _image_column(self, file: "_ParquetColumns") -> str | None:
        structs: list[str] = [field.name for field in file.schema if _is_image(field.type)]
        if self.image is not None:
            file.require(self.image, "data.image")
            if self.image not in structs:
                kind = file.schema.field(self.image).type
                raise DataError(f"{file.path}: column {self.image!r} (data.image) is {kind}, not struct<bytes, path>")
            return self.image
        if self.features is not None or not structs:
            return None
        if len(structs) > 1:
            raise DataError(f"{file.path}: has several image columns, {', '.join(structs)}; choose one by data.image")
        return structs[0]

    def _feature_columns(self, file: "_ParquetColumns") -> tuple[str, ...]:
        if self.features is not None:
            names = self.features
        else:
            others = (self.label, self.client)
            names = tuple(f.name for f in file.schema if f.name not in others and _is_numeric(f.type))
        if not names:
            raise DataError(
                f"{file.path}: has no image column (struct<bytes, path>) and no numeric column to use as a feature; "
                f"its columns are {', '.join(file.schema.names)}"
            )
        return names


@dataclass(frozen=True, kw_only=True, config=STRICT)
class LibSVM(Thinned):
    """A file of LIBSVM text (svmlight), plain, .gz or .bz2, as dense float32 rows.

    The distinct labels of the train, sorted, become the classes 0, 1, ...; so -1 and +1 become 0 and 1.

    Attributes:
        train: the file.
        test: the file of the test; None draws `test_fraction` of the train by the seed.
        n_features: the length of a row; None takes the largest feature number in the files.
        thin, thin_keep, thin_share: see Thinned.

    Raises (by `load`):
        DataError: a file is missing or damaged, or the test has a label that the train has not.
        ConfigError: `n_features` is smaller than a feature number in the files.
    """

    train: str
    test: str | None = None
    test_fraction: TestFraction = 0.2
    n_features: Annotated[int, Field(ge=1)] | None = None

    def read(self, seed: int) -> Splits:
        from sklearn.datasets import load_svmlight_files

        paths = [find_file(path) for path in (self.train, self.test) if path is not None]
        try:
            # One call for all files, because it guesses from all of them whether features are numbered from 0 or 1.
            parts = load_svmlight_files([str(path) for path in paths], dtype=np.float32)
        except (ValueError, OSError, EOFError, OverflowError) as error:
            raise DataError(f"{' or '.join(map(str, paths))}: is no LIBSVM text or is damaged ({error})") from error
        matrices, targets = parts[0::2], parts[1::2]
        if not len(targets[0]):
            raise DataError(f"{paths[0]}: has no rows")
        widest = max(matrix.shape[1] for matrix in matrices)
        if self.n_features is not None and self.n_features < widest:
            raise ConfigError("data.n_features", f"is {self.n_features}, but the files have {widest} features")
        kinds = np.unique(targets[0])
        tables = []
        for path, matrix, target in zip(paths, matrices, targets, strict=True):
            matrix.resize(len(target), self.n_features or widest)
            with _naming(path):
                tables.append(Table(matrix.toarray(), _class_numbers(target, kinds, path)))
        train, test = tables if len(tables) == 2 else tables[0].split(self.test_fraction, seed)
        return Splits(train, test, classes=len(kinds))

    def fingerprint(self) -> str:
        return stamps(find_file(path) for path in (self.train, self.test) if path is not None)


class _ParquetColumns:
    """A Parquet file, read by column, with errors that name the file, the column and the row."""

    def __init__(self, name: str) -> None:
        self.path = find_file(name)
        with _parquet_errors(self.path):
            self._file = pq.ParquetFile(self.path, memory_map=True)
            self.schema: pa.Schema = self._file.schema_arrow
        if not self._file.metadata.num_rows:
            raise DataError(f"{self.path}: has no rows")

    def require(self, name: str, key: str) -> None:
        if name not in self.schema.names:
            raise DataError(f"{self.path}: has no column {name!r} ({key}){nearest(name, self.schema.names)}")

    def column(self, name: str, key: str) -> pa.ChunkedArray:
        """Returns a column, a categorical one as its values. Raises DataError where a value is missing."""
        self.require(name, key)
        with _parquet_errors(self.path):
            column = self._file.read(columns=[name]).column(name)
            if pa.types.is_dictionary(column.type):
                column = column.cast(column.type.value_type)
        if column.null_count:
            row = pc.index(column.is_null(), True).as_py()
            raise DataError(f"{self.path}: row {row}, column {name!r} has no value; fill it or remove the row")
        return column

    def plain(self, name: str, key: str) -> NDArray[Any]:
        """Returns a column of integers, booleans or strings as a NumPy array; strings as an array of objects."""
        column = self.column(name, key)
        if not (_is_text(column.type) or pa.types.is_integer(column.type) or pa.types.is_boolean(column.type)):
            raise DataError(f"{self.path}: column {name!r} ({key}) is {column.type}; it must be integers or strings")
        values: NDArray[Any] = column.to_numpy()
        return values

    def labels(self, name: str) -> NDArray[Any]:
        """Returns the label column: int64, or an array of objects where the labels are strings."""
        values = self.plain(name, "data.label")
        return values if values.dtype == object else values.astype(np.int64)

    def numbers(self, names: tuple[str, ...]) -> NDArray[np.float32]:
        """Returns the columns as finite numbers (rows, len(names))."""
        table = np.empty((self._file.metadata.num_rows, len(names)), dtype=np.float32)
        for j, name in enumerate(names):
            column = self.column(name, "data.features")
            if not _is_numeric(column.type):
                raise DataError(f"{self.path}: column {name!r} (data.features) is {column.type}, not numeric")
            with np.errstate(over="ignore"):  # what is too large for float32 is refused just below
                table[:, j] = column.to_numpy()
            finite = np.isfinite(table[:, j])
            if not finite.all():
                row = int(np.argmin(finite))
                raise DataError(
                    f"{self.path}: row {row}, column {name!r} is {column[row].as_py()}, which is not a finite float32; "
                    "mend or remove the row"
                )
        return table

    def images(self, name: str, size: int | None) -> NDArray[np.uint8]:
        """Returns the pixels of an image column, (rows, channels, height, width)."""
        self.require(name, "data.image")
        if not _is_image(self.schema.field(name).type):
            raise DataError(f"{self.path}: column {name!r} is {self.schema.field(name).type}, not struct<bytes, path>")
        return pixels(self._encoded(name), self._file.metadata.num_rows, size)

    def _encoded(self, name: str) -> Iterator[Encoded]:
        row = 0
        with _parquet_errors(self.path):
            for batch in self._file.iter_batches(batch_size=1024, columns=[name]):
                for data in pc.struct_field(batch.column(0), "bytes").to_pylist():
                    if data is None:
                        raise DataError(
                            f"{self.path}: row {row} holds no image bytes; images must lie in the file, not beside it"
                        )
                    yield Encoded(f"{self.path}: the image of row {row}", data)
                    row += 1


def _class_numbers(values: NDArray[Any], kinds: NDArray[Any] | None, path: Path) -> NDArray[np.int64]:
    """Returns labels as their places in `kinds`, the sorted classes; without such a list, the labels unchanged."""
    if kinds is None:
        if values.dtype == object:
            raise DataError(f"{path}: labels are strings, but those of the train are numbers")
        return values
    if (values.dtype == object) != (kinds.dtype == object):
        raise DataError(f"{path}: labels are numbers, but those of the train are strings")
    places = np.searchsorted(kinds, values)
    unknown = kinds[np.minimum(places, len(kinds) - 1)] != values
    if unknown.any():
        row = int(np.argmax(unknown))
        raise DataError(f"{path}: row {row} has label {values[row]!s}, which no row of the train has")
    return places.astype(np.int64)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Puts the file's name before the message of a DataError that does not know it."""
    try:
        yield
    except DataError as error:
        raise (error if str(path) in str(error) else DataError(f"{path}: {error}")) from error.__cause__


@contextmanager
def _parquet_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: is no Parquet file or is damaged ({error})") from error


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_numeric(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _is_image(kind: pa.DataType) -> bool:
    return bool(pa.types.is_struct(kind)) and {"bytes", "path"} <= {field.name for field in kind}
