"""Tests how files of devices are opened: a pickle may run nothing, and a missing file is named."""

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raysim.devices.tables import (
    read_device_table,
    read_fedscale_capacity,
    read_flash_devices,
    read_flash_links,
)
from raysim.devices.traces import read_intervals
from raysim.errors import DataError


def written(path: Path, tree: object) -> Path:
    path.write_text(tree if isinstance(tree, str) else json.dumps(tree))
    return path


class Evil:
    """Creates a file when it is unpickled without care."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("read", [lambda p: read_intervals(p, "fedscale"), read_fedscale_capacity])
def test_a_malicious_pickle_is_refused_and_does_nothing(tmp_path: Path, read: Callable[[Path], object]) -> None:
    path, victim = tmp_path / "trace", tmp_path / "made by the pickle"
    path.write_bytes(pickle.dumps({1: Evil(victim)}))
    with pytest.raises(DataError, match=r"trace: tries to load \w+\.mkdir, .* malicious"):
        read(path)
    assert not victim.exists()
    pickle.loads(path.read_bytes())  # the test's own check: without care it does
    assert victim.exists()


@pytest.mark.parametrize("payload", [np.float64(1), len, Path("x"), {1: np.arange(3)}])
def test_a_pickle_of_more_than_plain_data_is_refused(tmp_path: Path, payload: object) -> None:
    path = tmp_path / "trace"
    path.write_bytes(pickle.dumps(payload))
    with pytest.raises(DataError, match="tries to load"):
        read_intervals(path, "fedscale")


@pytest.mark.parametrize(
    "read",
    [
        lambda p: read_intervals(p, "table"),
        read_device_table,
        read_fedscale_capacity,
        lambda p: read_flash_links(p, "kB/s"),
        lambda p: read_flash_devices(p, "celeba"),
    ],
)
def test_a_missing_file_is_named(tmp_path: Path, read: Callable[[Path], object]) -> None:
    with pytest.raises(DataError, match=r"there is no file .*nothing\.csv"):
        read(tmp_path / "nothing.csv")
