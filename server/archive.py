"""Archives: trees of tensors, arrays, numbers and records as bytes, without pickle, so that no file is executed.

A record is a dataclass or a named tuple. It is read back field by field, without calling its constructor, and only if
its module belongs to one of the packages that the reader names.
"""

import dataclasses
import importlib
import io
import json
from collections.abc import Collection
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from raysim.errors import CheckpointError


def pack(tree: Any) -> bytes:
    """Returns a tree as bytes. Raises CheckpointError where it holds another type, which the error names."""
    tensors: list[Tensor] = []
    text = json.dumps(_describe(tree, tensors))
    file = io.BytesIO()
    torch.save({"tree": text, "tensors": tensors}, file)
    return file.getvalue()


def parquet(table: pa.Table) -> bytes:
    """Returns a table as the bytes of a Parquet file."""
    file = io.BytesIO()
    pq.write_table(table, file)
    return file.getvalue()


def unpack(data: bytes, packages: Collection[str]) -> Any:
    """Returns the tree of some bytes.

    Raises CheckpointError if the data is damaged, or has a record of a module outside of `packages`.
    """
    try:
        saved = torch.load(io.BytesIO(data), weights_only=True)
        description, tensors = json.loads(saved["tree"]), saved["tensors"]
    except Exception as error:
        raise CheckpointError(f"cannot be read ({' '.join(str(error).split())})") from error
    return _rebuild(description, tensors, packages)


def _describe(tree: Any, tensors: list[Tensor]) -> Any:
    """Returns the tree as JSON; tensors and arrays are appended to `tensors`, as copies in the processor's memory."""
    match tree:
        case None | bool() | int() | float() | str():
            return tree
        case Tensor():
            tensors.append(tree.detach().cpu().clone())
            return {"tensor": len(tensors) - 1}
        case np.ndarray():
            tensors.append(torch.from_numpy(np.array(tree)))
            return {"array": len(tensors) - 1}
        case dict():
            return {"dict": [[_describe(key, tensors), _describe(value, tensors)] for key, value in tree.items()]}
        case list():
            return {"list": [_describe(item, tensors) for item in tree]}
    names = _fields(type(tree))
    if names is not None:
        kind = f"{type(tree).__module__}:{type(tree).__qualname__}"
        return {"record": kind, "fields": {name: _describe(getattr(tree, name), tensors) for name in names}}
    if type(tree) is tuple:
        return {"tuple": [_describe(item, tensors) for item in tree]}
    raise CheckpointError(
        f"{type(tree).__module__}.{type(tree).__qualname__} cannot be written; a state and a client's memory are made "
        "of tensors, arrays, numbers, text, lists, tuples, dicts, dataclasses and named tuples"
    )


def _rebuild(description: Any, tensors: list[Tensor], packages: Collection[str]) -> Any:
    if not isinstance(description, dict):
        return description
    match description:
        case {"tensor": i}:
            return tensors[i]
        case {"array": i}:
            return tensors[i].numpy()
        case {"dict": pairs}:
            return {_rebuild(key, tensors, packages): _rebuild(value, tensors, packages) for key, value in pairs}
        case {"list": items}:
            return [_rebuild(item, tensors, packages) for item in items]
        case {"tuple": items}:
            return tuple(_rebuild(item, tensors, packages) for item in items)
        case {"record": kind, "fields": fields}:
            return _rebuild_record(
                kind, {name: _rebuild(value, tensors, packages) for name, value in fields.items()}, packages
            )
    raise CheckpointError(f"cannot be read (what is {sorted(description)}?)")


def _rebuild_record(kind: str, values: dict[str, Any], packages: Collection[str]) -> Any:
    module, _, path = kind.partition(":")
    if module.partition(".")[0] not in packages:
        raise CheckpointError(f"has a {kind}, which is no record of {', '.join(sorted(packages))}")
    try:
        cls: Any = importlib.import_module(module)
        for name in path.split("."):
            cls = getattr(cls, name)
        names = _fields(cls)
    except (ImportError, AttributeError, TypeError) as error:
        raise CheckpointError(f"has a {kind}, which cannot be found ({error})") from error
    if names is None or set(names) != values.keys():
        raise CheckpointError(f"has a {kind} with {', '.join(values)}, which has other fields now")
    if issubclass(cls, tuple):
        return tuple.__new__(cls, [values[name] for name in names])
    record = object.__new__(cls)
    for name, value in values.items():
        object.__setattr__(record, name, value)
    return record


def _fields(kind: Any) -> tuple[str, ...] | None:
    """Returns the names of a record class's fields, in order; None for another type."""
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return tuple(field.name for field in dataclasses.fields(kind))
    if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return tuple(kind._fields)
    return None
