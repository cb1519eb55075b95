"""Partitions: each row once, the sizes and classes promised, and the cases that broke other simulators."""

import numpy as np
import pytest

from raysim.data import (
    IID,
    PARTITIONERS,
    ByLabel,
    ClassesPerClient,
    ConsecutiveClasses,
    Dirichlet,
    Natural,
    Partitioner,
    QuantitySkew,
    Stride,
    Table,
)
from raysim.errors import ConfigError

RANDOM = [
    IID(clients=7),
    ClassesPerClient(clients=7, classes=3),
    ConsecutiveClasses(clients=7, classes=2),
    Dirichlet(clients=7, alpha=0.5),
    QuantitySkew(clients=7, alpha=0.5),
]
ALL = [ByLabel(clients=7), Stride(clients=7), Natural(), *RANDOM]


def table(labels: list[int] | np.ndarray, clients: list[str] | None = None) -> Table:
    labels = np.asarray(labels, dtype=np.int64)
    features = np.zeros((len(labels), 1), dtype=np.uint8)
    return Table(features, labels, None if clients is None else np.array(clients, dtype=object))


def mixed(rows: int = 200, classes: int = 5) -> Table:
    rng = np.random.default_rng(0)
    return table(rng.integers(0, classes, rows), [f"u{i}" for i in rng.integers(0, 9, rows)])


def classes_held(data: Table, owner: np.ndarray) -> list[int]:
    return [len(np.unique(data.labels[owner == client])) for client in np.unique(owner)]


@pytest.mark.parametrize("partitioner", ALL, ids=lambda p: type(p).__name__)
def test_every_row_has_one_client_and_the_seed_alone_decides(partitioner: Partitioner) -> None:
    data = mixed()
    owner = partitioner.assign(data, seed=3)
    assert owner.shape == (200,)
    assert owner.dtype == np.int64
    assert owner.min() >= 0
    assert owner.max() < partitioner.n_clients(data)
    np.testing.assert_array_equal(owner, partitioner.assign(data, seed=3))
    assert (partitioner in RANDOM) == bool((owner != partitioner.assign(data, seed=4)).any())


FEW = [p for p in RANDOM if not isinstance(p, ConsecutiveClasses)]


@pytest.mark.parametrize("partitioner", ALL[:1] + FEW, ids=lambda p: type(p).__name__)
@pytest.mark.parametrize(("rows", "clients"), [(60, 100), (1, 5), (0, 3)])
def test_more_clients_than_rows(partitioner: Partitioner, rows: int, clients: int) -> None:
    settings = {name: getattr(partitioner, name) for name in ("alpha", "classes") if hasattr(partitioner, name)}
    few = type(partitioner)(clients=clients, **settings)  # type: ignore[call-arg]
    data = table(np.arange(rows) % 3)
    owner = few.assign(data, seed=0)
    assert few.n_clients(data) == clients
    assert owner.shape == (rows,)
    assert ((owner >= 0) & (owner < clients)).all()


def test_by_label_is_stable_and_cuts_as_array_split() -> None:
    owner = ByLabel(clients=3).assign(table([1, 0, 1, 0, 2, 0, 1]), seed=0)
    # Sorted: rows 1 3 5 (class 0), 0 2 6 (class 1), 4 (class 2), cut into 3, 2 and 2.
    np.testing.assert_array_equal(owner, [1, 0, 1, 0, 2, 0, 2])


def test_stride_deals_the_sorted_rows_in_turn() -> None:
    owner = Stride(clients=3).assign(table([1, 0, 1, 0, 2, 0, 1]), seed=0)
    # Sorted: rows 1 3 5 0 2 6 4 go to clients 0 1 2 0 1 2 0.
    np.testing.assert_array_equal(owner, [0, 0, 1, 1, 0, 2, 2])


def test_iid_sizes_differ_by_one_at_most() -> None:
    assert sorted(np.bincount(IID(clients=7).assign(mixed(), seed=0))) == [28] * 3 + [29] * 4


@pytest.mark.parametrize("classes", [1, 2, 3])
def test_classes_per_client_is_a_bound_though_class_sizes_are_uneven(classes: int) -> None:
    data = table(np.repeat(np.arange(5), [31, 7, 2, 97, 63]))
    owner = ClassesPerClient(clients=20, classes=classes).assign(data, seed=1)
    assert max(classes_held(data, owner)) == classes


def test_classes_per_client_makes_equal_shards_where_class_sizes_allow() -> None:
    data = table(np.arange(600) % 10)  # 10 classes of 60 rows: 60 pieces of 10
    owner = ClassesPerClient(clients=30, classes=2).assign(data, seed=1)
    np.testing.assert_array_equal(np.bincount(owner), np.full(30, 20))


def test_classes_per_client_that_cannot_hold_all_classes_is_refused() -> None:
    with pytest.raises(ConfigError, match="2 clients with 2 classes each cannot hold the 5 classes") as error:
        ClassesPerClient(clients=2, classes=2).assign(mixed(), seed=0)
    assert error.value.key == "partition.classes"


@pytest.mark.parametrize("alpha", [1e-6, 0.01, 1e8])
def test_dirichlet_finishes_with_a_rare_class(alpha: float) -> None:
    data = table([0] * 500 + [1] * 2)
    for seed in range(20):
        owner = Dirichlet(clients=50, alpha=alpha).assign(data, seed)
        assert 0 <= owner.min() <= owner.max() < 50


def test_consecutive_classes_are_held_by_the_clients_that_follow_each_other() -> None:
    data = table(np.repeat(np.arange(10), 60))
    owner = ConsecutiveClasses(clients=20, classes=4).assign(data, seed=0)
    for client in range(20):
        held, counts = np.unique(data.labels[owner == client], return_counts=True)
        assert held.tolist() == sorted((client + i) % 10 for i in range(4))
        assert set(counts.tolist()) <= {7, 8}, "60 rows among 8 holders"
    assert np.bincount(owner).sum() == 600


@pytest.mark.parametrize(("clients", "classes", "key"), [(20, 11, "classes"), (6, 4, "clients")])
def test_consecutive_classes_that_cannot_be_held_are_refused(clients: int, classes: int, key: str) -> None:
    with pytest.raises(ConfigError, match=f"partition.{key}"):
        ConsecutiveClasses(clients=clients, classes=classes).assign(table(np.arange(10)), seed=0)


def test_dirichlet_alpha_sets_the_skew() -> None:
    data = table(np.arange(10_000) % 10)
    even = Dirichlet(clients=10, alpha=1e6).assign(data, seed=0)
    np.testing.assert_allclose(np.bincount(even), 1000, atol=30)
    uneven = Dirichlet(clients=10, alpha=1e-6).assign(data, seed=0)
    assert sum(classes_held(data, uneven)) == 10  # each class is with one client


def test_dirichlet_proportions_have_the_right_moments() -> None:
    # The share of one of n clients has mean 1/n and variance (1/n)(1 - 1/n)/(n alpha + 1).
    data, n, alpha = table([0] * 1000), 5, 0.3
    shares = [
        np.bincount(Dirichlet(clients=n, alpha=alpha).assign(data, seed), minlength=n) / 1000 for seed in range(2000)
    ]
    np.testing.assert_allclose(np.mean(shares, axis=0), 1 / n, atol=0.03)
    np.testing.assert_allclose(np.var(shares, axis=0), 0.2 * 0.8 / (n * alpha + 1), rtol=0.15)


def test_quantity_skew_leaves_labels_alone() -> None:
    data = table(np.arange(10_000) % 2)
    owner = QuantitySkew(clients=5, alpha=1.0).assign(data, seed=0)
    sizes = np.bincount(owner, minlength=5)
    assert sizes.max() > 2 * sizes.min()
    assert np.mean(data.labels[owner == sizes.argmax()]) == pytest.approx(0.5, abs=0.05)


def test_natural_numbers_sorted_ids() -> None:
    data = table([0, 0, 1, 1], ["zoe", "ann", "zoe", "bob"])
    assert Natural().n_clients(data) == 3
    np.testing.assert_array_equal(Natural().assign(data, seed=0), [2, 0, 2, 1])


def test_natural_without_a_client_column_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"data\.client") as error:
        Natural().assign(table([0, 1]), seed=0)
    assert error.value.key == "partition.name"


@pytest.mark.parametrize(
    ("name", "settings", "key"),
    [
        ("by_label", {"clients": 0}, "partition.clients"),
        ("iid", {"clients": "5"}, "partition.clients"),
        ("iid", {"clients": 5, "clinets": 5}, "partition.clinets"),
        ("dirichlet", {"clients": 5, "alpha": -0.1}, "partition.alpha"),
        ("dirichlet", {"clients": 5}, "partition.alpha"),
        ("natural", {"min_rows": 5}, "partition.min_rows"),
    ],
)
def test_bad_settings_are_named(name: str, settings: dict, key: str) -> None:
    with pytest.raises(ConfigError) as error:
        PARTITIONERS.build(name, settings)
    assert error.value.key == key
