"""What is true of every algorithm."""

import dataclasses
import inspect
import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

from clients.fleet import InProcessFleet
from cluster import forecast
from raysim import wire
from raysim.algorithms import ALGORITHMS
from raysim.point import Point
from raysim.problems import Quadratic
from tests.contracts.table import ALL_ROWS, PERSONAL, SIZES, TABLE, base_of, settings
from tests.play import DIGITS, QUADRATIC, experiment, server, settled, trajectory

NAMES = list(TABLE)
EVERY = list(ALL_ROWS)


def close(a: Point, b: Point, tolerance: float) -> bool:
    return (a.to(torch.float64) - b.to(torch.float64)).norm() <= tolerance


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_identical_clients_converge_to_the_known_saddle(name: str, tmp_path: Path) -> None:
    together = {"engine": "vectorized", "block": 8}  # a fraction of the time
    made = experiment(QUADRATIC, settings(name, "everyone"), data={"identical": True}, clients=together)
    assert isinstance(made.problem, Quadratic)
    z = settled(made, tmp_path, TABLE[name].rounds, step=1e-10)
    assert close(z, made.problem.known(made.shards), 1e-8)


@pytest.mark.parametrize("name", NAMES)
def test_traffic_is_the_published_number_of_floats(name: str, tmp_path: Path) -> None:
    made = experiment(QUADRATIC, settings(name))
    row, measure = TABLE[name], (4, 4, 3, 8)
    playing = server(made, tmp_path)
    for t in (0, 1, 2):
        before = playing.ledger.bytes_up, playing.ledger.bytes_down
        playing.play(t)
        up, down = playing.ledger.bytes_up - before[0], playing.ledger.bytes_down - before[1]
        assert up == row.up_in.get(t, row.up).bytes(*measure)
        assert down == row.down_in.get(t, row.down).bytes(*measure)


@pytest.mark.parametrize("name", PERSONAL)
def test_traffic_of_personal_methods_is_the_published_number_of_floats(name: str, tmp_path: Path) -> None:
    made = experiment(base_of(name), settings(name))
    u = made.problem.extractor_size
    row, measure = ALL_ROWS[name], (4, u, len(made.problem.init(0).x) - u, 8)
    playing = server(made, tmp_path)
    for t in (0, 1):
        before = playing.ledger.bytes_up, playing.ledger.bytes_down
        playing.play(t)
        assert playing.ledger.bytes_up - before[0] == row.up.bytes(*measure)
        assert playing.ledger.bytes_down - before[1] == row.down_in.get(t, row.down).bytes(*measure)


@pytest.mark.parametrize("which", ["settings", pytest.param("everyone", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", EVERY)
def test_planned_traffic_is_what_is_booked(name: str, which: str, tmp_path: Path) -> None:
    made = experiment(base_of(name), settings(name, which))
    playing = server(made, tmp_path)
    playing.play(0)
    before = playing.ledger.bytes_up, playing.ledger.bytes_down
    playing.play(1)
    traffic = forecast.rehearse(made)
    assert sum(p.bytes_up for p in traffic) == playing.ledger.bytes_up - before[0]
    assert sum(p.bytes_down for p in traffic) == playing.ledger.bytes_down - before[1]


@pytest.mark.parametrize("name", [*EVERY, "tests.toys:Remembering"])
def test_sizes_in_the_object_store_are_known_before_the_run(name: str, tmp_path: Path) -> None:
    algorithm = settings(name) if name in ALL_ROWS else {"name": name}
    made = experiment(base_of(name), algorithm, precision="float32")
    sizes = forecast.sizes(made)
    playing = server(made, tmp_path)
    moved: list[tuple[int, int]] = []

    def stored(tree: Any) -> int:
        return sum(leaf.nbytes for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor))

    class Weighing(InProcessFleet):
        def run(self, order, blocks, memory):  # type: ignore[no-untyped-def]
            total, kept = super().run(order, blocks, memory)
            moved.append((stored(order.message), stored(total.total)))
            return total, kept

    playing.fleet = Weighing(made.engine())
    playing.play(0)
    assert (sizes.message_bytes, sizes.sum_bytes) == tuple(map(max, zip(*moved, strict=True)))
    assert sizes.memory_bytes == max((wire.size_bytes(kept) for kept in playing.memory.values()), default=0)


@pytest.mark.parametrize("name", EVERY)
def test_a_seed_repeats_and_another_differs(name: str, tmp_path: Path) -> None:
    first, again, other = (
        trajectory(experiment(base_of(name), settings(name), precision="float32", seed=seed), tmp_path, 2)[-1]
        for seed in (0, 0, 1)
    )
    assert torch.equal(first.x, again.x)
    assert torch.equal(first.y, again.y)
    assert not torch.equal(first.x, other.x)


@pytest.mark.parametrize("name", EVERY)
def test_torch_and_numpy_global_generators_are_neither_used_nor_moved(name: str, tmp_path: Path) -> None:
    made = experiment(base_of(name), settings(name))
    torch.manual_seed(5)
    before = torch.get_rng_state()
    legacy = np.random.get_state()[1].copy()  # noqa: NPY002 - the global state is what is watched
    first = trajectory(made, tmp_path, 1)[-1]
    assert torch.equal(torch.get_rng_state(), before)
    assert (np.random.get_state()[1] == legacy).all()  # noqa: NPY002
    torch.manual_seed(6)
    assert torch.equal(trajectory(made, tmp_path, 1)[-1].x, first.x)


@pytest.mark.parametrize(
    ("name", "base"), [*itertools.product(NAMES, [QUADRATIC, DIGITS]), *((name, base_of(name)) for name in PERSONAL)]
)
def test_float32_agrees_with_float64(name: str, base: dict, tmp_path: Path) -> None:
    a, b = (trajectory(experiment(base, settings(name), precision=p), tmp_path, 2)[-1] for p in ("float32", "float64"))
    assert a.x.dtype == torch.float32
    torch.testing.assert_close(a.x.double(), b.x, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(a.y.double(), b.y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", EVERY)
def test_it_is_a_frozen_record_whose_file_names_its_source(name: str) -> None:
    cls = ALGORITHMS.entries[name]
    made = ALGORITHMS.build(name, ALL_ROWS[name].settings, clients=8, seed=0, **SIZES)
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.K = 3
    page = inspect.getmodule(cls).__doc__ or ""
    assert re.search(r"\b(19|20)\d\d\b", page), "a year"
    assert re.search(r"[Aa]lgorithms? \d|section (A\.)?\d", page), "the algorithm's number or section"
    assert "| symbol | name |" in page
    described = "\n".join(vars(base).get("__doc__") or "" for base in cls.__mro__)
    for field in dataclasses.fields(cls):
        assert re.search(rf"\b{field.name}\b", described), f"{field.name} is documented"


@pytest.mark.parametrize("name", EVERY)
def test_phases_are_plain_values(name: str) -> None:
    made = ALGORITHMS.build(name, ALL_ROWS[name].settings, clients=8, seed=0, **SIZES)
    assert made.phases(3) == made.phases(3)
    assert all(hash(phase) == hash(twin) for phase, twin in zip(made.phases(3), made.phases(3), strict=True))
