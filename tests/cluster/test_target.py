"""Runs that are over once they have reached their target."""

from pathlib import Path
from typing import Any

import pytest

from cluster.config import load_config
from cluster.run import Result, resume, run
from raysim.errors import ConfigError
from tests.contracts.table import settings
from tests.play import QUADRATIC
from tests.same import differences, tables


def played(tmp_path: Path, name: str, fleet: str = "in_process", **evaluate: Any) -> Result:
    tree = QUADRATIC | {
        "name": name,
        "rounds": 40,
        "algorithm": settings("parallel_sgda", eta=0.2, gamma=0.2),
        "devices": "always_on",
        "evaluate": {"every": 2, "splits": ["train"], "target": 2.0} | evaluate,
        "checkpoint": {"every": 7},
        "clients": {"fleet": fleet, "engine": "loop", "actors": 1}
        if fleet == "ray"
        else {"fleet": fleet, "engine": "loop"},
        "output": {"folder": str(tmp_path)},
    }
    return run(load_config(tree))


@pytest.mark.slow
def test_it_is_the_beginning_of_the_run_without_an_end_and_goes_on_to_it(tmp_path: Path) -> None:
    whole = played(tmp_path, "whole")
    first = whole.summary["target"]["rounds"]
    assert 0 < first < 38, "some rounds are left then"
    short = played(tmp_path, "short", stop_at_target=True)
    assert short.summary["rounds"] == first
    assert short.summary["target"] == whole.summary["target"]
    for name, table in tables(whole.folder).items():
        last = first + 1 if name == "metrics" else first
        begun = [row for row in table.to_pylist() if row["round"] < last]
        assert tables(short.folder)[name].to_pylist() == begun
    assert (short.folder / "model.pt").exists()
    again = resume(short.folder)
    assert again.summary == short.summary, "there is nothing to be played"
    longer = resume(short.folder, ["evaluate.stop_at_target=false"])
    assert longer.summary["rounds"] == 40
    assert not differences(longer.folder, whole.folder)


@pytest.mark.slow
@pytest.mark.ray
def test_it_is_the_same_over_ray(ray_cluster: None, tmp_path: Path) -> None:
    here, there = (played(tmp_path, name, name, stop_at_target=True) for name in ("in_process", "ray"))
    assert here.summary["rounds"] == there.summary["rounds"] < 40
    assert not differences(here.folder, there.folder)


def test_a_target_that_is_not_reached_is_no_end(tmp_path: Path) -> None:
    assert played(tmp_path, "far", stop_at_target=True, target=1e-30).summary["rounds"] == 40


def test_a_target_that_the_first_point_has_reached_leaves_nothing_to_play(tmp_path: Path) -> None:
    near = played(tmp_path, "near", stop_at_target=True, target=1e30)
    assert near.summary["rounds"] == near.summary["target"]["rounds"] == near.summary["bytes_up"] == 0


def test_there_must_be_a_target(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"evaluate: stop_at_target needs a target"):
        played(tmp_path, "none", stop_at_target=True, target=None)
