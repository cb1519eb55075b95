"""What the whole test run shares: a cache of its own for shard files, and one Ray."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)


def pytest_itemcollected(item: pytest.Item) -> None:
    """With several workers (pytest -n 2) a file's tests stay together, for what they share, but for the contracts'."""
    if item.path.parent.name != "contracts":
        item.add_marker(pytest.mark.xdist_group(item.path.name))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that start Ray come first: they are the long ones, and no worker is to be left with them at the end."""
    slow = {item.path for item in items if item.get_closest_marker("ray")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing is read from or left in the user's own cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAYSIM_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("RAY_ADDRESS", raising=False)
        yield


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """A local Ray with 8 CPUs on paper, so that several fleets can stand side by side."""
    import ray

    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(address="local", num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder of real data sets, where the machine has one."""
    root = os.environ.get("RAYSIM_DATA_ROOT")
    if not root:
        pytest.skip("RAYSIM_DATA_ROOT is not set: no real data sets here")
    return Path(root)
