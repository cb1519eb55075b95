"""Defines the tiers of the tests, and gives the whole run one Ray and a cache of its own for shard files."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before NumPy is there; with more, workers wait for each other's threads

import torch

torch.set_num_threads(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("raysim", "the tiers of the tests")
    group.addoption("--whole", dest="tiers", action="store_const", const="whole", help="run the slow tests as well")
    group.addoption("--rest", dest="tiers", action="store_const", const="rest", help="run the slow tests alone")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Keeps the fast tests of a file on one worker (pytest -n 2), for the fixtures that they share.

    Slow tests and the contracts go to whichever worker is free; those that share a fixture name a group of their own.
    """
    if item.path.parent.name != "contracts" and not item.get_closest_marker("slow"):
        item.add_marker(pytest.mark.xdist_group(item.path.name))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the tests of the other tier, and puts the long ones first.

    Slow tests of a file that is named on the command line are run without an option. No worker is to be left with a
    long test at the end: first come the tests that start Ray, the slow ones before the others.
    """
    tiers = config.getoption("tiers")
    named = {(config.invocation_params.dir / word.partition("::")[0]).resolve() for word in config.option.file_or_dir}

    def chosen(item: pytest.Item) -> bool:
        slow = item.get_closest_marker("slow") is not None
        return tiers == "whole" or slow == (tiers == "rest") or (tiers is None and item.path in named)

    left_out = [item for item in items if not chosen(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
    items[:] = filter(chosen, items)
    items.sort(key=lambda item: [item.get_closest_marker(name) is None for name in ("ray", "slow")])


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing is read from or left in the user's own cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAYSIM_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("RAY_ADDRESS", raising=False)
        yield


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """Starts a local Ray with 8 CPUs on paper, so that several fleets can stand side by side."""
    import ray

    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(address="local", num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def data_root() -> Path:
    """Returns the folder of real data sets, where the machine has one."""
    root = os.environ.get("RAYSIM_DATA_ROOT")
    if not root:
        pytest.skip("RAYSIM_DATA_ROOT is not set: no real data sets here")
    return Path(root)
