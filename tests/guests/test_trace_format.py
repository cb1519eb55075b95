"""Tests the recipe for a trace format: a file outside the package, named by dotted path, plays an experiment."""

import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from cluster import load_config, run
from raysim.devices.traces import read_intervals
from raysim.errors import ConfigError, DataError
from tests.guests.experiment import on_devices

LINES = '''\
"""Reads on-times from lines of text."""

from pathlib import Path

from pydantic.dataclasses import dataclass as record

from raysim.devices.traces import Records, TraceFormat
from raysim.errors import DataError
from raysim.registry import STRICT


@record(frozen=True, config=STRICT)
class Lines(TraceFormat):
    """Reads lines ``device horizon start-end start-end ...``, in minutes."""

    def read(self, path: Path) -> Records:
        records = Records(path)
        for number, line in enumerate(path.read_text().splitlines(), 1):
            try:
                device, horizon, *pairs = line.split()
                starts, ends = ([60 * float(pair.split("-")[side]) for pair in pairs] for side in (0, 1))
                records.add(device, starts, ends, 60 * float(horizon))
            except (ValueError, IndexError) as error:
                raise DataError(f"{path}: line {number} is {line!r}; give device horizon start-end ...") from error
        return records
'''
RECORDING = "a 1440 0-700\nb 1440 0-1440\nc 1440\nd 1440 0-300 300-900\n"


@pytest.fixture
def recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Writes a recording, and a user's own file that reads it, to a folder that Python imports from."""
    (tmp_path / "line_format.py").write_text(LINES)
    (tmp_path / "phones.txt").write_text(RECORDING)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "line_format", raising=False)
    return tmp_path / "phones.txt"


def config(recording: Path, format: str) -> dict[str, Any]:
    availability = {"name": "trace", "path": str(recording), "format": format, "assign": "in_order"}
    return on_devices("lines", availability, recording.parent)


def test_an_experiment_runs_with_a_format_of_ones_own(recording: Path) -> None:
    result = run(load_config(config(recording, "line_format:Lines")))
    rounds = pq.read_table(result.folder / "rounds.parquet").to_pylist()
    assert [(row["round"], row["available"]) for row in rounds] == [(0, 30), (1, 30), (2, 30)], "c is never on"
    assert rounds[-1]["start_s"] < 300 * 60
    took_part = pq.read_table(result.folder / "participation.parquet").to_pylist()
    assert took_part
    assert all(row["client"] % 4 != 2 for row in took_part)
    assert "format: line_format:Lines" in (result.folder / "config.yaml").read_text()


def test_on_times_in_a_format_of_ones_own(recording: Path) -> None:
    read = read_intervals(recording, "line_format:Lines")
    assert read.in_seconds() == {
        "a": ([[0, 42_000]], 86_400), "b": ([[0, 86_400]], 86_400), "c": ([], 86_400), "d": ([[0, 54_000]], 86_400),
    }  # fmt: skip
    recording.write_text("a 1440 0-1500\n")
    with pytest.raises(DataError, match=r"phones\.txt: record 'a': interval 0 ends at 90000\.0 s, after the horizon"):
        read_intervals(recording, "line_format:Lines")


@pytest.mark.parametrize(
    ("format", "message"),
    [
        ("intervls", "there is no trace format 'intervls'; did you mean 'intervals'"),
        ("csv", "there is no trace format 'csv'; known: fedscale, flash, flame, intervals, table"),
        ("line_format:Line", "'line_format' has no class 'Line'"),
        ("no_such_module:Lines", "cannot import 'no_such_module'"),
        ("pathlib:Path", r"'pathlib:Path' does not derive from .*\.TraceFormat"),
    ],
)
def test_a_format_that_is_not_there_is_named(recording: Path, format: str, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"^devices\.availability\.format: {message}"):
        run(load_config(config(recording, format)))
