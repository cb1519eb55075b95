"""Configurations: what is refused, in which words, and what every configuration of the project resolves to."""

import copy
from pathlib import Path
from typing import Any

import pytest
from pydantic_core import to_jsonable_python

from cluster import variants, yaml12
from cluster.config import Config, load_config
from cluster.experiment import Experiment
from raysim.algorithms import ALGORITHMS
from raysim.data import PARTITIONERS, SOURCES
from raysim.errors import ConfigError
from raysim.models import MODELS
from raysim.problems import PROBLEMS

QUICKSTART = variants.SHIPPED / "quickstart.yaml"
EXPERIMENTS = [QUICKSTART] + [
    file.with_name(f"{variants.full_name(file, name)}.yaml")
    for file, experiments in variants.listed(variants.SHIPPED)
    for name in experiments.variants
]
TOP = (
    "name, seed, rounds, precision, data, partition, problem, model, algorithm, devices, server, evaluate, checkpoint, "
    "clients, ray, output"
)

# Override of the quickstart -> what the message begins with.
REFUSED = {
    # impossible numbers
    "algorithm.S=101": "algorithm.S: cannot sample 101 clients of 100; lower algorithm.S",
    "algorithm.S=0": "algorithm.S: should be greater than 0 (got 0)",
    "algorithm.K=0": "algorithm.K: should be greater than 0 (got 0)",
    "algorithm.batch=-3": "algorithm.batch: should be greater than 0 (got -3)",
    "partition.clients=0": "partition.clients: should be greater than or equal to 1 (got 0)",
    "rounds=0": "rounds: should be greater than or equal to 1 (got 0)",
    "seed=-1": "seed: should be greater than or equal to 0 (got -1)",
    "seed=9223372036854775808": "seed: should be less than 9223372036854775808",
    "algorithm.eta=-0.1": "algorithm.eta: should be greater than 0 (got -0.1)",
    "algorithm.eta=.nan": "algorithm.eta: should be a finite number (got nan)",
    "algorithm.eta=.inf": "algorithm.eta: should be a finite number (got inf)",
    "algorithm.eta=1e400": "algorithm.eta: should be a finite number (got inf)",
    "evaluate.every=0": "evaluate.every: should be greater than or equal to 1 (got 0)",
    "evaluate.splits=[]": "evaluate.splits: should have at least 1 item",
    "problem.prior=1": "problem.prior: should be less than 1 (got 1)",
    "problem.positive=[10]": "problem.positive: class 10 is not in the data",
    "problem.positive=[0,1,2,3,4,5,6,7,8,9]": "problem.positive: 100% of the",
    "model.hidden=[64,0]": "model.hidden.1: should be greater than or equal to 1 (got 0)",
    "data.test_fraction=1": "data.test_fraction: should be less than 1 (got 1)",
    "clients={per_actor: 1, actors: 2}": "clients: give per_actor or actors, not both: one follows from the other",
    "clients.per_actor=0": "clients.per_actor: should be greater than or equal to 1 or 'auto' (got 0)",
    "clients.num_cpus=0": "clients.num_cpus: should be greater than or equal to 0.0001 (got 0)",
    "clients.num_gpus=-1": "clients.num_gpus: should be greater than or equal to 0 (got -1)",
    # wrong types
    "algorithm.K=1e1": "algorithm.K: should be a valid integer (got 10.0)",
    "algorithm.S='10'": "algorithm.S: should be a valid integer (got '10')",
    "algorithm.eta=small": "algorithm.eta: should be a valid number (got 'small')",
    "algorithm.eta='0.1'": "algorithm.eta: should be a valid number (got '0.1')",
    "algorithm.eta=": "algorithm.eta: should be a valid number (got None)",
    "algorithm.same_clients='false'": "algorithm.same_clients: should be true or false (got 'false')",
    "algorithm.same_clients=no": "algorithm.same_clients: should be true or false (got 'no')",
    "algorithm.same_clients=1": "algorithm.same_clients: should be true or false (got 1)",
    "rounds=10.0": "rounds: should be a valid integer (got 10.0)",
    "rounds=true": "rounds: should be a valid integer (got True)",
    "name=3": "name: should be a valid string (got 3)",
    "name=a/b": "name: should match pattern",
    "name=''": "name: should match pattern",
    "precision=float16": "precision: should be 'float32' or 'float64' (got 'float16')",
    "problem.positive=0": "problem.positive: should be a list (got 0)",
    "evaluate.splits=[tset]": "evaluate.splits.0: should be 'train' or 'test' (got 'tset')",
    "clients.per_actor=many": "clients.per_actor: should be a valid integer or 'auto' (got 'many')",
    "clients.fleet=rays": "clients.fleet: should be 'ray' or 'in_process' (got 'rays')",
    "clients=3": "clients: should be a section of its own, keys and values (got 3)",
    "algorithm=cd_mage": "algorithm: should be a section of its own, keys and values (got 'cd_mage')",
    "output.folder=3": "output.folder: should be a valid string (got 3)",
    # unknown keys
    "algoritm.S=5": "algoritm: unknown key; did you mean 'algorithm'?",
    "round=5": "round: unknown key; did you mean 'rounds'?",
    "xyzzy=5": f"xyzzy: unknown key; known: {TOP}",
    "clients_per_rond=5": "clients_per_rond: unknown key; did you mean 'clients'?",
    "algorithm.s=5": "algorithm.s: unknown key; did you mean 'S'?",
    "algorithm.prior=0.5": "algorithm.prior: unknown key; known: S, K, batch, same_clients, eta, gamma",
    "partition.client=5": "partition.client: unknown key; did you mean 'clients'?",
    "partition={name: iid, client: 5}": "partition.client: unknown key; did you mean 'clients'?",
    "algorithm={name: cd_mage, S: 0, etta: 1}": "algorithm.etta: unknown key; did you mean 'eta'?",
    "clients.num_cpu=1": "clients.num_cpu: unknown key; did you mean 'num_cpus'?",
    "evaluate.evry=1": "evaluate.evry: unknown key; did you mean 'every'?",
    "model.shape=[1]": "model.shape: unknown key; known: hidden",
    "problem.network=3": "problem.network: unknown key; known: positive, prior, score",
    # unknown names
    "algorithm.name=cdmage": "algorithm.name: there is no algorithm 'cdmage'; did you mean 'cd_mage'?",
    "algorithm.name=CD_MA": "algorithm.name: there is no algorithm 'CD_MA'; did you mean 'cd_ma'?",
    "problem.name=acu": "problem.name: there is no problem 'acu'; did you mean 'auc'?",
    "model.name=mpl": "model.name: there is no model 'mpl'; did you mean 'mlp'?",
    "data.name=digit": "data.name: there is no data 'digit'; did you mean 'digits'?",
    "partition.name=bylabel": "partition.name: there is no partition 'bylabel'; did you mean 'by_label'?",
    # classes of the user's own
    "algorithm.name=no_such.module:X": "algorithm.name: cannot import 'no_such.module' for 'no_such.module:X' (",
    "algorithm.name=tests.toys:Nowhere": "algorithm.name: 'tests.toys' has no class 'Nowhere'",
    "algorithm.name=tests.toys:torch": "algorithm.name: 'tests.toys' has no class 'torch'",
    "algorithm.name=:X": "algorithm.name: ':X' is not of the form package.module:Name",
    "algorithm.name=..toys:X": "algorithm.name: '..toys:X' is not of the form package.module:Name",
    "data.name=tests.toys:": "data.name: should be a valid string",  # YAML reads a key of a mapping
    "data.name='tests.toys:'": "data.name: 'tests.toys:' is not of the form package.module:Name",
    # missing
    "algorithm={name: cd_mage, S: 3}": "algorithm.K: is required by cd_mage and not given",
    "algorithm={}": "algorithm.name: is required by every configuration and not given",
    "partition={name: dirichlet, clients: 9}": "partition.alpha: is required by dirichlet and not given",
    "model=": "model: the problem 'auc' needs a network",
    "partition={name: natural}": "partition.name: 'natural' needs data that says whose its rows are",
    # overrides that are none
    "rounds": "-o rounds: is not of the form key.sub=value",
    "=3": "-o =3: is not of the form key.sub=value",
    "evaluate..every=3": "-o evaluate..every=3: is not of the form key.sub=value",
    "rounds.x=3": "rounds.x: cannot be set, since rounds is no section",
    "algorithm.S.x.y=3": "algorithm.S.x.y: cannot be set, since algorithm.S is no section",
    "rounds=[1": "rounds: '[1' is not valid YAML: line 1, column 3: expected ',' or ']'",
    "algorithm={S: 1, S: 2}": "algorithm: '{S: 1, S: 2}' is not valid YAML: line 1, column 8: the key 'S' is given",
}


@pytest.mark.parametrize(("override", "message"), REFUSED.items(), ids=REFUSED)
def test_refused_override(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        Experiment.build(load_config(QUICKSTART, [override]))
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


WHOLE = """\
name: mine
rounds: 100
data: {name: digits}
partition: {name: by_label, clients: 100}
problem: {name: auc, positive: [0]}
model: {name: mlp, hidden: [64]}
algorithm: {name: cd_mage, S: 10, K: 5, batch: 3, eta: 0.1, gamma: 0.1}
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (WHOLE.replace("rounds: 100", ""), "rounds: is required by every configuration and not given"),
        (WHOLE.replace("algorithm:", "algoritm:"), "algoritm: unknown key; did you mean 'algorithm'?"),
        (WHOLE.replace("data: {name: digits}", ""), "data: is required by every configuration and not given"),
        (WHOLE.replace("model:", "# model:"), "model: the problem 'auc' needs a network"),
        (WHOLE + "rounds: 3\n", "is not valid YAML: line 8, column 1: the key 'rounds' is given twice"),
        (WHOLE.replace("K: 5,", "K: 5, K: 6,"), "is not valid YAML: line 7, column 41: the key 'K' is given twice"),
        (WHOLE + "evaluate\n", "is not valid YAML: line 9, column 1: could not find expected ':'"),
        (WHOLE + "1: 2\n", f"1: unknown key; known: {TOP}"),
        (WHOLE + "evaluate2: &a [*a]\n", "evaluate2: contains itself"),
        (WHOLE.replace("name: mine", "name: !!binary aGVsbG8="), "name: is of type bytes; give text, a number"),
        ("- a\n- b\n", "must be a mapping of keys to values"),
        ("", "must be a mapping of keys to values"),
    ],
)
def test_refused_file(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        Experiment.build(load_config(file))
    assert str(error.value).removeprefix(f"{file}: ").startswith(message)
    assert "\n" not in str(error.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot be read \(No such file"):
        load_config(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match=r"cannot be read \(Is a directory\)"):
        load_config(str(tmp_path))
    (tmp_path / "latin.yaml").write_bytes("name: é".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"latin\.yaml: is not valid YAML: .*decode"):
        load_config(tmp_path / "latin.yaml")


def test_a_module_that_fails_when_imported_is_an_error_of_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_algorithm.py").write_text("class Mine:\n    pass\n\n1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError) as error:
        Experiment.build(load_config(QUICKSTART, ["algorithm.name=broken_algorithm:Mine"]))
    assert str(error.value) == (
        "algorithm.name: cannot import 'broken_algorithm' for 'broken_algorithm:Mine' "
        "(ZeroDivisionError: division by zero)"
    )
    assert isinstance(error.value.__cause__, ZeroDivisionError)


def test_a_class_of_ones_own_is_found_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_net.py").write_text(
        "from torch import nn\n\n"
        "class Flat(nn.Sequential):\n"
        "    def __init__(self, shape, outputs, bias: bool = True):\n"
        "        super().__init__(nn.Flatten(), nn.Linear(64, outputs, bias=bias))\n"
    )
    monkeypatch.chdir(tmp_path)
    made = Experiment.build(load_config(QUICKSTART, ["model={name: 'my_net:Flat', bias: false}"]))
    assert made.problem.init(0).x.numel() == 64 * 10 + 2
    assert made.resolved["model"] == {"name": "my_net:Flat", "bias": False}


def test_overrides_are_yaml_and_the_last_one_counts() -> None:
    config = load_config(
        QUICKSTART,
        ["rounds=7", "rounds=8", "algorithm={name: x, eta: 1e-3}", "evaluate.splits=[train]", "output.folder=no=yes"],
    )
    assert config.rounds == 8
    assert config.algorithm.settings == {"eta": 0.001}
    assert config.evaluate.splits == ("train",)
    assert config.output.folder == "no=yes"


MADE: dict[str, Any] = {
    "name": "notebook",
    "rounds": 2,
    "data": {"name": "digits"},
    "partition": {"name": "iid", "clients": 4},
    "problem": {"name": "auc", "positive": (0, 1)},
    "model": {"name": "mlp", "hidden": (8,)},
    "algorithm": {"name": "cd_ma", "S": 2, "K": 1, "batch": 4, "eta": 0.1, "gamma": 0.1},
    "evaluate": {"splits": ("train",)},
}


def test_a_mapping_made_in_python() -> None:
    before = copy.deepcopy(MADE)
    config = load_config(MADE, ["algorithm.eta=0.5", "clients.fleet=in_process"])
    assert before == MADE, "the caller's mapping is left as it was"
    assert isinstance(config, Config)
    assert config.algorithm.settings["eta"] == 0.5
    made = Experiment.build(config)
    assert made.resolved["model"] == {"name": "mlp", "hidden": [8]}
    assert made.problem.positive == (0, 1)  # type: ignore[attr-defined]
    assert load_config(config.model_dump(), ["rounds=3"]).rounds == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rouns": 3}, "rouns: unknown key; did you mean 'rounds'?"),
        ({"rounds": "3"}, "rounds: should be a valid integer (got '3')"),
        ({"evaluate": {"evry": 3}}, "evaluate.evry: unknown key; did you mean 'every'?"),
        ({"problem": {"name": "auc", "positive": {0}}}, "problem.positive: is of type set; give text, a number"),
        ({"output": {"folder": Path("runs")}}, "output.folder: is of type pathlib."),
        ({"model": {"name": "mlp", "hidden": (8, object())}}, "model.hidden.1: is of type object; give text"),
    ],
)
def test_refused_mapping(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_config(MADE | changes)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda p: str(p.relative_to(variants.SHIPPED)))
def test_every_setting_of_a_shipped_experiment_is_taken_as_it_stands(path: Path) -> None:
    config = load_config(path)
    for registry, choice in (
        (SOURCES, config.data), (PARTITIONERS, config.partition), (PROBLEMS, config.problem), (MODELS, config.model),
        (ALGORITHMS, config.algorithm),
    ):  # fmt: skip
        assert choice is not None
        settings = registry.settings(choice.name, choice.settings)
        for key, value in choice.settings.items():
            assert to_jsonable_python(settings[key]) == value


def test_what_is_resolved_resolves_to_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYSIM_CACHE", str(tmp_path / "cache"))
    overrides = ["algorithm.eta=1e-3", "algorithm.gamma=2", "name='12e4567'"]
    first = Experiment.build(load_config(QUICKSTART, overrides)).resolved
    assert first["algorithm"] == {
        "name": "cd_mage", "S": 10, "K": 5, "batch": 3, "eta": 0.001, "gamma": 2.0, "same_clients": False,
    }  # fmt: skip
    assert first["clients"]["per_actor"] == "auto"
    (tmp_path / "again.yaml").write_text(yaml12.dump(first))
    assert Experiment.build(load_config(tmp_path / "again.yaml")).resolved == first
    assert Experiment.build(load_config(first)).resolved == first
