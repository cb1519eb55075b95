"""Experiments files: how a variant is found and put together, and every error that a reader can meet."""

from collections import Counter
from pathlib import Path

import pytest

from cluster import load_config, variants
from cluster.config import Config
from cluster.experiment import require_known
from cluster.study import Study, is_study
from raysim.errors import ConfigError

TASK = """\
description: Two methods on quadratics.
base:
  rounds: 4
  data: {name: quadratic, clients: 8}
  partition: {name: natural}
  problem: {name: quadratic}
  algorithm: {name: cd_ma, S: 2, K: 3, batch: 1, eta: 0.1, gamma: 0.1}
variants:
  slow: {algorithm.eta: 0.01}
  one_pass:
    rounds: 2
    algorithm: {name: parallel_sgda, S: 4, eta: 0.05, gamma: 0.05}
  same: {}
"""


@pytest.fixture
def task(tmp_path: Path) -> Path:
    file = tmp_path / "ruler.yaml"
    file.write_text(TASK)
    return file


def shipped() -> list[Path]:
    """Returns the path by which each experiment that comes with raysim is called."""
    plain = list(variants.SHIPPED.glob("*.yaml"))
    named = [
        file.with_name(f"{variants.full_name(file, name)}.yaml")
        for file, experiments in variants.listed(variants.SHIPPED)
        for name in experiments.variants
    ]
    return [*plain, *named]


@pytest.mark.parametrize("path", shipped(), ids=lambda path: str(path.relative_to(variants.SHIPPED)))
def test_every_shipped_experiment_is_known_and_called_by_its_name(path: Path) -> None:
    config = load_config(path)
    assert config.name == path.stem
    require_known(config)


def test_every_shipped_experiment_has_a_name_of_its_own() -> None:
    paths = shipped()
    assert len(paths) == 142
    assert max(Counter(paths).values()) == 1
    for folder in {path.parent for path in paths}:
        assert max(Counter(path.stem for path in paths if path.parent == folder).values()) == 1


def test_every_shipped_configuration_is_an_experiments_file_the_quickstart_or_a_study() -> None:
    described = dict(variants.listed(variants.SHIPPED))
    for file in variants.SHIPPED.rglob("*.yaml"):
        assert file in described or file.stem == "quickstart" or is_study(file)
    for file, experiments in described.items():
        assert len(experiments.description) > 10, f"{file} has no description"


def test_a_variant_is_its_base_with_other_values_and_a_name_of_its_own(task: Path) -> None:
    slow, one_pass, same = (
        load_config(task.with_name(f"ruler_{variant}.yaml")) for variant in ("slow", "one_pass", "same")
    )
    assert (slow.name, one_pass.name, same.name) == ("ruler_slow", "ruler_one_pass", "ruler_same")
    assert (slow.rounds, one_pass.rounds, same.rounds) == (4, 2, 4)
    assert slow.algorithm.settings == {"S": 2, "K": 3, "batch": 1, "eta": 0.01, "gamma": 0.1}
    assert one_pass.algorithm.settings == {"S": 4, "eta": 0.05, "gamma": 0.05}, "a mapping replaces the whole section"
    assert same.algorithm.settings["eta"] == 0.1, "a variant does not change the base of another one"


def test_a_variant_is_called_by_its_full_name_or_by_its_file_and_its_own(task: Path) -> None:
    by_name = load_config(task.with_name("ruler_slow.yaml"), ["rounds=9"])
    assert by_name == load_config(f"{task}:slow", ["rounds=9"])
    assert (by_name.rounds, by_name.name) == (9, "ruler_slow")
    assert load_config(task.with_name("ruler_slow.yaml"), ["name=mine"]).name == "mine"


def test_a_file_comes_before_a_variant_of_the_same_name(task: Path) -> None:
    (task.parent / "ruler_slow.yaml").write_text("name: file\nrounds: 3\n")
    assert variants.read(task.with_name("ruler_slow.yaml")) == {"name": "file", "rounds": 3}
    assert load_config(f"{task}:slow").name == "ruler_slow"


def test_the_longest_name_of_an_experiments_file_comes_first(task: Path) -> None:
    (task.parent / "ruler_one.yaml").write_text(TASK.replace("one_pass:", "pass:").replace("rounds: 2", "rounds: 77"))
    assert load_config(task.with_name("ruler_one_pass.yaml")).rounds == 77
    assert load_config(f"{task}:one_pass").rounds == 2


def test_a_base_may_be_another_configuration_or_variant(task: Path) -> None:
    (task.parent / "inner").mkdir()
    file = task.parent / "inner" / "long.yaml"
    file.write_text("base: ../ruler_slow.yaml\nvariants: {run: {rounds: 50}}\n")
    config = load_config(file.with_name("long_run.yaml"))
    assert (config.name, config.rounds, config.algorithm.settings["eta"]) == ("long_run", 50, 0.01)
    (task.parent / "alone.yaml").write_text("name: alone\nrounds: 3\n")
    file.write_text("base: ../alone.yaml\nvariants: {run: {}}\n")
    assert variants.read(file.with_name("long_run.yaml")) == {"name": "long_run", "rounds": 3}


def test_studies_begin_at_variants(task: Path) -> None:
    (task.parent / "study.yaml").write_text(
        "name: mine\nbase: ruler_slow.yaml\ngrid: {seed: [0]}\nparts: [{}, {base: 'ruler.yaml:one_pass'}]\n"
    )
    trials = Study.load(task.parent / "study.yaml").trials
    assert [trial.config.name for trial in trials] == ["ruler_slow", "ruler_one_pass"]
    assert trials[0].config.algorithm.settings["eta"] == 0.01
    assert is_study(task.parent / "study.yaml")
    assert not is_study(task.with_name("ruler_slow.yaml"))


UNKNOWN = "there is no such file or variant; "


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ruler_slw.yaml", f"ruler_slw.yaml: {UNKNOWN}did you mean 'ruler_slow.yaml', a variant of ruler.yaml?"),
        ("rular_slow.yaml", f"rular_slow.yaml: {UNKNOWN}did you mean 'ruler_slow.yaml', a variant of ruler.yaml?"),
        ("xyzzy.yaml", f"xyzzy.yaml: {UNKNOWN}the experiments files there are ruler.yaml"),
        ("ruler.yaml:slw", "ruler.yaml: has no variant 'slw'; did you mean 'slow'?"),
        ("ruler.yaml:", "ruler.yaml: has no variant ''; known: slow, one_pass, same"),
        ("ruler.yaml", "ruler.yaml: holds 3 experiments; give one, as ./ruler_slow.yaml: slow, one_pass, same"),
        ("nowhere.yaml:slow", "nowhere.yaml:slow: cannot be read (No such file or directory)"),
        ("inner/ruler_slow.yaml", "inner/ruler_slow.yaml: cannot be read (No such file or directory)"),
        ("ruler_slow.json", "ruler_slow.json: cannot be read (No such file or directory)"),
    ],
)
def test_an_unknown_name_is_an_error_that_names_the_nearest(name: str, message: str, task: Path) -> None:
    for reads in (load_config, is_study):
        with pytest.raises(ConfigError) as error:
            reads(task.parent / name)
        assert str(error.value).replace(f"{task.parent}/", "./").removeprefix("./").startswith(message)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("description:", "descripton:", "descripton: unknown key; did you mean 'description'?"),
        ("base:\n  rounds: 4", "base: 3\nbses:\n  rounds: 4", "bses: unknown key; did you mean 'base'?"),
        ("same: {}", "same:", "variants.same: should be keys and values (got None)"),
        ("same: {}", "a/b: {}", "variants.a/b"),
        ("same: {}", "same: {name: other}", "variant same sets a name, but its name follows from the file's"),
        (
            "same: {}",
            "same: {algorithm.K: 1, algorithm: {name: cd_ma}}",
            "variant same sets both 'algorithm' and 'algorithm.K'; give one of them",
        ),
        (TASK[TASK.index("variants:") :], "variants: {}\n", "variants: should have at least 1 item"),
    ],
)
def test_a_wrong_experiments_file_is_named_with_the_key(old: str, new: str, message: str, task: Path) -> None:
    task.write_text(TASK.replace(old, new))
    for name in ("ruler_slow.yaml", "ruler.yaml:slow", "ruler.yaml"):
        with pytest.raises(ConfigError) as error:
            load_config(task.parent / name)
        assert str(error.value).startswith(f"{task}: {message}")
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("{algoritm.K: 1}", "algoritm: unknown key; did you mean 'algorithm'? (in variant same of FILE)"),
        ("{rounds: 0}", "rounds: should be greater than or equal to 1 (got 0) (in variant same of FILE)"),
        ("{rounds.x: 0}", "rounds.x: cannot be set, since rounds is no section (in variant same of FILE)"),
        ("{devices: phones_globl}", "devices.preset: there is no preset 'phones_globl'; did you mean"),
    ],
)  # fmt: skip
def test_a_wrong_value_of_a_variant_is_an_error_that_names_file_and_variant(
    values: str, message: str, task: Path
) -> None:
    task.write_text(TASK.replace("same: {}", f"same: {values}"))
    with pytest.raises(ConfigError) as error:
        load_config(task.with_name("ruler_same.yaml"), ["seed=3"])
    assert str(error.value).replace(str(task), "FILE").startswith(message)
    assert isinstance(load_config(task.with_name("ruler_slow.yaml")), Config), "the others are as good as before"


def test_an_error_of_an_override_does_not_blame_the_variant(task: Path) -> None:
    with pytest.raises(ConfigError) as error:
        load_config(task.with_name("ruler_slow.yaml"), ["seed=1", "evaluate.evry=3"])
    assert str(error.value) == "evaluate.evry: unknown key; did you mean 'every'?"


def test_a_base_that_leads_back_to_its_file_is_refused(task: Path) -> None:
    (task.parent / "other.yaml").write_text("base: ruler_slow.yaml\nvariants: {one: {}}\n")
    task.write_text("base: other_one.yaml\nvariants: {slow: {}}\n")
    with pytest.raises(ConfigError, match=r"ruler\.yaml: base leads back to the file itself, through .*ruler_slow"):
        load_config(task.with_name("ruler_slow.yaml"))


def test_a_base_that_is_not_there_is_named(task: Path) -> None:
    task.write_text("base: nowhere/else.yaml\nvariants: {slow: {}}\n")
    with pytest.raises(ConfigError, match=r"nowhere/else\.yaml: cannot be read \(No such file"):
        load_config(task.with_name("ruler_slow.yaml"))
