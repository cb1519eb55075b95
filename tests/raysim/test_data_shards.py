"""Shards: built once and whole, mapped without a copy, safe from code that changes tensors in place."""

import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from raysim.data import (
    IID,
    MNIST,
    ByLabel,
    ConsecutiveClasses,
    Digits,
    FashionMNIST,
    Natural,
    Parquet,
    Partitioner,
    Quadratic,
    Shards,
    Source,
    Splits,
    Table,
    build,
)
from raysim.errors import ConfigError, DataError


@dataclass(frozen=True)
class Given(Source):
    """Rows numbered 0, 1, ... by their first feature."""

    labels: tuple[int, ...]
    clients: tuple[str, ...] | None = None
    width: int = 2

    def load(self, seed: int) -> Splits:
        rows = len(self.labels)
        features = np.arange(rows, dtype=np.float32)[:, None] * np.ones(self.width, dtype=np.float32)
        owners = None if self.clients is None else np.array(self.clients)
        train = Table(features, np.array(self.labels, dtype=np.int64), owners)
        return Splits(train, train.take(np.arange(0)), classes=5, mul=2.0, add=1.0)

    def fingerprint(self) -> str:
        return ""


@dataclass(frozen=True)
class Fixed(Partitioner):
    """Rows to the clients written down."""

    owners: tuple[int, ...]
    clients: int

    def n_clients(self, table: Table) -> int:
        return self.clients

    def assign(self, table: Table, seed: int) -> np.ndarray:
        return np.array(self.owners)


@dataclass(frozen=True)
class Halves(Given):
    """The even rows as train, the odd ones as test."""

    def load(self, seed: int) -> Splits:
        train = super().load(seed).train
        rows = np.arange(len(train))
        return Splits(train.take(rows[::2]), train.take(rows[1::2]), classes=5)


@pytest.fixture
def digits(tmp_path: Path) -> Shards:
    return Shards.open(build(Digits(), ByLabel(clients=20), seed=0, cache=tmp_path))


def test_shards_hold_what_was_dealt(digits: Shards) -> None:
    splits = Digits().load(seed=0)
    owner = ByLabel(clients=20).assign(splits.train, seed=0)
    assert (digits.shape, digits.classes, digits.n_clients) == ((1, 8, 8), 10, 20)
    assert digits.offsets_N1.shape == (21,)
    np.testing.assert_array_equal(digits.rows_N, np.bincount(owner))
    for client in range(20):
        features, labels = digits.shard(client)
        np.testing.assert_array_equal(features, splits.train.features[owner == client])
        np.testing.assert_array_equal(labels, splits.train.labels[owner == client])
    np.testing.assert_array_equal(digits.test.features, splits.test.features)
    np.testing.assert_array_equal(digits.class_counts(), np.bincount(splits.train.labels))


def test_a_shard_is_a_view_of_the_mapped_file(tmp_path: Path) -> None:
    folder = build(Given(labels=(0,) * 5000, width=500), IID(clients=4), seed=0, cache=tmp_path)  # 10 MB
    before = pa.total_allocated_bytes()
    shards = Shards.open(folder)
    features, labels = shards.shard(2)
    assert pa.total_allocated_bytes() - before < 100_000
    assert np.shares_memory(features, shards.train.features)
    assert np.shares_memory(labels, shards.train.labels)
    for view in (features, labels, shards.train.features, shards.test.features):
        assert not view.flags.writeable
        assert not view.flags.owndata
    if Path("/proc/self/maps").exists():
        start = shards.train.features.__array_interface__["data"][0]
        mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith("train.arrow")]
        spans = [tuple(int(end, 16) for end in line.split()[0].split("-")) for line in mapped]
        assert any(low <= start < high for low, high in spans)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_inputs_are_scaled_and_safe_to_change(digits: Shards, dtype: torch.dtype) -> None:
    rows = np.array([3, 1, 3])
    original = digits.train.features.copy()
    inputs, labels = digits.inputs(rows, dtype=dtype), digits.labels(rows)
    assert inputs.dtype == dtype
    assert labels.dtype == torch.int64
    np.testing.assert_array_equal(inputs.numpy(), original[rows] / 8.0 - 1.0)
    inputs += 100
    labels += 100
    np.testing.assert_array_equal(digits.train.features, original)
    np.testing.assert_array_equal(digits.inputs(rows).numpy(), original[rows] / 8.0 - 1.0)
    np.testing.assert_array_equal(digits.labels(rows).numpy(), digits.train.labels[rows])


def test_float_inputs_are_fresh_too(tmp_path: Path) -> None:
    shards = Shards.open(build(Given(labels=(0, 1, 2)), IID(clients=1), seed=0, cache=tmp_path))
    rows = np.array([[0, 1], [2, 2]])
    shards.inputs(rows).zero_()
    np.testing.assert_array_equal(shards.inputs(rows)[..., 0].numpy(), [[1, 3], [5, 5]])
    assert shards.labels(rows).shape == (2, 2)
    assert shards.inputs(np.arange(0), "test").shape == (0, 2)
    assert shards.labels(np.arange(0), "test").shape == (0,)


def test_empty_clients_are_kept(tmp_path: Path) -> None:
    owners = Fixed(owners=(3, 1, 3, 1, 3), clients=6)
    shards = Shards.open(build(Given(labels=(0, 1, 2, 1, 0)), owners, seed=0, cache=tmp_path))
    np.testing.assert_array_equal(shards.rows_N, [0, 2, 0, 3, 0, 0])
    assert len(shards.shard(0)[0]) == len(shards.shard(5)[1]) == 0
    np.testing.assert_array_equal(shards.shard(3)[0][:, 0], [0, 2, 4])  # in the order of the source
    assert shards.single_class_clients() == 1
    np.testing.assert_array_equal(shards.class_counts(), [2, 2, 1, 0, 0])
    for client in (-1, 6):
        with pytest.raises(IndexError, match=f"no client {client}"):
            shards.shard(client)


def test_single_class_clients_agrees_with_counting(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    source = Given(labels=tuple(rng.integers(0, 2, 300).tolist()))
    shards = Shards.open(build(source, IID(clients=130), seed=0, cache=tmp_path))
    assert shards.single_class_clients() == sum(len(np.unique(shards.shard(i)[1])) == 1 for i in range(130))


def test_natural_clients_with_names(tmp_path: Path) -> None:
    source = Given(labels=(0, 1, 2, 3), clients=("zoe", "ann", "zoe", "bob"))
    shards = Shards.open(build(source, Natural(), seed=0, cache=tmp_path))
    assert [shards.shard(i)[0][:, 0].tolist() for i in range(3)] == [[1], [3], [0, 2]]


def test_every_client_empty_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="every client has 0 rows"):
        build(Given(labels=()), IID(clients=3), seed=0, cache=tmp_path)


@pytest.mark.parametrize("owners", [(0, 1), (0, 1, 2), (0, 1, -1), (0.0, 1.0, 1.0)])
def test_a_partitioner_that_breaks_its_promise_is_named(tmp_path: Path, owners: tuple) -> None:
    with pytest.raises(DataError, match=r"Fixed\.assign must give each of the 3 rows a client from 0 to 1"):
        build(Given(labels=(0, 1, 2)), Fixed(owners=owners, clients=2), seed=0, cache=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_source_that_is_no_dataclass_is_refused(tmp_path: Path) -> None:
    class Loose(Source):
        def load(self, seed: int) -> Splits:
            raise NotImplementedError

        def fingerprint(self) -> str:
            return ""

    with pytest.raises(ConfigError, match="Loose is no dataclass"):
        build(Loose(), IID(clients=3), seed=0, cache=tmp_path)


def test_the_cache_is_reused_and_every_part_of_its_key_counts(tmp_path: Path) -> None:
    folder = build(Digits(), IID(clients=3), seed=0, cache=tmp_path)
    written = (folder / "train.arrow").stat().st_mtime_ns
    assert build(Digits(), IID(clients=3), seed=0, cache=tmp_path) == folder
    assert (folder / "train.arrow").stat().st_mtime_ns == written
    others = {
        build(Digits(test_fraction=0.3), IID(clients=3), seed=0, cache=tmp_path),
        build(Digits(), IID(clients=4), seed=0, cache=tmp_path),
        build(Digits(), ByLabel(clients=3), seed=0, cache=tmp_path),
        build(Digits(), IID(clients=3), seed=1, cache=tmp_path),
    }
    assert len(others | {folder}) == 5
    assert sorted(tmp_path.iterdir()) == sorted(others | {folder})  # and nothing unfinished


def test_a_changed_file_is_built_anew(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": [1.0, 2.0], "label": [0, 1]}), file)
    source = Parquet(train=str(file), test_fraction=0)
    first = build(source, ByLabel(clients=1), seed=0, cache=tmp_path / "cache")
    pq.write_table(pa.table({"x": [3.0, 4.0], "label": [0, 1]}), file)
    os.utime(file, ns=(0, file.stat().st_mtime_ns + 1_000_000))  # in case the clock of the file system is coarse
    second = build(source, ByLabel(clients=1), seed=0, cache=tmp_path / "cache")
    assert first != second
    np.testing.assert_array_equal(Shards.open(second).train.features, [[3], [4]])


def test_a_race_to_build_has_no_loser(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        folders = set(pool.map(lambda _: build(Quadratic(clients=50), Natural(), seed=0, cache=tmp_path), range(8)))
    assert list(tmp_path.iterdir()) == list(folders)
    assert Shards.open(folders.pop()).n_clients == 50


def test_a_lost_race_uses_the_winners_folder(tmp_path: Path) -> None:
    is_overtaken = iter([True, False])
    written: list[int] = []

    @dataclass(frozen=True)
    class Overtaken(Given):
        """While it loads for the first time, the same is built elsewhere."""

        def load(self, seed: int) -> Splits:
            if next(is_overtaken):
                winner = build(self, IID(clients=1), seed, cache=tmp_path)
                written.append((winner / "train.arrow").stat().st_ino)
            return super().load(seed)

    folder = build(Overtaken(labels=(0, 1)), IID(clients=1), seed=0, cache=tmp_path)
    assert [(folder / "train.arrow").stat().st_ino] == written
    assert list(tmp_path.iterdir()) == [folder]


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(DataError, match="cannot write the data cache"):
        build(Given(labels=(0,)), IID(clients=1), seed=0, cache=tmp_path / "cache")


def test_a_failed_build_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match="No space left on device"):
        build(Given(labels=(0,)), IID(clients=1), seed=0, cache=tmp_path)
    assert not list(tmp_path.iterdir())


def test_shards_pickle_as_their_folder(digits: Shards) -> None:
    data = pickle.dumps(digits)
    assert len(data) < 1000
    np.testing.assert_array_equal(pickle.loads(data).train.features, digits.train.features)


@pytest.mark.parametrize("name", ["train.arrow", "test.arrow", "offsets.arrow"])
def test_damaged_files_are_named(digits: Shards, name: str) -> None:
    path = digits.folder / name
    data = path.read_bytes()
    other = pa.table({"features": [1]})
    for damaged in (None, b"", b"hello", data[: len(data) // 2], data[:-20], data[:-200] + bytes(200), other):
        path.unlink()  # the open fixture keeps the old file mapped
        if isinstance(damaged, bytes):
            path.write_bytes(damaged)
        elif damaged is not None:
            with path.open("wb") as file, pa.ipc.new_file(file, damaged.schema) as writer:
                writer.write_table(damaged)
        with pytest.raises(DataError, match="delete the folder") as error:
            Shards.open(digits.folder)
        assert str(path) in str(error.value)
        path.write_bytes(data)
    assert Shards.open(digits.folder).n_clients == 20


@pytest.mark.parametrize("name", ["train.arrow", "offsets.arrow"])
def test_no_single_damaged_byte_crashes_the_process(tmp_path: Path, name: str) -> None:
    folder = build(Given(labels=(0, 1, 2)), IID(clients=2), seed=0, cache=tmp_path)
    data = (folder / name).read_bytes()
    refused = 0
    for place in range(len(data)):
        (folder / name).unlink()
        (folder / name).write_bytes(data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :])
        try:
            Shards.open(folder).inputs(np.arange(3))
        except DataError:
            refused += 1
    assert refused > len(data) / 3  # the rest is padding, and values that may be any


def test_files_of_two_builds_do_not_mix(tmp_path: Path) -> None:
    a = build(Given(labels=(0, 1)), IID(clients=2), seed=0, cache=tmp_path)
    b = build(Given(labels=(0, 1)), IID(clients=2), seed=1, cache=tmp_path)
    (a / "offsets.arrow").write_bytes((b / "offsets.arrow").read_bytes())
    with pytest.raises(DataError, match="do not belong together"):
        Shards.open(a)


@pytest.mark.data
@pytest.mark.skipif("RAYSIM_DATA_ROOT" not in os.environ, reason="RAYSIM_DATA_ROOT is not set")
def test_mnist_by_label(tmp_path: Path) -> None:
    shards = Shards.open(build(MNIST(), ByLabel(clients=500), seed=0, cache=tmp_path))
    np.testing.assert_array_equal(shards.rows_N, np.full(500, 120))
    assert shards.single_class_clients() == 491
    inputs = shards.inputs(np.arange(120))
    assert (inputs.shape, inputs.min(), inputs.max()) == ((120, 1, 28, 28), -1, 1)


def test_clients_with_tests_of_their_own_share_all_rows(tmp_path: Path) -> None:
    owners = ("a",) * 10 + ("b",) * 7 + ("c",) * 1
    source = Halves(labels=tuple(range(5)) * 3 + (0, 1, 2), clients=owners)
    made = [Shards.open(build(source, Natural(test_fraction=0.3), seed, tmp_path)) for seed in (0, 1)]
    for shards in made:
        assert shards.test_offsets_N1 is not None
        assert shards.rows_N.tolist() == [7, 5, 1]
        assert np.diff(shards.test_offsets_N1).tolist() == [3, 2, 0]
        for client, rows in enumerate((range(10), range(10, 17), range(17, 18))):
            train, _ = shards.shard(client)
            first, last = shards.test_offsets_N1[client : client + 2]
            own = [*train[:, 0].tolist(), *shards.test.features[first:last, 0].tolist()]
            assert sorted(own) == list(rows)
    assert made[0].content != made[1].content
    plain = Shards.open(build(source, Natural(), 0, tmp_path))
    assert plain.test_offsets_N1 is None
    assert (len(plain.train), len(plain.test)) == (9, 9)
    assert pickle.loads(pickle.dumps(made[0])).test_offsets_N1.tolist() == [0, 3, 5, 5]


@pytest.mark.data
def test_the_clients_of_fedreco(data_root: Path, tmp_path: Path) -> None:
    """Table 4 of its appendix: 49,000 and 21,000 rows, 50 clients with 1,400 of 4 classes each."""
    partitioner = ConsecutiveClasses(clients=50, classes=4, test_fraction=0.3)
    shards = Shards.open(build(FashionMNIST(root=str(data_root)), partitioner, 0, tmp_path))
    assert (len(shards.train), len(shards.test)) == (49_000, 21_000)
    assert set(shards.rows_N.tolist()) == {980}
    assert set(np.diff(shards.test_offsets_N1).tolist()) == {420}
    for client in range(50):
        mine = [shards.shard(client)[1], shards.test.labels[420 * client : 420 * client + 420]]
        assert np.unique(mine[0]).tolist() == sorted((client + i) % 10 for i in range(4))
        assert np.bincount(np.concatenate(mine)).max() == 350
