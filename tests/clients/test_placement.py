"""Where clients go, and the arithmetic shown where they do not fit."""

from collections import Counter
from typing import Any

import pytest
from pydantic import ValidationError

from clients.placement import ACTOR_BYTES, ClientsConfig, Node, Placement, Sizes, fits_store, place
from raysim.errors import PlacementError

LAPTOP = [Node(cpus=2, gpus=0, memory_bytes=24_000_000_000)]
SERVER = [Node(cpus=64, gpus=4, memory_bytes=256_000_000_000)]


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
        ({}, 10, [Node(8, 0, 3 * ACTOR_BYTES + 1)], 3, None),  # memory caps
        ({"actors": 2}, 10, LAPTOP, 2, None),
        ({"actors": 20, "num_cpus": 0.1}, 10, LAPTOP, 20, None),  # twenty tenths are two, whatever floats say
        ({"per_actor": 1, "num_cpus": 0.1}, 10, LAPTOP, 20, 1),
        ({"per_actor": 10}, 10, LAPTOP, 2, 10),
        ({"per_actor": 19}, 10, LAPTOP, 2, 19),
        ({"per_actor": 100}, 10, LAPTOP, 1, 100),
    ],
)
def test_placements(settings: dict[str, Any], cohort: int, has: list[Node], actors: int, per_actor: int | None) -> None:
    placement = place(ClientsConfig(**settings), n_clients=20, cohort=cohort, nodes=has)
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
            [Node(2, 0, 100_000_000)],
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
            [Node(8, 1, 24_000_000_000)],
            "3 client actors x 0.5 GPU = 1.5 GPU, but there is 1: lower clients.num_gpus (at most 0.3333), "
            "or set clients.actors to 2 or fewer",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_arithmetic(settings: dict[str, Any], has: list[Node], message: str) -> None:
    with pytest.raises(PlacementError) as error:
        place(ClientsConfig(**settings), n_clients=500, cohort=10, nodes=has)
    assert str(error.value) == message


def test_what_the_object_store_must_hold_is_known_before_the_run() -> None:
    sizes = Sizes(message_bytes=2_000_000, sum_bytes=4_000_000, memory_bytes=1_000_000)

    pool, hosts = Placement(4, None), Placement(50, 1)

    def at(*stores_bytes: int, placement: Placement = pool, cohort: int = 100) -> str | None:
        nodes = [Node(8, 0, 24_000_000_000, store_bytes) for store_bytes in stores_bytes or (None,)]
        return fits_store(placement, sizes, 50, cohort, nodes)

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


GB = 1_000_000_000
FOUR = [Node(4, 0, 24 * GB, name="a"), Node(16, 0, 64 * GB, name="b"), Node(4, 0, 24 * GB, name="c")]


@pytest.mark.parametrize(
    ("settings", "nodes", "on"),
    [
        ({}, FOUR, {"a": 4, "b": 16, "c": 4}),
        ({"actors": 12}, FOUR, {"a": 2, "b": 8, "c": 2}),
        ({"actors": 1}, FOUR, {"b": 1}),
        ({"per_actor": 10, "num_cpus": 2}, FOUR, {"a": 2, "b": 7, "c": 1}),  # ten of twelve places
        # Three halves of a processor: two such nodes have room for one actor each, not for three together.
        ({}, [Node(1.5, 0, 24 * GB, name="a"), Node(1.5, 0, 24 * GB, name="b")], {"a": 1, "b": 1}),
        # A fraction is one of a single GPU: three fit on each, although six would into 1.9 of two.
        ({"num_gpus": 0.3, "num_cpus": 0.1}, [Node(4, 2, 24 * GB, name="a")], {"a": 6}),
        ({"num_gpus": 0.6, "num_cpus": 0.1}, [Node(4, 3, 24 * GB, name="a")], {"a": 3}),
        ({"num_gpus": 2}, [Node(8, 4, 24 * GB, name="a"), Node(8, 0, 24 * GB, name="b")], {"a": 2}),
        (
            {"resources": {"large": 0.5}},
            [Node(8, 0, 24 * GB, None, {"large": 1.0}, "a"), Node(8, 0, 24 * GB, name="b")],
            {"a": 2},
        ),
        ({}, [Node(64, 0, 2 * ACTOR_BYTES, name="a"), Node(4, 0, 24 * GB, name="b")], {"a": 2, "b": 4}),
    ],
)
def test_every_node_gets_its_share(settings: dict[str, Any], nodes: list[Node], on: dict[str, int]) -> None:
    placement = place(ClientsConfig(**settings), n_clients=100, cohort=100, nodes=nodes)
    assert Counter(placement.nodes) == on
    assert placement.actors == sum(on.values())


def test_what_fits_in_all_but_on_no_node_is_refused() -> None:
    halves = [Node(1.5, 0, 24 * GB, name=name) for name in "ab"]
    with pytest.raises(PlacementError) as error:
        place(ClientsConfig(actors=3), n_clients=500, cohort=10, nodes=halves)
    assert str(error.value) == (
        "3 client actors of 1 CPU each, but the 2 nodes have room for 2 (2 with room for 1): "
        "set clients.actors to 2 or fewer"
    )
    assert error.value.actors == 3
    with pytest.raises(PlacementError) as error:
        place(ClientsConfig(resources={"large": 1.0}), n_clients=500, cohort=10, nodes=halves)
    assert str(error.value) == (
        "1 client actor x 1 large = 1 large, but there are 0: lower clients.resources.large (at most 0)"
    )


def test_a_placement_says_where_it_is() -> None:
    assert Placement(3, None, ("a", "a", "a")).words == "3, each for any client"
    assert Placement(4, 5, ("a", "b", "b", "c")).words == (
        "4, each for 5 of the clients, on 3 nodes (1 with 2, 2 with 1)"
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"num_gpus": 1.5}, "whole number"), ({"resources": {"CPU": 1.0}}, "num_cpus"), ({"resources": {"a": 0.0}}, "a")],
)
def test_what_ray_would_not_reserve_is_no_setting(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ClientsConfig(**settings)
