"""Paths of data: a path is looked up from the working directory and else under $RAYSIM_DATA_ROOT.

Thus one configuration serves machines that keep their data in different places.
"""

import os
from collections.abc import Callable
from pathlib import Path

from raysim.errors import DataError

ROOT_VARIABLE = "RAYSIM_DATA_ROOT"


def find_file(name: str) -> Path:
    """Returns the file called `name`, from the working directory or else the data root. Raises DataError."""
    return _find(name, "file", Path.is_file)


def find_folder(name: str) -> Path:
    """Returns the folder called `name`, from the working directory or else the data root. Raises DataError."""
    return _find(name, "folder", Path.is_dir)


def _find(name: str, kind: str, is_one: Callable[[Path], bool]) -> Path:
    path = Path(name).expanduser()
    root = os.environ.get(ROOT_VARIABLE)
    candidates = [path] if root is None or path.is_absolute() else [path, Path(root).expanduser() / path]
    for candidate in candidates:
        if is_one(candidate):
            return candidate
    looked = " or ".join(str(candidate.resolve()) for candidate in candidates)
    raise DataError(f"there is no {kind} {looked}; correct the path, or set {ROOT_VARIABLE} to the folder it is under")
