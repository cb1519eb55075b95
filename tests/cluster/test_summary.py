"""A run in a few numbers."""

import json
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cluster import summary
from server.ledger import METRICS
from tests.contracts.table import settings
from tests.play import QUADRATIC, experiment, server


@pytest.mark.parametrize(
    ("counts", "expected"),
    [([3, 3, 3], 0.0), ([0, 0, 0, 8], 0.75), ([0, 1], 0.5), ([1, 2, 3], 2 / 9), ([0, 0], 0.0), ([5], 0.0)],
)
def test_gini(counts: list[int], expected: float) -> None:
    assert summary.gini(np.array(counts)) == pytest.approx(expected)


def run(tmp_path: Path, **sections: object) -> summary.Numbers:
    made = experiment(QUADRATIC, settings("parallel_sgda", eta=0.2, gamma=0.2), rounds=40, **sections)  # type: ignore[arg-type]
    list(server(made, tmp_path).run())
    written = summary.write(tmp_path, made)
    assert json.loads((tmp_path / "summary.json").read_text()) == written
    return written


def test_without_devices_there_is_no_time(tmp_path: Path) -> None:
    found = run(tmp_path)
    assert (found["rounds"], found["failed_rounds"], found["participants"]) == (40, 0, 8)
    assert found["bytes_up"] == found["bytes_down"] == 40 * 4 * 7 * 8
    assert 0 < found["participation_gini"] < 0.2
    assert "simulated_hours" not in found
    assert not any("simulated" in line for line in summary.lines(found))


@pytest.mark.parametrize(("higher", "best"), [(True, {"value": 5.0, "round": 2}), (False, {"value": 1.0, "round": 0})])
def test_last_and_best_are_both_told(higher: bool, best: summary.Numbers, tmp_path: Path) -> None:
    made = experiment(QUADRATIC, settings("parallel_sgda"))
    list(server(made, tmp_path).run())
    values = [1.0, math.nan, 5.0, None, 5.0, 2.0]
    rows = [
        {"round": t, "split": "train", "metric": "gradient_norm", "value": value, "bytes_up": 0, "sim_s": None}
        for t, value in enumerate(values)
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=METRICS), tmp_path / "metrics.parquet")
    object.__setattr__(made.problem, "higher_is_better", higher)
    found = summary.write(tmp_path, made)
    assert (found["final"], found["best"]) == ({"train": 2.0}, {"train": best})


def test_a_target_is_reached_from_above_where_lower_is_better(tmp_path: Path) -> None:
    found = run(tmp_path, evaluate={"every": 1, "splits": ["train"], "target": 2.0}, devices="always_on")
    rows = [r["value"] for r in _gradient_norms(tmp_path)]
    first = next(t for t, value in enumerate(rows) if value <= 2.0)
    assert 0 < first < 40
    assert found["target"]["rounds"] == first
    assert found["target"]["bytes_up"] > first * 4 * 7 * 8, "late devices' uploads count"
    assert 0 < found["target"]["simulated_hours"] < found["simulated_hours"]
    assert f"reached after {first} rounds" in summary.lines(found)[-1]


def test_a_target_that_is_never_reached_is_said_to_be(tmp_path: Path) -> None:
    found = run(tmp_path, evaluate={"every": 10, "splits": ["train"], "target": 1e-30})
    assert found["target"]["rounds"] is None
    assert found["target"]["bytes_up"] is None
    assert summary.lines(found)[-1].endswith("was not reached")


def test_shares_of_devices_add_up(tmp_path: Path) -> None:
    found = run(tmp_path, devices={"preset": "always_on"}, server={"over_select": 1.5, "late": "finish"})
    assert found["late"] == pytest.approx(2 / 6), "6 are invited, 4 accepted, none lost"
    assert found["dropped"] == 0
    assert 0 < found["compute_wasted"] < 1


def _gradient_norms(folder: Path) -> list[summary.Numbers]:
    return [r for r in pq.read_table(folder / "metrics.parquet").to_pylist() if r["metric"] == "gradient_norm"]
