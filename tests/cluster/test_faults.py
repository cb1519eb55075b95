"""Processes that are really killed: what comes out is what would have come out."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from cluster import Result, load_config, resume, run, yaml12
from raysim.errors import WorkerLost
from server.job import Progress
from tests.contracts.table import settings
from tests.same import differences
from tests.toys_faults import pids, struck

pytestmark = [pytest.mark.ray, pytest.mark.slow]

BASE: dict[str, Any] = {
    "name": "faults",
    "rounds": 8,
    "precision": "float64",
    "data": {"name": "quadratic", "clients": 8, "rows": 6},
    "partition": {"name": "natural"},
    "problem": {"name": "quadratic"},
    "evaluate": {"every": 2, "splits": ["train"]},
    "checkpoint": {"every": 3},
    "clients": {"actors": 2, "num_cpus": 0.1, "engine": "loop"},
}
ROOT = Path(__file__).parents[2]
# Programs that last a minute on an idle machine are given up after so long: only one that hangs takes it.
HANGS_S = 1200
MEANWHILE = pytest.mark.xdist_group("while a killed driver's agents end")
ALGORITHMS = ["cd_mage_plus", "codasca", "tests.toys:Remembering"]


def play(
    tmp_path: Path, algorithm: str | dict[str, Any], watch: Callable[[Progress], None] | None = None, **sections: Any
) -> Result:
    if isinstance(algorithm, str):
        algorithm = settings(algorithm) if ":" not in algorithm else {"name": algorithm}
    tree = BASE | {"algorithm": algorithm, "output": {"folder": str(tmp_path / "runs")}}
    for name, section in sections.items():
        tree[name] = {**tree[name], **section} if isinstance(section, dict) else section
    return run(load_config(tree), watch=watch)


def same(a: Result, b: Result) -> None:
    assert not differences(a.folder, b.folder)


@pytest.fixture(autouse=True)
def nothing_is_left(ray_cluster: None) -> Iterator[None]:
    yield
    deadline = time.monotonic() + 30
    while pids("ClientActor") + pids("ServerActor"):
        assert time.monotonic() < deadline, "actors are left"
        time.sleep(0.2)


@dataclass(frozen=True)
class Killed:
    """A run whose driver was killed.

    Attributes:
        tree: its configuration.
        folder: its folder.
        children: processes that the driver had started, and these.
    """

    tree: dict[str, Any]
    folder: Path
    children: list[psutil.Process]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    path = tmp_path_factory.mktemp("killed") / "faults.yaml"
    tree = BASE | {"algorithm": settings("codasca"), "output": {"folder": str(path.parent / "runs")}, "rounds": 150}
    tree |= {"evaluate": {"every": 10, "splits": ["train"]}, "clients": {"actors": 2, "num_cpus": 0.5}}
    path.write_text(yaml12.dump(tree))
    script = str(Path(sys.executable).with_name("raysim"))
    driver = subprocess.Popen([script, "run", str(path)], cwd=path.parent, text=True, stdout=subprocess.PIPE)
    assert driver.stdout is not None
    for line in driver.stdout:
        if line.startswith("round 10/"):
            break
    children = psutil.Process(driver.pid).children(recursive=True)
    assert len(children) > 3
    driver.kill()
    driver.wait()
    driver.stdout.close()
    (folder,) = (path.parent / "runs").iterdir()
    return Killed(tree, folder, children)


@MEANWHILE
def test_a_run_whose_driver_is_killed_goes_on(killed: Killed) -> None:
    resumed = resume(killed.folder, ["clients={fleet: in_process}"])
    same(resumed, run(load_config(killed.tree | {"clients": {"fleet": "in_process"}})))


@MEANWHILE
@pytest.mark.parametrize("name", ["cd_mage", "codasca"])
def test_a_process_that_ends_at_any_moment_of_a_phase_changes_nothing(name: str, tmp_path: Path) -> None:
    undisturbed = play(tmp_path, name, clients={"fleet": "in_process", "actors": "auto"})
    moments, marks = ["before", "during", "after", "server"], tmp_path / "marks"
    marks.mkdir()
    blows = {"name": "tests.toys_faults:Struck", "moments": moments, "marks": str(marks), "of": settings(name)}
    same(play(tmp_path, blows), undisturbed)
    phases = set(undisturbed.rounds["phase"].to_pylist())
    assert struck(str(marks)) == {f"{moment} {phase}" for moment in moments for phase in phases}


def test_nodes_that_leave_a_cluster_change_nothing(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "tests.cluster.nodes", str(tmp_path), "20"]
    done = subprocess.run(words, cwd=ROOT, text=True, capture_output=True, timeout=HANGS_S)
    assert done.returncode == 0, done.stderr
    same(*(Result(next(tmp_path.glob(f"{name}-*")), "auc") for name in ("undisturbed", "cluster")))


def test_work_that_ray_ends_for_want_of_memory_is_done_again(tmp_path: Path) -> None:
    memory = psutil.virtual_memory()
    if memory.available < 12e9:
        pytest.skip("less than 12 GB of memory are free")
    marks, path = tmp_path / "marks", tmp_path / "faults.yaml"
    marks.mkdir()
    hungry = {"name": "tests.toys_faults:Hungry", "most_bytes": int(9e9), "marks": str(marks)}
    tree = BASE | {"algorithm": settings("codasca"), "output": {"folder": str(tmp_path / "runs")}}
    path.write_text(yaml12.dump(tree | {"problem": hungry}))
    # Ray's own rule is 95 % of the machine's memory, which would take it all.
    limit = {"RAY_memory_usage_threshold": str((memory.total - memory.available + 5e9) / memory.total)}
    words = [str(Path(sys.executable).with_name("raysim")), "run", str(path)]
    done = subprocess.run(words, cwd=ROOT, text=True, capture_output=True, timeout=HANGS_S, env=os.environ | limit)
    assert (done.returncode, done.stderr) == (0, "")
    assert struck(str(marks)) == {"hungry"}
    (folder,) = (tmp_path / "runs").iterdir()
    alone = tree | {"clients": {"fleet": "in_process", "engine": "loop"}}
    same(Result(folder, "gradient_norm"), run(load_config(alone)))


def test_a_small_object_store_is_kept_free_and_a_full_one_is_a_plain_error(tmp_path: Path) -> None:
    """The report behind it: a store of 80 MB, 64 clients a round, a model of 2 MB, 20 rounds."""
    words = [sys.executable, "-m", "tests.cluster.store", str(tmp_path)]
    full = os.environ | {"RAY_local_fs_capacity_threshold": "0.01"}
    done = subprocess.run(words, cwd=ROOT, text=True, capture_output=True, timeout=HANGS_S, env=full)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found["seen"]) == 5
    assert [at["spilled"] for at in found["seen"]] == [0] * 5
    assert found["used_after"] == 0, "MiB: nothing is left of three runs"
    kind, message = found["ends"]["cd_ma"]
    assert kind == "PlacementError"
    assert "= 1080.0 MB, but Ray's object store has 80.0 MB: start Ray with a larger --object-store-memory" in message
    kind, message = found["ends"]["codasca"]
    assert kind == "StoreFull"
    assert "Ray's object store is full, and so is the disk that it puts the rest on; start it with" in message
    assert [line.partition(" = ")[0] for line in found["told"]] == [
        *["client actors: 2, each for any client"] * 2, "the memory of 64 clients x 2.28 MB",
    ]  # fmt: skip


def test_random_kills_change_nothing_and_nothing_is_left() -> None:
    words = [sys.executable, "-m", "tests.soak", "--rounds", "30", "--pause", "1", "--apart", "2"]
    done = subprocess.run(words, cwd=ROOT, text=True, capture_output=True, timeout=HANGS_S)
    assert "not the same: nothing; left behind: nothing" in done.stdout.splitlines(), done.stdout
    assert re.search(r"^killed \{'ClientActor': \d+.*\} in 30 rounds$", done.stdout, re.MULTILINE)
    assert done.returncode == 0


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_server_that_is_killed_goes_on_from_a_checkpoint(algorithm: str, tmp_path: Path) -> None:
    undisturbed = play(tmp_path, algorithm, clients={"fleet": "in_process", "actors": "auto"})
    seen: list[int] = []

    def watch(report: Progress) -> None:
        seen.append(report.round)
        if seen.count(report.round) == 1 and report.round in (1, 5):  # before the first checkpoint, and after it
            for pid in pids("ServerActor"):
                os.kill(pid, signal.SIGKILL)

    same(play(tmp_path, algorithm, watch), undisturbed)
    assert seen.count(0) == 2
    assert seen.count(4) == 2


def test_work_that_ends_its_process_stops_the_run_with_the_last_cause(tmp_path: Path) -> None:
    with pytest.raises(WorkerLost, match=r"work was lost 3 times, the last time with its process: Actor.*Error: "):
        play(tmp_path, "cd_ma", problem={"name": "tests.toys:Deadly"}, clients={"retries": 2})


def test_an_actor_that_hangs_is_started_anew_and_then_given_up(tmp_path: Path) -> None:
    slow, clients = {"name": "tests.toys:Slow", "seconds": 3600.0}, {"timeout_s": 1.5}
    with pytest.raises(WorkerLost, match=r"done with nothing in 1.5 s, 4 times.*raise clients.timeout_s"):
        play(tmp_path, "cd_ma", problem=slow, clients=clients)


# Ray's agents ask for a minute for a server that is gone. Other tests of the group are played meanwhile.
@MEANWHILE
def test_a_driver_that_is_killed_leaves_no_process(killed: Killed) -> None:
    _, left = psutil.wait_procs(killed.children, timeout=180)
    assert not [process for process in left if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
