"""Studies played on Ray Tune: their trials are the runs that they would be alone, whatever happens to others."""

import csv
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray

from clients.delivery import Delivery
from cluster import trials
from cluster.run import run
from cluster.study import STUDY, TRIALS, Study, rows
from cluster.trial import Keeper, Task, _bring
from raysim.errors import ConfigError, PlacementError, Stopped
from tests.contracts.table import settings
from tests.play import QUADRATIC
from tests.same import differences, log

pytestmark = [pytest.mark.ray, pytest.mark.slow]

BASE: dict[str, Any] = QUADRATIC | {"algorithm": settings("codasca"), "rounds": 6, "checkpoint": {"every": 1}}


def study(tmp_path: Path, **sections: Any) -> Study:
    return Study.load({"name": "mine", "base": BASE, "folder": str(tmp_path / "studies")} | sections)


def begin(made: Study, stop: threading.Event | None = None, told: list[str] | None = None) -> Path:
    return trials.begin(made, (told if told is not None else []).append, stop or threading.Event())


def go_on(where: Path, *overrides: str) -> list[str]:
    """What is told of each trial."""
    told: list[str] = []
    trials.go_on(where, overrides, told.append, threading.Event())
    return told[1:]


def alone(made: Study, name: str, tmp_path: Path) -> Path:
    """The folder of a run that is that trial."""
    (config,) = (trial.config for trial in made.trials if trial.name == name)
    places = {
        "output": config.output.model_copy(update={"folder": str(tmp_path / "alone")}),
        "checkpoint": config.checkpoint.model_copy(update={"folder": None}),
    }
    return run(config.model_copy(update=places)).folder


def status(where: Path) -> dict[str, str]:
    return {row.trial: row.status for row in rows(where)}


def test_trials_are_the_runs_that_they_would_be_alone(
    ray_cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYSIM_CACHE", str(tmp_path / "cache"))
    made, told = study(tmp_path, grid={"algorithm.K": [1, 3], "seed": [0, 1]}), list[str]()
    where = begin(made, told=told)
    assert (where / STUDY).is_file()
    assert {row.trial for row in rows(where)} == {path.name for path in (where / TRIALS).iterdir()}
    assert set(status(where).values()) == {"finished"}
    assert len(list((tmp_path / "cache").glob("quadratic-*"))) == 2, "data are built once for each seed"
    for trial in made.trials:
        assert not differences(where / TRIALS / trial.name, alone(made, trial.name, tmp_path))
        (line,) = (line for line in told if f"  {trial.name}  finished: train gradient_norm" in line)
        assert "after 6 rounds" in line
    with (where / "trials.csv").open() as file:
        assert [row["trial"] for row in csv.DictReader(file)] == [trial.name for trial in made.trials]


def test_what_fails_is_told_and_tried_again_and_nothing_else_is(ray_cluster: None, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    struck = {
        "algorithm": {
            "name": "tests.toys_faults:Struck",
            "of": {"name": "codasca"} | settings("codasca"),
            "moments": ["", "", "", "server"],
            "marks": str(marks),
        }
    }
    made = study(
        tmp_path,
        grid={"seed": [0, 1]},
        parts=[
            {"set": {"name": "sound"}},
            {"set": {"name": "struck", **struck}},
            {"set": {"name": "wild", "algorithm.eta": 1e200}},
        ],
    )
    where = begin(made)
    found = {row.trial: row for row in rows(where)}
    assert status(where) == {
        "sound_seed0": "finished", "sound_seed1": "finished",
        # The blow falls once, on whichever comes first.
        "struck_seed0": found["struck_seed0"].status, "struck_seed1": found["struck_seed1"].status,
        "wild_seed0": "failed", "wild_seed1": "failed",
    }  # fmt: skip
    (killed,) = (name for name in ("struck_seed0", "struck_seed1") if found[name].status == "failed")
    assert found[killed].said.startswith("its process ended")
    assert "client" in found["wild_seed0"].said
    before = {path: path.stat().st_mtime_ns for path in where.glob(f"{TRIALS}/*/summary.json")}
    assert len(before) == 3
    told = go_on(where)
    assert sorted(line.split()[1] for line in told) == sorted([killed, "wild_seed0", "wild_seed1"])
    assert status(where)[killed] == "finished"
    first, second = (event["done"] for event in log(where / TRIALS / killed) if event["event"] == "start")
    assert (first, 0 < second < 6) == (0, True), "it went on from its checkpoint"
    assert all(path.stat().st_mtime_ns == at for path, at in before.items())
    assert not differences(where / TRIALS / killed, alone(made, killed, tmp_path))


def test_a_study_that_is_stopped_goes_on(ray_cluster: None, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    checkpoint = {"checkpoint.every": 20, "checkpoint.folder": str(elsewhere)}
    made = study(tmp_path, set={"rounds": 120, **checkpoint}, grid={"seed": [0, 1, 2]}, concurrency=1)
    stop = threading.Event()

    def tell(line: str) -> None:
        if "finished" in line:
            stop.set()

    with pytest.raises(
        Stopped, match=r"stopped with 2 of 3 trials left; go on with: raysim study --resume \S+"
    ) as told:
        trials.begin(made, tell, stop)
    where = Path(str(told.value).split()[-1])
    assert sorted(status(where).values()) == ["finished", "stopped", "stopped"]
    assert (where / TRIALS / "test_seed2").exists() is False, "no trial is begun any more"
    for override, message in (
        ("set.rounds=4", "set: cannot be another where a study goes on"),
        ("grid.seed=[1]", "grid: has no trial test_seed0 any more"),
        ("grid.algorithm.SS=[1]", "algorithm.SS: unknown key"),
        ("grid.seed=[0, 1, 2, -1]", "seed: should be greater than or equal to 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            go_on(where, override)  # which leaves the study as it is
    assert len(go_on(where, "concurrency=2", "grid.seed=[0, 1, 2, 3]")) == 3
    assert set(status(where).values()) == {"finished"}
    assert len(rows(where)) == 4, "a grid may grow"
    assert len(list((elsewhere / where.name).iterdir())) == 4, "another study may have trials of the same names"
    assert not differences(where / TRIALS / "test_seed1", alone(made, "test_seed1", tmp_path))


def test_hopeless_steps_are_ended_early_among_their_own_kind(ray_cluster: None, tmp_path: Path) -> None:
    steps = [0.1, 1e-5, 1e-6, 1e-7]
    made = study(
        tmp_path,
        set={"rounds": 60},
        grid={"algorithm.K": [1, 4], "algorithm.eta": steps},
        concurrency=1,
        early={"over": ["algorithm.eta"], "grace": 4, "reduction": 4},
    )
    where = begin(made)
    assert status(where) == {
        f"test_K{K}_eta{eta}": "finished" if eta == 0.1 else "ended early" for K in (1, 4) for eta in steps
    }
    ended = {row.trial: row.said for row in rows(where)}["test_K1_eta1e-05"]
    assert ended == "behind others after 4 rounds"
    *_, last = log(where / TRIALS / "test_K1_eta1e-05")
    assert (last["event"], last["outcome"]) == ("end", "stopped")
    assert go_on(where) == [], "they stay ended"
    told = go_on(where, "grid.algorithm.eta=[0.1, 1.0e-5, 1.0e-6, 1.0e-7, 1.0e-8]")
    assert sorted(line.split()[1] for line in told) == ["test_K1_eta1e-08", "test_K4_eta1e-08"]
    assert status(where)["test_K1_eta1e-08"] == "ended early", "those of before are not forgotten"


def test_a_trial_larger_than_what_there_is_is_refused(
    ray_cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = study(tmp_path, set={"clients.num_cpus": 64.0}, grid={"seed": [0, 1]})
    message = (
        r"trial test_seed0, .* reserves what a client actor does: 1 client actor x 64 CPU = 64 CPU, but there are 8"
    )
    with pytest.raises(PlacementError, match=message):
        begin(made)
    monkeypatch.setattr("cluster.connect.starts_here", lambda address: True)
    with pytest.raises(PlacementError, match=r"trial test_seed0, .* 1 client actor x 64 CPU = 64 CPU, but there"):
        begin(study(tmp_path / "none", set={"clients.num_cpus": 64.0}, grid={"seed": [0, 1]}))
    assert not (tmp_path / "none").exists(), "nothing is left of it"


def test_a_trial_that_cannot_be_built_is_named_and_nothing_is_played(ray_cluster: None, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"algorithm\.S.* \(in trial test_S400\)"):
        begin(study(tmp_path, grid={"algorithm.S": [4, 400]}))
    assert not (tmp_path / "studies").exists()


def test_no_folder_of_a_study(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--resume: .* is no folder of a study: it has no study\.yaml"):
        go_on(tmp_path)


def test_a_node_that_does_not_share_the_folder_brings_what_it_wrote(ray_cluster: None, tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    (theirs / TRIALS / "a" / "plots").mkdir(parents=True)
    (theirs / TRIALS / "a" / "checkpoints").mkdir()
    for name in ("summary.json", "plots/auc.png", "checkpoints/00000001.json"):
        (theirs / TRIALS / "a" / name).write_text(name)
    keeper: Any = Keeper.remote(ours)  # type: ignore[attr-defined]
    task = Task("a", b"", Delivery([]), ("", ""), theirs, False)
    bring: Callable[..., None] = _bring
    bring(task, keeper)
    files = {str(path.relative_to(ours)) for path in ours.rglob("*") if path.is_file()}
    assert files == {f"{TRIALS}/a/summary.json", f"{TRIALS}/a/plots/auc.png"}
    assert (ours / TRIALS / "a" / "plots" / "auc.png").read_text() == "plots/auc.png"
    (theirs / STUDY).touch()
    (theirs / TRIALS / "a" / "more").touch()
    bring(task, keeper)
    assert not (ours / TRIALS / "a" / "more").exists(), "a folder that is shared has it already"
    ray.kill(keeper)
