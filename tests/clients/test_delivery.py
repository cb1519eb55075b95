"""A folder on its way to a node."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import ray
from ray.exceptions import RayTaskError

from clients.delivery import CHUNK_BYTES, Delivery
from raysim.errors import DataError

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@ray.remote(num_cpus=0.1)
def arrived(delivery: Delivery) -> list[int]:
    """Has all arrive, and returns which files this process sees."""
    delivery.arrive()
    folder, file = delivery.paths
    return [(folder / "large").stat().st_ino, file.stat().st_ino]


@pytest.fixture
def sent(ray_cluster: None, tmp_path: Path) -> tuple[Delivery, Delivery, object]:
    """What is here, and its delivery to other paths, as if they were on another node."""
    here, there = ((tmp_path / where / "shards", tmp_path / where / "classifier.pt") for where in ("here", "there"))
    here[0].mkdir(parents=True)
    (here[0] / "large").write_bytes(os.urandom(2 * CHUNK_BYTES + 12_345))
    (here[0] / "small").write_bytes(b"small")
    (here[0] / "empty").touch()
    here[1].write_bytes(os.urandom(100))
    made, source = Delivery.of(here, ray.get_runtime_context().get_node_id(), "source", tmp_path.name)
    return made, replace(made, paths=there), source


def test_it_arrives_whole_and_once(sent: tuple[Delivery, Delivery, object]) -> None:
    here, there, _ = sent
    left = there.paths[0].with_name(".shards.of-a-process-that-was-killed")
    left.mkdir(parents=True)
    seen = ray.get([arrived.remote(there) for _ in range(4)])
    assert seen == [seen[0]] * 4, "one process fetched it, and the others waited"
    names = sorted(path.name for path in here.paths[0].iterdir())
    assert sorted(path.name for path in there.paths[0].iterdir()) == names == ["empty", "large", "small"]
    for name in names:
        assert (there.paths[0] / name).read_bytes() == (here.paths[0] / name).read_bytes()
    assert there.paths[1].read_bytes() == here.paths[1].read_bytes()
    beside = {path.name for path in there.paths[0].parent.iterdir()}
    assert beside == {"shards", ".shards.lock", "classifier.pt", ".classifier.pt.lock"}
    assert ray.get(arrived.remote(replace(there, source=None))) == seen[0], "what is there is used"


def test_a_node_where_it_cannot_be_is_named(sent: tuple[Delivery, Delivery, object]) -> None:
    _, there, source = sent
    folder = there.paths[0]
    folder.parent.touch()  # no folder
    with pytest.raises(RayTaskError) as error:
        ray.get(arrived.remote(there))
    assert isinstance(error.value.cause, DataError)
    assert f"cannot write the data to {folder}" in str(error.value.cause)
    assert "set output.cache" in str(error.value.cause)
    with pytest.raises(RayTaskError, match=r"there is no .*shards"):
        ray.get(arrived.remote(replace(there, source=None)))
    folder.parent.unlink()
    ray.kill(source)
    with pytest.raises(RayTaskError, match=r"DataError: the data did not reach .*shards"):
        ray.get(arrived.remote(there))
    assert not list(folder.parent.glob("shards*")), "nothing half"
