"""Where clients go, and the arithmetic shown where they do not fit."""

from typing import Any

import pytest

from clients.placement import ACTOR_BYTES, ClientsConfig, Placement, Resources, Sizes, fits_store, place
from raysim.errors import PlacementError

LAPTOP = Resources(cpus=2, gpus=0, memory_bytes=24_000_000_000)
SERVER = Resources(cpus=64, gpus=4, memory_bytes=256_000_000_000)


@pytest.mark.parametrize(
    ("settings", "cohort", "has", "actors", "per_actor"),
    [
        ({}, 10, LAPTOP, 2, None),
        ({}, 1, LAPTOP, 1, None),  # more actors than clients at work would idle
        ({}, 10, SERVER, 10, None),
        ({}, 100, SERVER, 64, None),
        ({"num_cpus": 0.25}, 100, LAPTOP, 8, None),
        ({"num_cpus": 0.3}, 100, LAPTOP, 6, None),
        ({"num_cpus": 1.5}, 100, LAPTOP, 1, None),
        ({"num_gpus": 0.5}, 100, SERVER, 8, None),
        ({"num_gpus": 1}, 3, SERVER, 3, None),
        ({}, 10, Resources(8, 0, 3 * ACTOR_BYTES + 1), 3, None),  # memory caps
        ({"actors": 2}, 10, LAPTOP, 2, None),
        ({"actors": 20, "num_cpus": 0.1}, 10, LAPTOP, 20, None),  # twenty tenths are two, whatever floats say
        ({"per_actor": 1, "num_cpus": 0.1}, 10, LAPTOP, 20, 1),
        ({"per_actor": 10}, 10, LAPTOP, 2, 10),
        ({"per_actor": 19}, 10, LAPTOP, 2, 19),
        ({"per_actor": 100}, 10, LAPTOP, 1, 100),
    ],
)
def test_placements(settings: dict[str, Any], cohort: int, has: Resources, actors: int, per_actor: int | None) -> None:
    placement = place(ClientsConfig(**settings), n_clients=20, cohort=cohort, has=has)
    assert placement == Placement(actors, per_actor)
    assert placement.memory_bytes == actors * ACTOR_BYTES


@pytest.mark.parametrize(
    ("settings", "has", "message"),
    [
        (
            {"per_actor": 1, "num_cpus": 0.001},
            LAPTOP,
            "500 client actors x 350 MB = 175.0 GB, but 24.0 GB of memory are free: "
            "set clients.per_actor to auto, or to 8 or more",  # 68 actors fit, and 68 x 8 >= 500 > 68 x 7
        ),
        (
            {"actors": 70, "num_cpus": 0.001},
            LAPTOP,
            "70 client actors x 350 MB = 24.5 GB, but 24.0 GB of memory are free: set clients.actors to 68 or fewer",
        ),
        (
            {},
            Resources(2, 0, 100_000_000),
            "1 client actor x 350 MB = 0.3 GB, but 0.1 GB of memory are free: end other programs",
        ),
        (
            {"per_actor": 1},
            SERVER,
            "500 client actors x 1 CPU = 500 CPU, but there are 64: lower clients.num_cpus (at most 0.128), "
            "or set clients.per_actor to auto, or to 8 or more",
        ),
        (
            {"actors": 3},
            LAPTOP,
            "3 client actors x 1 CPU = 3 CPU, but there are 2: lower clients.num_cpus (at most 0.6666), "
            "or set clients.actors to 2 or fewer",
        ),
        (
            {"num_cpus": 4},
            LAPTOP,
            "1 client actor x 4 CPU = 4 CPU, but there are 2: lower clients.num_cpus (at most 2)",
        ),
        (
            {"num_gpus": 1},
            LAPTOP,
            "1 client actor x 1 GPU = 1 GPU, but there are 0: lower clients.num_gpus (at most 0)",
        ),
        (
            {"actors": 3, "num_gpus": 0.5},
            Resources(8, 1, 24_000_000_000),
            "3 client actors x 0.5 GPU = 1.5 GPU, but there is 1: lower clients.num_gpus (at most 0.3333), "
            "or set clients.actors to 2 or fewer",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_arithmetic(settings: dict[str, Any], has: Resources, message: str) -> None:
    with pytest.raises(PlacementError) as error:
        place(ClientsConfig(**settings), n_clients=500, cohort=10, has=has)
    assert str(error.value) == message


def test_what_the_object_store_must_hold_is_known_before_the_run() -> None:
    sizes = Sizes(message_bytes=2_000_000, sum_bytes=4_000_000, memory_bytes=1_000_000)

    pool, hosts = Placement(4, None), Placement(50, 1)

    def at(*stores_bytes: int, placement: Placement = pool, cohort: int = 100) -> str | None:
        return fits_store(placement, sizes, 50, cohort, Resources(8, 0, 24_000_000_000, stores_bytes))

    assert at() is None, "Ray is not there yet"
    assert at(84_000_000) is None  # 2 + 2 x 4 x 4 and 50 x 1
    told = at(83_000_000)
    assert told is not None
    assert told.startswith("the memory of 50 clients x 1.00 MB = 50 MB will not fit into Ray's object store of 83 MB")
    assert at(34_000_000) is not None
    with pytest.raises(PlacementError) as error:
        at(33_000_000)
    assert str(error.value) == (
        "a message of 2.0 MB + 8 sums of 4.0 MB = 34.0 MB, but Ray's object store has 33.0 MB: start Ray with a "
        "larger --object-store-memory, or lower clients.actors"
    )
    assert at(18_000_000, 18_000_000) is not None, "two actors on each node"
    with pytest.raises(PlacementError, match=r"\+ 4 sums"):
        at(17_000_000, 90_000_000)
    with pytest.raises(PlacementError, match=r"\+ 3 sums"):
        at(13_000_000, cohort=3)
    assert at(14_000_000, cohort=3) is not None
    with pytest.raises(PlacementError, match=r"\+ 12 sums"):
        at(49_000_000, placement=hosts, cohort=12)
    assert at(50_000_000, placement=hosts, cohort=12) is not None
