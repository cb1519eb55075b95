"""The same bits whoever computes: in this process, on pools of 1, 2 and 4 actors, and on an actor per client."""

import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch
from torch.utils import _pytree as pytree

from clients.actors import fleet as ray_fleet
from clients.actors import tasks as ray_tasks
from clients.actors.fleet import RayFleet
from clients.fleet import InProcessFleet
from clients.placement import ClientsConfig, Placement
from raysim.errors import ClientError, Stopped, StoreFull, WorkerLost
from raysim.fleet import Fleet
from server.rounds import Server
from tests.contracts.table import PERSONAL, TABLE, base_of, settings
from tests.play import DIGITS, QUADRATIC, experiment

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.xdist_group("fleets")]

SMALL = {"num_cpus": 0.1}
PARTITION = {"name": "by_label", "clients": 6}
N_CLIENTS = 6


def started(made: Any, placement: Placement) -> RayFleet:
    return RayFleet.start(made.engine(), ClientsConfig(**SMALL), placement, "test")


@pytest.fixture(scope="module")
def auc(ray_cluster: None) -> Iterator[dict[str, Fleet]]:
    """Fleets for one AUC problem, which all algorithms can use."""
    made = experiment(DIGITS, settings("cd_ma"), partition=PARTITION, precision="float32")
    placements = {
        "1 actor": (1, None),
        "2 actors": (2, None),
        "4 actors": (4, None),
        "an actor per client": (N_CLIENTS, 1),
    }
    fleets = {name: started(made, Placement(*how)) for name, how in placements.items()}
    yield {"in process": InProcessFleet(made.engine()), **fleets}
    for fleet in fleets.values():
        fleet.end()


@pytest.mark.xdist_group("placements")
@pytest.mark.parametrize("name", list(TABLE))
@pytest.mark.parametrize("block", ["auto", 3])
def test_no_placement_changes_a_bit(name: str, block: Any, auc: dict[str, Fleet], tmp_path: Path) -> None:
    made = experiment(DIGITS, settings(name), partition=PARTITION, precision="float32", clients={"block": block})
    ends, metrics = {}, {}
    for how, fleet in auc.items():
        playing = Server(made.job(tmp_path), fleet)
        metrics[how] = [(report.round, report.metrics) for report in playing.run()]
        ends[how] = playing.point
    reference = ends.pop("in process")
    assert (reference - made.problem.init(0)).norm() > 1e-3
    for how, z in ends.items():
        assert torch.equal(z.x, reference.x), how
        assert torch.equal(z.y, reference.y), how
        assert metrics[how] == metrics["in process"], how


@pytest.fixture(scope="module")
def own(ray_cluster: None) -> Iterator[Callable[[str], RayFleet]]:
    """Two actors for clients with models of their own, for all methods that are played on the same problem."""
    fleets: dict[str, RayFleet] = {}

    def fleet(name: str) -> RayFleet:
        base = base_of(name)
        problem = base["problem"]["name"]
        if problem not in fleets:
            for other in fleets.values():
                other.end()
            fleets.clear()
            fleets[problem] = started(experiment(base, settings(name), precision="float32"), Placement(2, None))
        return fleets[problem]

    yield fleet
    for last in fleets.values():
        last.end()


@pytest.mark.parametrize("name", list(PERSONAL))
def test_clients_own_models_are_the_same_on_actors(name: str, own: Callable[[str], RayFleet], tmp_path: Path) -> None:
    made = experiment(base_of(name), settings(name), precision="float32")
    fleets = InProcessFleet(made.engine()), own(name)
    here, there = (Server(made.job(tmp_path), fleet) for fleet in fleets)
    found = [[(report.round, report.metrics) for report in playing.run()] for playing in (here, there)]
    assert found[0] == found[1]
    assert torch.equal(here.point.x, there.point.x)
    theirs = fleets[1].fetch(there.memory)
    assert here.memory.keys() == theirs.keys()
    for client, memory in here.memory.items():
        ours, others = pytree.tree_leaves(memory), pytree.tree_leaves(theirs[client])
        assert all(torch.equal(a, b) for a, b in zip(ours, others, strict=True))


def test_the_vectorised_engine_gives_the_same_bits_on_actors(ray_cluster: None, tmp_path: Path) -> None:
    together = {"engine": "vectorized", "block": 3}
    made = experiment(DIGITS, settings("cd_mage"), partition=PARTITION, precision="float32", clients=together)
    fleet = started(made, Placement(2, None))
    try:
        here, there = (Server(made.job(tmp_path), how) for how in (InProcessFleet(made.engine()), fleet))
        for t in range(2):
            here.play(t)
            there.play(t)
    finally:
        fleet.end()
    assert torch.equal(here.point.x, there.point.x)
    assert torch.equal(here.point.y, there.point.y)


@pytest.fixture(scope="module")
def quadratic(ray_cluster: None) -> Iterator[tuple[Any, RayFleet]]:
    made = experiment(QUADRATIC, {"name": "tests.toys:Remembering"}, problem={"name": "tests.toys:Faulty"})
    fleet = started(made, Placement(2, None))
    yield made, fleet
    fleet.end()


def test_client_memory_travels_with_the_work(quadratic: tuple[Any, RayFleet], tmp_path: Path) -> None:
    made, fleet = quadratic
    here, there = Server(made.job(tmp_path), InProcessFleet(made.engine())), Server(made.job(tmp_path), fleet)
    for t in range(5):
        here.play(t)
        there.play(t)
    assert torch.equal(here.point.x, there.point.x)
    assert torch.equal(here.state["c"].x, there.state["c"].x)
    assert here.memory.keys() == there.memory.keys()


@ray.remote(num_cpus=0, max_retries=0)
def never() -> None:
    time.sleep(3600)


def test_what_does_not_reach_the_actors_is_told_of(
    quadratic: tuple[Any, RayFleet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where store and disk are full, and Ray tries for ever to bring what was put on disk."""
    monkeypatch.setattr(ray_tasks, "ANSWER_S", 3.0)
    made, fleet = quadratic
    playing, memory = Server(made.job(tmp_path), replace(fleet, timeout_s=1.5)), never.remote()
    playing.memory = dict.fromkeys(range(8), memory)
    try:
        with pytest.raises(StoreFull, match=r"what client actors are to work on did not come in 1.5 s; .* is full"):
            playing.play(0)
    finally:
        ray.cancel(memory, force=True)


def test_a_fault_in_user_code_arrives_with_client_round_phase_and_traceback(ray_cluster: None, tmp_path: Path) -> None:
    sound = experiment(QUADRATIC, settings("cd_ma", S=8))
    largest = abs(sound.shards.train.features).max(axis=1)
    row = int(largest.argmax())
    (guilty,) = np.flatnonzero(np.diff(sound.shards.offsets_N1 > row))
    faulty = {"name": "tests.toys:Faulty", "limit": float(largest[row])}
    made = experiment(QUADRATIC, settings("cd_ma", S=8, batch=6), problem=faulty)
    fleet = started(made, Placement(1, None))
    try:
        with pytest.raises(ClientError) as raised:
            Server(made.job(tmp_path), fleet).play(0)
    finally:
        fleet.end()
    assert (raised.value.client, raised.value.round, raised.value.phase) == (guilty, 0, "update")
    assert "ValueError: a row I did not expect" in raised.value.trace


def test_statistics_of_a_population_are_the_same_on_actors(ray_cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raysim.problems.network.POPULATION_ROWS", 500)
    base = dict(DIGITS) | {"model": {"name": "tests.toys:Normalised"}}
    made = experiment(base, settings("cd_ma"), partition=PARTITION, precision="float32")
    fleet, here = started(made, Placement(2, None)), InProcessFleet(made.engine())
    z = made.problem.init(0)

    def evaluated(fleet: Any) -> Any:
        seen = made.problem.settled(z, fleet.pool("train"))
        return made.problem.evaluate(z, seen(fleet.pool("test")))

    try:
        there = fleet.in_background(lambda: evaluated(fleet))()
    finally:
        fleet.end()
    assert there == here.in_background(lambda: evaluated(here))()
    assert there != made.problem.evaluate(z, here.pool("test"))


@pytest.mark.parametrize("split", ["train", "test"])
def test_an_evaluation_in_several_passes_gives_the_same_bits(split: Any, ray_cluster: None) -> None:
    base = dict(DIGITS) | {"problem": {"name": "robust"}}
    made = experiment(base, settings("cd_ma"), partition=PARTITION, precision="float32")
    fleet, here = started(made, Placement(2, None)), InProcessFleet(made.engine())
    z = made.problem.init(0)
    try:
        there = fleet.in_background(lambda: made.problem.evaluate(z, fleet.pool(split)))()
    finally:
        fleet.end()
    assert there == here.in_background(lambda: made.problem.evaluate(z, here.pool(split)))()
    assert there["robust_loss"] > there["loss"]


def test_generated_images_are_the_same_on_actors(ray_cluster: None, tmp_path: Path) -> None:
    base = dict(DIGITS) | {"problem": {"name": "gan", "classifier_epochs": 1}, "model": {"name": "tests.toys:TinyGAN"}}
    made = experiment(base, settings("cd_mage", batch=6), partition=PARTITION, precision="float32")
    made = replace(made, problem=made.problem.prepared(made.shards, tmp_path, lambda line: None))
    fleet = started(made, Placement(2, None))
    try:
        here, there = (Server(made.job(tmp_path), how) for how in (InProcessFleet(made.engine()), fleet))
        reports = [list(playing.run())[-1].metrics for playing in (here, there)]
    finally:
        fleet.end()
    assert torch.equal(here.point.x, there.point.x)
    assert reports[0] == reports[1]
    assert reports[0]["test"]["inception_score"] >= 1


def test_an_actor_that_cannot_start_is_an_error_at_once_that_says_why(ray_cluster: None, tmp_path: Path) -> None:
    made = experiment(QUADRATIC, settings("cd_ma"), output={"cache": str(tmp_path / "cache")})
    engine = made.engine()
    shutil.rmtree(made.shards.folder)  # as on a node that does not have it
    with pytest.raises(WorkerLost, match=r"a client actor cannot start: .*DataError: there is no "):
        RayFleet.start(engine, ClientsConfig(**SMALL), Placement(1, None), "test")


@ray.remote
class Other:
    """Somebody else's, on the same cluster."""


def test_actors_that_find_no_room_are_told_of_and_start_when_there_is(
    ray_cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_fleet, "TELL_S", 1.0)
    # Each wants half of the cluster's processors, of which other fleets have some.
    other, told = Other.options(num_cpus=4).remote(), []  # type: ignore[attr-defined]
    ray.get(other.__ray_ready__.remote())

    def notice(line: str) -> None:
        told.append(line)
        ray.kill(other)

    made = experiment(QUADRATIC, settings("cd_ma"))
    fleet = RayFleet.start(made.engine(), ClientsConfig(num_cpus=4.0), Placement(1, None), "test", notice)
    fleet.end()
    assert re.fullmatch(r"waiting for 1 of 1 client actors to start; the cluster has [\d.]+ CPU, 0 GPU free", told[0])


def test_actors_are_awaited_no_longer_once_the_run_is_to_stop(
    ray_cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_fleet, "TELL_S", 1.0)
    stop = threading.Event()
    made = experiment(QUADRATIC, settings("cd_ma"))
    never = ClientsConfig(num_cpus=1000.0)
    with pytest.raises(Stopped):
        RayFleet.start(made.engine(), never, Placement(1, None), "test", lambda line: stop.set(), stop)
