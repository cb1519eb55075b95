"""What a study's file comes to: its trials, before any is played."""

from pathlib import Path
from typing import Any

import pytest

from cluster.config import load_config
from cluster.study import Study, TrialRow, is_study, rows
from raysim.algorithms import ALGORITHMS
from raysim.errors import ConfigError
from tests.contracts.table import SIZES, settings
from tests.play import QUADRATIC

STUDIES = Path(__file__).parents[2] / "configs" / "studies"
BASE: dict[str, Any] = QUADRATIC | {"algorithm": settings("cd_mage")}


def study(**sections: Any) -> Study:
    return Study.load({"name": "mine", "base": BASE} | sections)


def test_trials_are_every_combination_the_last_key_fastest() -> None:
    trials = study(
        set={"rounds": 7}, grid={"algorithm.S": [2, 4], "algorithm.eta": [1e-1, 1e-2], "seed": [0, 3]}
    ).trials
    assert [(t.config.algorithm.settings["S"], t.config.algorithm.settings["eta"], t.config.seed) for t in trials] == [
        (2, 0.1, 0), (2, 0.1, 3), (2, 0.01, 0), (2, 0.01, 3), (4, 0.1, 0), (4, 0.1, 3), (4, 0.01, 0), (4, 0.01, 3),
    ]  # fmt: skip
    assert {t.config.rounds for t in trials} == {7}
    assert {t.config.clients.fleet for t in trials} == {"in_process"}
    assert [t.name for t in trials[:2]] == ["test_S2_eta0.1_seed0", "test_S2_eta0.1_seed3"]
    assert {t.config.name for t in trials[:2]} == {"test_S2_eta0.1"}, "seeds share a name, as a line in plots"
    assert study(grid={"algorithm.eta": [1e30, 1e-30]}).trials[0].name == "test_eta1e30", "and not 1e-30"
    assert trials[5].values == {"algorithm.S": 4, "algorithm.eta": 0.1, "seed": 3}


def test_parts_have_bases_values_and_grids_of_their_own() -> None:
    other = {"name": "cd_ma"} | BASE | {"algorithm": settings("cd_ma")}
    trials = study(
        grid={"seed": [0, 1]},
        parts=[
            {"set": {"name": "one", "algorithm.K": 3}},
            {"base": other, "set": {"name": "two"}, "grid": {"devices": ["always_on", "phones_global"]}},
        ],
    ).trials
    assert [(t.name, t.part, t.config.algorithm.name) for t in trials] == [
        ("one_seed0", 0, "cd_mage"),
        ("one_seed1", 0, "cd_mage"),
        ("two_seed0_always_on", 1, "cd_ma"),
        ("two_seed0_phones_global", 1, "cd_ma"),
        ("two_seed1_always_on", 1, "cd_ma"),
        ("two_seed1_phones_global", 1, "cd_ma"),
    ]
    assert trials[0].config.algorithm.settings["K"] == 3
    assert trials[3].config.devices is not None
    assert trials[3].config.devices.preset == "phones_global"


def test_a_base_is_read_from_beside_the_file_and_written_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    (tmp_path / "base.yaml").write_text("name: here\nrounds: 3\n")
    (tmp_path / "study.yaml").write_text("name: mine\nbase: base.yaml\ngrid: {seed: [0]}\n")
    read = Study.load(tmp_path / "study.yaml", ["grid.algorithm.S=[1, 2]", "set.rounds=9", "concurrency=1"])
    assert read.tree["base"] == {"name": "here", "rounds": 3}
    assert read.config.grid == {"seed": [0], "algorithm.S": [1, 2]}
    assert (read.config.set, read.config.concurrency) == ({"rounds": 9}, 1)
    assert is_study(tmp_path / "study.yaml")
    assert not is_study(tmp_path / "base.yaml")


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"grid": {"algorithm.SS": [1]}}, "algorithm.SS: unknown key; did you mean 'S'? (in trial test_SS1)"),
        ({"grid": {"sed": [1]}}, "sed: unknown key; did you mean 'seed'? (in trial test_sed1)"),
        ({"grid": {"algorithm.S": [4, 0]}}, "algorithm.S: should be greater than 0 (got 0) (in trial test_S0)"),
        ({"grid": {"algorithm.name": ["cd_mag"]}}, "algorithm.name: there is no algorithm 'cd_mag'; did you mean"),
        ({"grid": {"devices": ["phones_globl"]}}, "devices.preset: there is no preset 'phones_globl'; did you mean"),
        ({"grid": {"rounds.more": [1]}}, "rounds.more: cannot be set, since rounds is no section"),
        ({"grid": {}}, "grid: is empty, and there is one part: that is a single run, for `raysim run`"),
        ({}, "grid: is empty"),
        ({"grid": {"seed": []}}, "grid.seed: is an empty list"),
        ({"grid": {"seed": 3}}, "grid.seed: should be a list (got 3)"),
        ({"grid": {"seed": [0, 1, 0]}}, "grid.seed: has 0 twice"),
        ({"grid": {"seed": [0]}, "set": {"seed": 1}}, "parts.0: sets 'seed', and 'seed' is set for it already"),
        ({"grid": {"algorithm.S": [1]}, "set": {"algorithm": {}}}, "parts.0: sets 'algorithm.S', and 'algorithm' is"),
        ({"grid": {"algorithm.K": [1], "algorithm": [{}]}}, "parts.0: sets 'algorithm', and 'algorithm.K' is set"),
        ({"grid": {"seed": [0]}, "select": {"by": ["algorithm.nam"]}}, "select.by: no trial has 'algorithm.nam'; did"),
        ({"grid": {"seed": [0]}, "select": {"rounds": 4}}, "select.rounds: is 4, and there are trials of 3 rounds"),
        ({"grid": {"seed": [0]}, "parts": [{}, {}]}, "parts: two trials are called 'test_seed0'"),
        ({"grid": {"seed": [0]}, "parts": []}, "parts: "),
        ({"gird": {"seed": [0]}}, "gird: unknown key; did you mean 'grid'?"),
        ({"grid": {"seed": [0]}, "base": None}, "base: is missing"),
        ({"grid": {"seed": [0]}, "base": "nowhere.yaml"}, "nowhere.yaml: cannot be read"),
        ({"grid": {"seed": [0]}, "early": {"over": ["algorithm.eta"], "grace": 1}}, "early.over: no trial varies"),
        ({"grid": {"seed": [0]}, "early": {"over": [], "grace": 1}}, "early.over: "),
        ({"grid": {"seed": [0]}, "select": {"rounds": 3, "bytes_up": 4}}, "select: give one budget"),
        ({"grid": {"seed": [0]}, "concurrency": 0}, "concurrency: "),
        ({"grid": {"seed": [0]}, "name": "a/b"}, "name: "),
    ],
)  # fmt: skip
def test_refused(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        _ = study(**sections).trials
    assert str(error.value).startswith(message)


def test_a_name_that_would_be_too_long_is_cut_and_stays_what_it_is_as_the_grid_grows() -> None:
    keys = {f"algorithm.{key}": [0.123456789, 1e-17] for key in ("eta", "gamma")}
    few, many = (study(set={"name": "n" * 97}, grid=keys | {"seed": seeds}).trials for seeds in ([0], [5, 0]))
    assert len({t.name for t in many}) == 8
    assert len({t.config.name for t in many}) == 4, "seeds share a name"
    assert {t.name: t.config for t in few}.items() <= {t.name: t.config for t in many}.items()
    assert all(len(t.name) <= 100 and t.name.startswith("n" * 60) for t in many)


def test_lists_and_sections_are_values_too() -> None:
    grid = {
        "evaluate.splits": [["train"], ["train", "test"]],
        "devices.availability": [{"name": "bernoulli", "share": 0.2}, {"name": "bernoulli", "share": 0.4}],
    }
    trials = study(grid=grid).trials
    assert [t.name for t in trials] == [f"test_splits-{i}_availability-{j}" for i in (0, 1) for j in (0, 1)]
    assert trials[1].config.devices is not None
    assert trials[1].config.devices.availability.settings == {"share": 0.4}


@pytest.mark.parametrize("path", sorted(STUDIES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_study_of_the_project_is_sound(path: Path) -> None:
    found = Study.load(path, ["grid.seed=[0]"])
    assert found.config.name == path.stem
    assert len(found.trials) > 1
    assert load_config(found.trials[-1].config.model_dump(mode="json")) == found.trials[-1].config
    for trial in found.trials:
        algorithm = trial.config.algorithm
        ALGORITHMS.build(algorithm.name, algorithm.settings, "algorithm", clients=500, seed=0, **SIZES)


def test_what_became_of_trials_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert rows(tmp_path) == []
    (tmp_path / "trials.csv").write_text('trial,status,wall_s,said\na,finished,1.500,"auc, 1"\nb,waiting,0.000,\n')
    assert rows(tmp_path) == [TrialRow("a", "finished", 1.5, "auc, 1"), TrialRow("b")]
