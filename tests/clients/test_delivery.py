"""A folder on its way to a node."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import ray
from ray.exceptions import RayTaskError

from clients.delivery import CHUNK_BYTES, Delivery
from raysim.errors import DataError

pytestmark = pytest.mark.ray


@ray.remote(num_cpus=0.1)
def arrived(delivery: Delivery) -> int:
    """Has the folder arrive, and returns which file of it this process sees."""
    delivery.arrive()
    return (delivery.folder / "large").stat().st_ino


@pytest.fixture
def sent(ray_cluster: None, tmp_path: Path) -> tuple[Path, Delivery, object]:
    """A folder, and its delivery to another path, as if it were on another node."""
    folder = tmp_path / "here" / "shards"
    folder.mkdir(parents=True)
    (folder / "large").write_bytes(os.urandom(2 * CHUNK_BYTES + 12_345))
    (folder / "small").write_bytes(b"small")
    (folder / "empty").touch()
    here, source = Delivery.of(folder, ray.get_runtime_context().get_node_id(), "source", tmp_path.name)
    return folder, replace(here, folder=tmp_path / "there" / "shards"), source


def test_it_arrives_whole_and_once(sent: tuple[Path, Delivery, object]) -> None:
    folder, delivery, _ = sent
    seen = ray.get([arrived.remote(delivery) for _ in range(4)])
    assert len(set(seen)) == 1, "one process fetched it, and the others waited"
    there = delivery.folder
    assert sorted(path.name for path in there.iterdir()) == ["empty", "large", "small"]
    for path in there.iterdir():
        assert path.read_bytes() == (folder / path.name).read_bytes()
    assert {path.name for path in there.parent.iterdir()} == {"shards", ".shards.lock"}
    assert ray.get(arrived.remote(Delivery(there))) == seen[0], "without a source, what is there is used"


def test_a_node_where_it_cannot_be_is_named(sent: tuple[Path, Delivery, object]) -> None:
    _, delivery, source = sent
    delivery.folder.parent.touch()  # no folder
    with pytest.raises(RayTaskError) as error:
        ray.get(arrived.remote(delivery))
    assert isinstance(error.value.cause, DataError)
    assert f"cannot write the data to {delivery.folder}" in str(error.value.cause)
    assert "set output.cache" in str(error.value.cause)
    with pytest.raises(RayTaskError, match=r"there is no .*shards"):
        ray.get(arrived.remote(Delivery(delivery.folder)))
    delivery.folder.parent.unlink()
    ray.kill(source)
    with pytest.raises(RayTaskError, match=r"DataError: the data did not reach .*shards"):
        ray.get(arrived.remote(delivery))
    assert not list(delivery.folder.parent.glob("shards*")), "nothing half"
