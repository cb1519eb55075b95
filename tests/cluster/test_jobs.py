"""Experiments as jobs of a cluster with two nodes, dashboard and token, and the same on this machine alone."""

import json
import re
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cluster import jobs, load_config, run, yaml12
from cluster.study import Study
from raysim.errors import ConfigError
from tests.cluster import heads
from tests.contracts.table import settings
from tests.play import QUADRATIC
from tests.same import differences, log

ROOT = Path(__file__).parent.parent.parent
RAYSIM = (sys.executable, "-m", "cluster")

BASE: dict[str, Any] = {
    "precision": "float64",
    "rounds": 6,
    "data": {"name": "digits"},
    "partition": {"name": "by_label", "clients": 20},
    "problem": {"name": "auc"},
    "model": {"name": "mlp", "hidden": [8]},
    "algorithm": settings("codasca", S=10),
    "evaluate": {"every": 2},
    "checkpoint": {"every": 1},
    "clients": {"num_cpus": 1.0},
}
MINE = """
from dataclasses import dataclass, replace
from helping import half
from raysim.problems.quadratic import Quadratic

@dataclass(frozen=True)
class Mine(Quadratic):
    \"\"\"A problem of a user's own.\"\"\"
    def init(self, seed):
        z = super().init(seed)
        return replace(z, x=half(z.x))
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[heads.Head]:
    """A cluster of two nodes with a processor each."""
    with heads.started(RAY_metrics_report_interval_ms="2000") as head:
        heads.until(head.alive)
        head.join("--num-cpus=1")
        heads.until(lambda: len(head.alive()) == 2)
        yield head


def written(folder: Path, **sections: Any) -> Path:
    path = folder / "experiment.yaml"
    path.write_text(yaml12.dump(BASE | {"name": "experiment"} | sections))
    return path


def here(tmp_path: Path, **sections: Any) -> Path:
    """The same experiment on this machine alone: its run folder."""
    alone = {"clients": {"fleet": "in_process"}, "output": {"folder": str(tmp_path / "here")}}
    return run(load_config(BASE | {"name": "experiment"} | sections | alone)).folder


@pytest.mark.xdist_group("jobs")
@pytest.mark.slow
@pytest.mark.ray
def test_a_job_is_sent_followed_and_gives_the_bits_of_this_machine(cluster: heads.Head, tmp_path: Path) -> None:
    assert cluster.run(*RAYSIM, "jobs", "--address", cluster.dashboard, cwd=ROOT).stdout == "none\n"
    config, storage = written(tmp_path), tmp_path / "storage"
    words = ["submit", str(config), "-o", "rounds=5", "--address", cluster.dashboard, "--storage", str(storage)]
    done = cluster.run(*RAYSIM, *words, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert re.search(r"^sending \d+ files, \d+ kB$", done.stdout, re.MULTILINE)
    (folder,) = (storage / "runs").iterdir()
    for line in ("round 2/5", "client actors: 2, each for any client, on 2 nodes (2 with 1)", f"results in {folder}"):
        assert line in done.stdout
    (job,) = re.findall(r"^job (\S+), results in", done.stdout, re.MULTILINE)
    assert re.search(rf"^{job}  succeeded  \d+ s  {storage}/runs$", done.stdout, re.MULTILINE)
    assert not differences(folder, here(tmp_path, rounds=5))
    # What is said counts, and not what the environment does, which Ray would prefer.
    other, short = "http://127.0.0.1:1", cluster.dashboard.removeprefix("http://")
    listed = cluster.run(*RAYSIM, "jobs", "--address", short, cwd=ROOT, RAY_ADDRESS=other, RAY_API_SERVER_ADDRESS=other)
    assert f"{job}  succeeded" in listed.stdout
    origin = json.loads((folder / "environment.json").read_text())
    assert origin["packages"]["raysim"] == version("raysim")


@pytest.mark.xdist_group("jobs")
@pytest.mark.slow
@pytest.mark.ray
def test_a_job_is_seen_stopped_and_resumed(cluster: heads.Head, tmp_path: Path) -> None:
    config, runs = written(tmp_path, name="long", rounds=100_000), tmp_path / "runs"
    words = ["-o", f"output.folder={runs}", "--address", cluster.dashboard]
    sent = cluster.run(*RAYSIM, "submit", str(config), "--no-wait", *words, cwd=ROOT)
    assert sent.returncode == 0, sent.stderr
    (job,) = re.findall(r"^job (\S+),", sent.stdout, re.MULTILINE)
    (folder,) = heads.until(lambda: list(runs.iterdir()))
    heads.until(lambda: [event for event in log(folder) if event["event"] == "round"])

    # Ray's dashboard shows who is at work, and its metrics what is done.
    actors = json.loads(cluster.get(f"{cluster.dashboard}/api/v0/actors"))["data"]["result"]["result"]
    names = {actor["name"] for actor in actors if actor["state"] == "ALIVE"}
    assert {f"{folder.name}:client-0", f"{folder.name}:client-1", f"{folder.name}:server-0"} <= names
    seen = heads.until(lambda: metrics(cluster, folder.name))
    assert seen["ray_raysim_rounds_planned"] == {(): 100_000.0}

    stopped = cluster.run(*RAYSIM, "stop", job, "--address", cluster.dashboard, cwd=ROOT)
    assert re.match(rf"{job}  stopped  \d+ s", stopped.stdout), stopped
    *_, last = log(folder)
    (rounds,) = map(int, re.findall(r"stopped after (\d+) of 100000 rounds", last["why"]))
    assert (last["event"], last["outcome"]) == ("end", "stopped")

    words = ["--address", cluster.dashboard, "-o", f"rounds={rounds + 3}"]
    resumed = cluster.run(*RAYSIM, "submit", "--resume", str(folder), *words, cwd=ROOT)
    assert resumed.returncode == 0, resumed.stdout
    assert not differences(folder, here(tmp_path, name="long", rounds=rounds + 3))
    booked = [event["round"] for event in log(folder) if event["event"] == "round"]
    assert booked == list(range(1, rounds + 4))

    # What was shown while it ran is what is booked, by one round more or less: they are not read at one instant.
    (phase,) = next(event for event in log(folder) if event["event"] == "round")["phases"]
    shown = [seen["ray_raysim_rounds_total"][()] + more for more in (-1, 0, 1)]
    for name, label, amount in (
        ("bytes", "up", phase["bytes_up"]), ("bytes", "down", phase["bytes_down"]), ("clients", "accepted", 10)
    ):  # fmt: skip
        assert seen[f"ray_raysim_{name}_total"][phase["phase"], label] in [amount * times for times in shown]
    assert set(seen["ray_raysim_phase_seconds_total"]) == {(phase["phase"], p) for p in ("plan", "clients", "server")}
    assert ("test", "auc") in seen["ray_raysim_metric"]


def metrics(cluster: heads.Head, run_name: str) -> dict[str, dict[tuple[str, ...], float]]:
    """This run's metrics by name, then by their other labels; nothing before all are there."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(cluster.get(f"http://{cluster.ip}:{cluster.metrics_port}/metrics")):
        for sample in family.samples:
            if sample.name.startswith("ray_raysim_") and sample.labels["run"] == run_name:
                own = ("phase", "fate", "direction", "part", "split", "metric")
                labels = tuple(sample.labels[label] for label in own if label in sample.labels)
                found.setdefault(sample.name, {})[labels] = sample.value
    # Each process reports by itself: the driver's rounds and metrics, the server's tasks.
    there = {"ray_raysim_rounds_total", "ray_raysim_metric", "ray_raysim_tasks_waiting"} <= set(found)
    return found if there else {}


@pytest.mark.xdist_group("jobs")
@pytest.mark.slow
@pytest.mark.ray
def test_modules_of_the_users_own_go_along(cluster: heads.Head, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "helping.py").write_text("def half(x):\n    return x / 2\n")
    tree = QUADRATIC | {"problem": {"name": "mine:Mine"}, "model": None, "algorithm": settings("cd_ma")}
    config = written(tmp_path, **tree)
    words = ["submit", config.name, "--address", cluster.dashboard, "--storage", str(tmp_path)]
    done = cluster.run(*RAYSIM, *words, cwd=tmp_path, PYTHONPATH=str(ROOT))
    assert done.returncode == 1, "helping.py is not there"
    assert "No module named 'helping'" in done.stdout
    done = cluster.run(*RAYSIM, *words, "--include", "helping.py", cwd=tmp_path, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stdout


@pytest.mark.xdist_group("jobs")
@pytest.mark.slow
@pytest.mark.ray
def test_a_study_is_sent_played_on_all_nodes_and_resumed(cluster: heads.Head, tmp_path: Path) -> None:
    base, seeds = written(tmp_path, name="trial"), [0, 1]
    (tmp_path / "study.yaml").write_text(yaml12.dump({"name": "seeds", "base": base.name, "grid": {"seed": seeds}}))
    words = ["submit", str(tmp_path / "study.yaml"), "--address", cluster.dashboard, "--storage", str(tmp_path)]
    done = cluster.run(*RAYSIM, *words, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    (folder,) = (tmp_path / "runs").iterdir()
    assert f"2 of 2 trials finished, in {folder}" in done.stdout
    assert (folder / "report" / "report.html").exists()
    for seed in seeds:
        assert not differences(folder / "trials" / f"trial_seed{seed}", here(tmp_path, name="trial", seed=seed))
    words = ["submit", "--resume", str(folder), "-o", "grid.seed=[0, 1, 2]", "--address", cluster.dashboard]
    again = cluster.run(*RAYSIM, *words, cwd=ROOT)
    assert again.returncode == 0, again.stdout
    assert re.findall(r"^\d/3  \S+", again.stdout, re.MULTILINE) == ["3/3  trial_seed2"]


def test_a_study_that_a_job_could_not_play_is_refused(tmp_path: Path) -> None:
    base = BASE | {"name": "experiment", "output": {"cache": "here"}}
    for tree, storage, message in (
        ({}, None, "output.cache: 'here' is relative"),
        ({"set": {"output.cache": "/there"}}, None, "folder: 'runs' is relative, and a job's working folder goes"),
        ({"grid": {"algorithm.T": [1]}}, "/there", "algorithm.T: unknown key"),
    ):
        study = Study.load({"name": "mine", "base": base, "grid": {"seed": [0]}} | tree)
        with pytest.raises(ConfigError) as error, jobs.parcel_of_study(study, storage, []):
            pass
        assert str(error.value).startswith(message)


@pytest.mark.xdist_group("jobs")
@pytest.mark.slow
@pytest.mark.ray
def test_rays_own_command_runs_it_too(cluster: heads.Head, tmp_path: Path) -> None:
    words = [
        "ray",
        "job",
        "submit",
        "--address",
        cluster.dashboard,
        "--working-dir",
        str(ROOT),
        "--",
        "raysim",
        "run",
        "configs/quickstart.yaml",
        "-o",
        "rounds=2",
        "-o",
        f"output.folder={tmp_path}",
    ]
    done = cluster.run(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = tmp_path.iterdir()
    assert f"results in {folder}" in done.stdout


@pytest.mark.xdist_group("jobs")
@pytest.mark.slow
@pytest.mark.ray
def test_what_a_job_server_refuses_is_one_line(cluster: heads.Head, tmp_path: Path) -> None:
    config = written(tmp_path)
    words = [*RAYSIM, "submit", str(config), "--address", cluster.dashboard, "--storage", str(tmp_path)]
    for told, command, environment in (
        (r"error: .* does not exist", [*RAYSIM, "stop", "nobody", "--address", cluster.dashboard], {}),
        (r"error: .*[Aa]uthentication", words, {"RAY_AUTH_TOKEN": "0" * 64}),
        (
            r"error: \d+ files of 0 MiB would be sent, and Ray takes 0 MiB; the largest is \S+",
            words,
            {"RAY_max_grpc_message_size": "1000"},
        ),
        (r"error: no job server answers at http://127.0.0.1:1\b", [*words, "--address", "http://127.0.0.1:1"], {}),
    ):
        done = cluster.run(*command, cwd=ROOT, **environment)
        assert done.returncode == 2
        assert re.fullmatch(told + ".*\n", done.stderr), done.stderr


def test_what_a_job_would_not_find_is_refused_before_it_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(storage: str | None = None, include: list[Path] | None = None, **sections: Any) -> str:
        with (
            pytest.raises(ConfigError) as error,
            jobs.parcel(load_config(BASE | {"name": "experiment"} | sections), storage, include or []),
        ):
            pass
        return str(error.value)

    monkeypatch.chdir(tmp_path)
    assert refused().startswith("output.folder: 'runs' is relative, and a job's working folder goes")
    away = {"output": {"folder": "/there"}}
    assert refused(**away, checkpoint={"folder": "saved"}).startswith("checkpoint.folder: 'saved' is relative")
    assert refused("storage").startswith("--storage: 'storage' is relative")
    (tmp_path / "rows.parquet").touch()
    assert refused(**away, data={"name": "parquet", "train": "rows.parquet"}).startswith(
        "data.train: 'rows.parquet' is a path of this folder"
    )
    (tmp_path / "auc").touch()
    with jobs.parcel(load_config(BASE | {"name": "experiment"} | away), None, []):
        pass  # what only has the name of a file is no path
    assert refused(**away, include=[Path("nothing")]).startswith("--include: nothing is not a file or folder")
    assert refused(**away, algorithm={"name": "cd_mag"}).endswith("did you mean 'cd_mage'?")


def test_a_parcel_has_what_a_job_needs_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "own_package"
    for unwanted in (".git", "__pycache__", "runs", "weights/data"):
        (package / unwanted).mkdir(parents=True)
        (package / unwanted / "file").touch()
    (package / "data").mkdir()
    (package / "data" / "code.py").touch()
    (package / "gone").symlink_to(tmp_path / "nowhere")
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "first.pt").touch()
    (package / "__init__.py").write_text("from raysim.problems import Quadratic as Mine")
    (package / "saved.pt").touch()
    tree = QUADRATIC | {"problem": {"name": "own_package:Mine"}, "model": None, "algorithm": settings("cd_ma")}
    config = load_config(BASE | {"name": "experiment", "ray": {"address": "auto"}} | tree)
    with jobs.parcel(config, "/there/", [Path("weights")]) as parcel:
        files = {str(path.relative_to(parcel.folder)) for path in parcel.folder.rglob("*") if path.is_file()}
        others = {"config.yaml", "origin.json", "weights/first.pt"}
        assert {name.split("/")[0] for name in files - others} == {*jobs.ROOMS, "own_package"}
        assert {name for name in files if name.startswith("own_package")} == {
            "own_package/__init__.py", "own_package/data/code.py"
        }  # fmt: skip
        assert all(name.endswith(".py") for name in files - others)
        assert others <= files
        sent = load_config(parcel.folder / "config.yaml")
        assert parcel.sizes[0] == len(files)
    assert not parcel.folder.exists()
    assert (sent.output.folder, sent.ray.address) == ("/there/runs", None)
    assert sent.algorithm == config.algorithm
