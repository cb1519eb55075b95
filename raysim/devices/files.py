"""Reads JSON, pickle, CSV and Parquet files of devices, with errors that name the file and the record or the row."""

import json
import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from raysim.errors import DataError
from raysim.registry import nearest

# Pickles and JSON


class _PlainUnpickler(pickle.Unpickler):
    """Loads plain data only: a pickle may name any function and have it called, so all but one name are refused."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return dict  # keeps its order too, and has no attributes that a pickle could set
        raise _Forbidden(f"{module}.{name}")


class _Forbidden(Exception):
    """Names what a pickle tried to load."""


def read_pickle_or_json(path: Path) -> Any:
    """Returns the plain data in a pickle, or in JSON if the file is called .json.

    Raises:
        DataError: The file is damaged, or a pickle of more than plain data, which could run any code.
    """
    if path.suffix == ".json":
        return read_json(path)
    try:
        with path.open("rb") as file:
            return _PlainUnpickler(file).load()
    except _Forbidden as error:
        raise DataError(
            f"{path}: tries to load {error}, which no data of FedScale does; it may be malicious and was not opened"
        ) from None
    except Exception as error:  # a damaged pickle can fail in any way
        cause = " ".join(f"{type(error).__name__}: {error}".split())
        raise DataError(f"{path}: is no pickle or is damaged ({cause}); name a file of JSON .json") from error


def read_json(path: Path) -> Any:
    """Returns the data in a file of JSON. Raises DataError if there is none in it."""
    try:
        return json.loads(path.read_bytes())
    except (ValueError, OSError, RecursionError) as error:
        raise DataError(f"{path}: is no JSON or is damaged ({error})") from error


def records_by_id(path: Path, tree: Any) -> Iterator[tuple[str, Any]]:
    """Yields (id as text, record) for each record in `tree`. Raises DataError if `tree` is no mapping."""
    if not isinstance(tree, dict):
        raise DataError(f"{path}: holds a {type(tree).__name__} where records by their ids should be; check the format")
    return ((str(id), record) for id, record in tree.items())


def field(path: Path, id: str | None, record: Any, key: str) -> Any:
    """Returns the value of `key` in a record, or in the whole file if `id` is None. Raises DataError without it."""
    place = f"{path}" if id is None else f"{path}: record {id!r}"
    if not isinstance(record, dict):
        raise DataError(f"{place}: is a {type(record).__name__}, not keys and values; check the format")
    if key not in record:
        raise DataError(f"{place}: has no {key!r}{nearest(key, [str(k) for k in record])}; check the format")
    return record[key]


def list_field(path: Path, id: str, record: Any, key: str) -> Sequence[Any]:
    """Returns the list under `key` in a record. Raises DataError if there is none."""
    value = field(path, id, record, key)
    if not isinstance(value, list | tuple):
        raise DataError(f"{path}: record {id!r}: {key} is {value!r}, not a list")
    return value


def number_fields(path: Path, tree: Any, **positive: bool) -> dict[str, NDArray[np.float64]]:
    """Returns (records,) the numbers under each key, one a record.

    Args:
        path: the file, for errors.
        tree: the records by their ids.
        positive: for each key whether its numbers must be positive; otherwise they may also be 0.

    Raises:
        DataError: A record or a number is missing or wrong, or there are no records.
    """
    columns: dict[str, list[float]] = {key: [] for key in positive}
    for id, record in records_by_id(path, tree):
        for key, above_0 in positive.items():
            value = field(path, id, record, key)
            if type(value) not in (int, float) or not 0 <= value < np.inf or (above_0 and value == 0):
                kind = "positive number" if above_0 else "number from 0"
                raise DataError(f"{path}: record {id!r}: {key} is {value!r}; it must be a {kind}")
            columns[key].append(float(value))
    if not all(columns.values()):
        raise DataError(f"{path}: has no records")
    return {key: np.array(values) for key, values in columns.items()}


# CSV and Parquet


class Columns:
    """Gives the columns of a CSV or Parquet file, with errors that name the file, the column and the row.

    Rows are counted from 1 in errors, without the header.

    Args:
        path: the file, whose suffix is .csv or .parquet.
        required: the names of columns that must be there.

    Raises:
        DataError: The file is damaged, has no rows, or lacks a column.
    """

    def __init__(self, path: Path, *required: str) -> None:
        self.path = path
        try:
            if path.suffix == ".csv":
                self._table = _read_csv(path)
            elif path.suffix == ".parquet":
                self._table = pa.parquet.read_table(path)
            else:
                raise DataError(f"{path}: has no known suffix; name it .csv or .parquet")
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{path}: is no {path.suffix[1:]} file or is damaged ({error})") from error
        names = self._table.column_names
        for name in required:
            if name not in names:
                raise DataError(f"{path}: has no column {name!r}{nearest(name, names)}")
        double = next((name for name in names if names.count(name) > 1), None)
        if double is not None:
            raise DataError(f"{path}: has two columns {double!r}; rename one of them")
        if not self._table.num_rows:
            raise DataError(f"{path}: has no rows")

    def __contains__(self, name: str) -> bool:
        return name in self._table.column_names

    def numbers(self, name: str, positive: bool = False, empty: bool = False) -> NDArray[np.float64]:
        """Returns (rows,) a column of finite numbers from 0.

        Args:
            name: the column.
            positive: refuses 0 as well.
            empty: allows empty cells, which become NaN.

        Raises:
            DataError: A cell holds something else.
        """
        column = self._table.column(name)
        if pa.types.is_string(column.type):
            column = self._parsed(name, pc.utf8_trim_whitespace(column))
        elif not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
            raise DataError(f"{self.path}: column {name!r} is {column.type}; it must be numbers")
        missing = column.is_null().to_numpy()
        values: NDArray[np.float64] = column.cast(pa.float64()).to_numpy().copy()
        good = np.isfinite(values) & ((values > 0) if positive else (values >= 0))
        if empty:
            good |= missing
        if not good.all():
            row = int(np.argmin(good))
            found = "empty" if missing[row] else values[row]
            kind = "positive number" if positive else "number from 0"
            raise DataError(f"{self.path}: row {row + 1}, column {name!r} is {found}; it must be a {kind}")
        return values

    def texts(self, name: str) -> NDArray[np.str_]:
        """Returns (rows,) a column as text. Raises DataError if a cell is empty."""
        column = self._table.column(name)
        if column.null_count:
            row = pc.index(column.is_null(), True).as_py() + 1
            raise DataError(f"{self.path}: row {row}, column {name!r} is empty; fill it or remove the row")
        return np.array([str(value) for value in column.to_pylist()])

    def _parsed(self, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """Returns a column of text as numbers. Raises DataError with the first cell that holds none."""
        try:
            return column.cast(pa.float64())
        except pa.ArrowInvalid:
            for row, value in enumerate(column.to_pylist(), 1):
                try:
                    pa.scalar(value).cast(pa.float64())
                except pa.ArrowInvalid:
                    raise DataError(
                        f"{self.path}: row {row}, column {name!r} is {value!r}; it must be a number"
                    ) from None
            raise


def _read_csv(path: Path) -> pa.Table:
    """Reads every cell as text, so that an error can quote a cell that is no number; empty cells are missing."""
    with pa.csv.open_csv(path) as file:
        header = file.schema.names
    options = pa.csv.ConvertOptions(
        column_types=dict.fromkeys(header, pa.string()), null_values=[""], strings_can_be_null=True
    )
    return pa.csv.read_csv(path, convert_options=options)
