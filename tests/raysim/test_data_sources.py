"""Sources: known answers on data made here, and errors that name the file, column and row."""

import gzip
import io
import os
import pickle
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torchvision

from raysim.data import (
    CIFAR10,
    CIFAR100,
    MNIST,
    SOURCES,
    STL10,
    ByLabel,
    Digits,
    FashionMNIST,
    ImageFolder,
    LibSVM,
    Natural,
    Parquet,
    Quadratic,
    Splits,
    Table,
    unpack_quadratic,
)
from raysim.errors import ConfigError, DataError


def png(pixels: np.ndarray) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def image_file(path: Path, images: list[np.ndarray | bytes | None], labels: list, column: str = "img") -> str:
    cells = [{"bytes": png(i) if isinstance(i, np.ndarray) else i, "path": None} for i in images]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    pq.write_table(pa.table({column: pa.array(cells, kind), "label": labels}), path)
    return str(path)


def column_file(path: Path, **columns: object) -> str:
    pq.write_table(pa.table(columns), path)
    return str(path)


def pixels(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


# Tables


def test_a_feature_that_is_not_finite_is_named() -> None:
    features = np.zeros((4, 3), dtype=np.float32)
    features[2, 1] = np.nan
    with pytest.raises(DataError, match=r"row 2, feature 1 .* is nan"):
        Table(features, np.zeros(4, dtype=np.int64))
    with pytest.raises(DataError, match=r"row 2, feature \(1, 0\) .* is nan"):
        Table(features[..., None], np.zeros(4, dtype=np.int64))


@pytest.mark.parametrize(
    ("features", "labels", "message"),
    [
        (np.zeros((3, 2)), np.zeros(3, np.int64), "convert them to uint8 or float32"),
        (np.zeros((3, 2), np.uint8), np.zeros(2, np.int64), "there are 3 rows"),
        (np.zeros((3, 2), np.uint8), np.zeros(3), "labels are float64"),
        (np.zeros((3, 2), np.uint8), np.array([0, 1, -1]), "row 2 has label -1"),
        (np.zeros(3, np.uint8), np.zeros(3, np.int64), "one value or more a row"),
        (np.zeros((3, 0), np.uint8), np.zeros(3, np.int64), "one value or more a row"),
    ],
)
def test_bad_tables_are_refused(features: np.ndarray, labels: np.ndarray, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Table(features, labels)


def test_splits_must_fit_each_other() -> None:
    narrow = Table(np.zeros((3, 2), np.uint8), np.array([0, 1, 2]))
    wide = Table(np.zeros((3, 4), np.uint8), np.array([0, 1, 2]))
    with pytest.raises(DataError, match="both must have the same features"):
        Splits(narrow, wide, classes=3)
    with pytest.raises(DataError, match="train row 2 has label 2, but there are 2 classes"):
        Splits(narrow, narrow, classes=2)


# Digits, MNIST and their like


def test_digits() -> None:
    splits = Digits(test_fraction=0.2).load(seed=0)
    assert (len(splits.train), len(splits.test)) == (1438, 359)
    assert splits.train.shape == (1, 8, 8)
    assert splits.train.features.dtype == np.uint8
    assert (splits.train.features.min(), splits.train.features.max()) == (0, 16)
    assert (0 * splits.mul + splits.add, 16 * splits.mul + splits.add) == (-1, 1)
    assert len(Digits(test_fraction=0).load(seed=0).test) == 0


def test_thinned_classes_keep_their_share_of_training_rows_and_no_test_rows_are_lost() -> None:
    whole, thinned = (Digits(**settings).load(seed=0) for settings in ({}, {"thin": (0, 3), "thin_keep": 0.2}))
    before, after = (np.bincount(splits.train.labels, minlength=10) for splits in (whole, thinned))
    assert after[[0, 3]].tolist() == [round(0.2 * before[0]), round(0.2 * before[3])]
    assert np.delete(after, [0, 3]).tolist() == np.delete(before, [0, 3]).tolist()
    assert (thinned.test.labels == whole.test.labels).all()
    with pytest.raises(ConfigError, match=r"data.thin: class 10 is not in the data"):
        Digits(thin=(10,)).load(seed=0)


@pytest.mark.parametrize("share", [0.01, 0.05, 0.1, 0.2])
def test_thinned_classes_can_be_given_a_share_of_what_stays(share: float) -> None:
    half = (0, 1, 2, 3, 4)
    whole, thinned = (Digits(**settings).load(seed=0) for settings in ({}, {"thin": half, "thin_share": share}))
    before, after = (np.bincount(splits.train.labels, minlength=10) for splits in (whole, thinned))
    assert after[5:].tolist() == before[5:].tolist()
    rest, own = int(before[5:].sum()), int(after[:5].sum())
    exact = Fraction(str(share))
    assert Fraction(own, own + rest) <= exact < Fraction(own + 1, own + 1 + rest), "one more would be too many"
    assert (after[:5] > 0).sum() >= 3, "drawn from all of them"
    assert (thinned.test.labels == whole.test.labels).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"thin_share": 0.9}, r"data.thin_share: it takes [\d,]+ rows of the thinned classes .*there are \d+"),
        ({"thin_share": 0.0001}, r"data.thin_share: it takes 0 rows"),
        ({"thin_share": 0.1, "thin_keep": 0.5}, r"data.thin_share: cannot stand beside data.thin_keep"),
        (
            {"thin": (), "thin_share": 0.1},
            r"data.thin_share: is of the classes in data.thin, and there are none",
        ),
        (
            {"thin": (), "thin_keep": 0.1},
            r"data.thin_keep: is of the classes in data.thin, and there are none",
        ),
    ],
)
def test_thinning_that_cannot_be_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Digits(**{"thin": (0, 1), **settings}).load(seed=0)


@pytest.mark.parametrize(
    ("negatives", "share", "positives"),
    [(30_000, 0.1, 3_333), (25_000, 0.1, 2_777), (2_500, 0.1, 277), (10_016, 0.1, 1_112), (30_000, 0.01, 303)],
    ids=["Fashion-MNIST", "CIFAR", "STL-10", "cats and dogs", "a hundredth"],
)
def test_the_counts_of_zhang_et_al_table_4(negatives: int, share: float, positives: int, tmp_path: Path) -> None:
    labels = np.r_[np.zeros(negatives, dtype=int), np.ones(negatives, dtype=int)]
    file = column_file(tmp_path / "a.parquet", x=np.zeros(len(labels)).tolist(), label=labels.tolist())
    train = Parquet(train=file, test_fraction=0, thin=(1,), thin_share=share).load(seed=0).train
    assert np.bincount(train.labels).tolist() == [negatives, positives]


def test_classes_of_files_are_thinned_too(tmp_path: Path) -> None:
    path = tmp_path / "train.txt"
    path.write_text("".join(f"{2 * (i % 2) - 1} 1:{i}\n" for i in range(40)))
    settings = ({}, {"thin": (1,), "thin_keep": 0.25})
    whole, thinned = (LibSVM(train=str(path), **own).load(seed=0) for own in settings)
    before, after = (np.bincount(splits.train.labels) for splits in (whole, thinned))
    assert after.tolist() == [before[0], round(0.25 * before[1])]
    with pytest.raises(ConfigError, match=r"data.thin: class 2 is not in the data, which has 0 to 1"):
        LibSVM(train=str(path), thin=(2,)).load(seed=0)


def test_the_seed_draws_the_test() -> None:
    a, b, c = (Digits().load(seed).test.features for seed in (0, 0, 1))
    np.testing.assert_array_equal(a, b)
    assert (a != c).any()


@pytest.mark.parametrize("source", [MNIST, CIFAR10, CIFAR100, STL10])
def test_absent_data_says_where_it_was_looked_for(
    source: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYSIM_DATA_ROOT", str(tmp_path))
    for call in (lambda: source().load(0), lambda: source().fingerprint()):
        with pytest.raises(DataError, match=r"data\.download: true") as error:
            call()
        assert str(tmp_path) in str(error.value)
        assert "RAYSIM_DATA_ROOT" in str(error.value)


def test_a_damaged_mnist_is_a_data_error(tmp_path: Path) -> None:
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part in ("train", "t10k"):
        for name in ("images-idx3-ubyte", "labels-idx1-ubyte"):
            (raw / f"{part}-{name}").write_bytes(b"\0\0\x08\x03\0\0")
    with pytest.raises(DataError, match="cannot read MNIST"):
        MNIST(root=str(tmp_path)).load(0)


@pytest.mark.data
@pytest.mark.skipif("RAYSIM_DATA_ROOT" not in os.environ, reason="RAYSIM_DATA_ROOT is not set")
def test_mnist_by_label_has_nine_clients_with_two_classes() -> None:
    splits = MNIST().load(seed=0)
    assert splits.train.features.shape == (60_000, 1, 28, 28)
    assert splits.test.features.shape == (10_000, 1, 28, 28)
    np.testing.assert_array_equal(
        np.bincount(splits.train.labels), [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    )
    owner = ByLabel(clients=500).assign(splits.train, seed=0)
    np.testing.assert_array_equal(np.bincount(owner), np.full(500, 120))
    labels = splits.train.labels[np.argsort(owner, kind="stable")].reshape(500, 120)
    assert np.count_nonzero(labels.min(axis=1) != labels.max(axis=1)) == 9


@pytest.mark.data
@pytest.mark.skipif("RAYSIM_DATA_ROOT" not in os.environ, reason="RAYSIM_DATA_ROOT is not set")
def test_imbalanced_fashion_mnist_has_the_counts_of_zhang_et_al_table_4() -> None:
    half = (0, 1, 2, 3, 4)
    splits = FashionMNIST(thin=half, thin_share=0.1).load(seed=0)
    positive = [int(np.isin(table.labels, half).sum()) for table in (splits.train, splits.test)]
    assert positive == [3_333, 5_000]
    assert (len(splits.train), len(splits.test)) == (33_333, 10_000)


def test_cifar100_and_stl10_as_torchvision_lays_them_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On files of their layout with a few rows; what torchvision checks of the real ones is their MD5."""
    generator = np.random.default_rng(0)
    cifar = tmp_path / "cifar-100-python"
    cifar.mkdir()
    names = {"fine_label_names": [f"class {i}" for i in range(100)]}
    (cifar / "meta").write_bytes(pickle.dumps(names))
    pictures = generator.integers(0, 256, (6, 3, 32, 32), dtype=np.uint8)
    for name, rows in (("train", slice(0, 4)), ("test", slice(4, 6))):
        labels = [0, 99, 50, 7, 1, 2][rows]
        (cifar / name).write_bytes(pickle.dumps({"data": pictures[rows].reshape(-1, 3072), "fine_labels": labels}))
    stl = tmp_path / "stl10_binary"
    stl.mkdir()
    large = generator.integers(0, 256, (5, 3, 96, 96), dtype=np.uint8)
    for name, rows in (("train", slice(0, 3)), ("test", slice(3, 5))):
        (stl / f"{name}_X.bin").write_bytes(large[rows].transpose(0, 1, 3, 2).tobytes())  # columns first
        (stl / f"{name}_y.bin").write_bytes(bytes([1, 10, 3, 2, 5][rows]))  # from 1
    (stl / "fold_indices.txt").write_text("")
    (stl / "class_names.txt").write_text("\n".join(f"class {i}" for i in range(10)))
    for kind in (torchvision.datasets.CIFAR100, torchvision.datasets.STL10):
        monkeypatch.setattr(kind, "_check_integrity", lambda self: True)
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *given: True)
    hundred, ten = (source(root=str(tmp_path)).load(seed=0) for source in (CIFAR100, STL10))
    assert (hundred.classes, hundred.train.labels.tolist(), hundred.test.labels.tolist()) == (
        100,
        [0, 99, 50, 7],
        [1, 2],
    )
    np.testing.assert_array_equal(hundred.train.features, pictures[:4])
    assert (ten.classes, ten.train.labels.tolist(), ten.test.labels.tolist()) == (10, [0, 9, 2], [1, 4])
    np.testing.assert_array_equal(ten.train.features, large[:3])


# Parquet


def test_parquet_images(tmp_path: Path) -> None:
    images = pixels(5, 4, 6, 3)
    train = image_file(tmp_path / "train.parquet", list(images), [0, 1, 2, 1, 0])
    test = image_file(tmp_path / "test.parquet", list(images[:2]), [2, 1])
    splits = Parquet(train=train, test=test).load(seed=0)
    np.testing.assert_array_equal(splits.train.features, images.transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(splits.test.features, images[:2].transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(splits.train.labels, [0, 1, 2, 1, 0])
    assert splits.classes == 3
    assert (splits.mul * 255 + splits.add, splits.add) == (1, -1)


def test_parquet_grey_images_have_one_channel(tmp_path: Path) -> None:
    images = pixels(4, 5, 6)
    source = Parquet(train=image_file(tmp_path / "a.parquet", list(images), [0, 1, 0, 1]), image="img", test_fraction=0)
    np.testing.assert_array_equal(source.load(seed=0).train.features, images[:, None])


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        (pixels(4, 5), r"row 1 has \(channels, height, width\) \(1, 4, 5\), and .*row 0 has \(1, 4, 4\)"),
        (pixels(4, 4, 3), r"row 1 has .* \(3, 4, 4\)"),
        (pixels(4, 4) > 128, r"row 1 has mode '1'"),
        (b"not an image", "row 1 cannot be decoded"),
        (png(pixels(4, 4))[:60], "row 1 cannot be decoded"),
        (None, "row 1 holds no image bytes"),
    ],
)
def test_an_odd_image_is_named(tmp_path: Path, odd: np.ndarray | bytes | None, message: str) -> None:
    train = image_file(tmp_path / "a.parquet", [pixels(4, 4), odd], [0, 1])
    with pytest.raises(DataError, match=message) as error:
        Parquet(train=train).load(seed=0)
    assert train in str(error.value)


def test_images_of_a_parquet_file_can_be_made_alike(tmp_path: Path) -> None:
    odd = [pixels(4, 4), pixels(9, 5, 3), np.full((6, 6), 200, np.uint8)]
    train = image_file(tmp_path / "a.parquet", odd, [0, 1, 0])
    table = Parquet(train=train, test_fraction=0, size=8).load(seed=0).train
    assert table.features.shape == (3, 3, 8, 8)
    assert (table.features[2] == 200).all()
    numbers = column_file(tmp_path / "b.parquet", x=[0.5, 1.5], label=[0, 1])
    with pytest.raises(ConfigError, match=r"^data.size: is of images, and no image column of .*b.parquet is used"):
        Parquet(train=numbers, size=8).load(seed=0)


def test_pictures_that_scaling_would_spoil_are_refused(tmp_path: Path) -> None:
    from PIL import Image

    ramp = np.linspace(0, 65535, 64).reshape(8, 8).astype(np.uint16)
    clear = Image.fromarray(pixels(8, 8, 4), "RGBA")
    palette = Image.fromarray(pixels(8, 8)).convert("P")
    for name, picture, options in (
        ("deep", Image.fromarray(ramp), {}),
        ("real", Image.fromarray(ramp.astype(np.float32) / 65535), {"format": "TIFF"}),
        ("clear", clear, {}),
        ("hole", palette, {"transparency": 3}),
    ):
        buffer = io.BytesIO()
        picture.save(buffer, **{"format": "PNG", **options})
        train = image_file(tmp_path / f"{name}.parquet", [pixels(8, 8, 3), buffer.getvalue()], [0, 1])
        with pytest.raises(DataError, match=r"row 1 (has mode '.*'|is transparent in places), which cannot be scaled"):
            Parquet(train=train, size=4).load(seed=0)
    buffer = io.BytesIO()
    palette.save(buffer, "PNG")
    train = image_file(tmp_path / "plain.parquet", [pixels(8, 8, 3), buffer.getvalue()], [0, 1])
    assert Parquet(train=train, size=8, test_fraction=0).load(seed=0).train.shape == (3, 8, 8)


def folder_of(path: Path, **images: list[np.ndarray]) -> str:
    """A folder for each class, an image in a file."""
    for name, own in images.items():
        (path / name / "more").mkdir(parents=True)
        for i, image in enumerate(own):
            (path / name / ("more" if i == 0 else ".") / f"{i}.png").write_bytes(png(image))
    return str(path)


def test_a_folder_of_images(tmp_path: Path) -> None:
    images = pixels(6, 4, 5, 3)
    train = folder_of(tmp_path / "train", dog=list(images[:3]), cat=list(images[3:]))
    (tmp_path / "train" / "cat" / "notes.txt").write_text("not an image")
    (tmp_path / "train" / "cat" / "._0.png").write_bytes(b"what another system leaves")
    (tmp_path / "train" / ".cache").mkdir()
    (tmp_path / "train" / "cat" / ".checkpoints").mkdir()
    (tmp_path / "train" / "cat" / ".checkpoints" / "0.png").write_bytes(png(images[0]))
    test = folder_of(tmp_path / "test", cat=[images[0]], dog=[images[1], images[2]])
    splits = ImageFolder(train=train, test=test).load(seed=0)
    assert splits.classes == 2
    assert splits.train.labels.tolist() == [0, 0, 0, 1, 1, 1], "cats, then dogs"
    order = [4, 5, 3, 1, 2, 0]  # by path: what lies further down comes last
    np.testing.assert_array_equal(splits.train.features, images[order].transpose(0, 3, 1, 2))
    assert splits.test.labels.tolist() == [0, 1, 1]
    assert (splits.mul, splits.add) == (2 / 255, -1)
    drawn = ImageFolder(train=train, test_fraction=0.5, size=8).load(seed=0)
    assert (drawn.train.features.shape, len(drawn.test)) == ((3, 3, 8, 8), 3)


def test_a_folder_of_images_that_is_no_data_set_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYSIM_DATA_ROOT", str(tmp_path))
    folder_of(tmp_path / "good", a=[pixels(4, 4)], b=[pixels(4, 4)])
    assert len(ImageFolder(train="good", test_fraction=0).load(seed=0).train) == 2, "found under the root"
    with pytest.raises(DataError, match=r"there is no folder .*absent.* RAYSIM_DATA_ROOT"):
        ImageFolder(train="absent").load(seed=0)
    (tmp_path / "flat").mkdir()
    with pytest.raises(DataError, match=r"flat: has no folders; put the images of each class"):
        ImageFolder(train="flat").load(seed=0)
    (tmp_path / "flat" / "empty").mkdir()
    with pytest.raises(DataError, match=r"flat/empty: has no images"):
        ImageFolder(train="flat").fingerprint()
    folder_of(tmp_path / "other", a=[pixels(4, 4)], c=[pixels(4, 4)])
    with pytest.raises(DataError, match=r"other and .*good must have folders of the same names, and 'b' is"):
        ImageFolder(train="good", test="other").load(seed=0)
    (tmp_path / "good" / "b" / "2.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"good/b/2.png cannot be decoded"):
        ImageFolder(train="good").load(seed=0)
    (tmp_path / "good" / "b" / "2.png").write_bytes(png(pixels(5, 4)))
    with pytest.raises(DataError, match=r"2.png has .*\(1, 5, 4\), and .*a/more/0.png has \(1, 4, 4\); .*data.size"):
        ImageFolder(train="good").load(seed=0)


def test_parquet_columns(tmp_path: Path) -> None:
    train = column_file(
        tmp_path / "a.parquet",
        age=[30, 40, 50],
        who=["x", "y", "x"],
        pay=[1.5, 2.5, 3.5],
        old=[False, True, True],
        label=["no", "yes", "maybe"],
    )
    splits = Parquet(train=train, client="who", test_fraction=0).load(seed=0)
    np.testing.assert_array_equal(splits.train.features, [[30, 1.5, 0], [40, 2.5, 1], [50, 3.5, 1]])
    assert splits.train.features.dtype == np.float32
    np.testing.assert_array_equal(splits.train.labels, [1, 2, 0])  # maybe, no, yes
    assert (splits.classes, splits.mul, splits.add) == (3, 1, 0)
    np.testing.assert_array_equal(Natural().assign(splits.train, seed=0), [0, 1, 0])
    chosen = SOURCES.build("parquet", {"train": train, "features": ["pay"], "label": "old", "test_fraction": 0})
    np.testing.assert_array_equal(chosen.load(seed=0).train.features, [[1.5], [2.5], [3.5]])
    np.testing.assert_array_equal(chosen.load(seed=0).train.labels, [0, 1, 1])


def test_parquet_categories_are_their_values(tmp_path: Path) -> None:
    labels = pa.array(["b", "a", "b", "a"]).dictionary_encode()
    source = Parquet(train=column_file(tmp_path / "a.parquet", x=[1.0, 2, 3, 4], label=labels), test_fraction=0.5)
    splits = source.load(seed=0)
    together = {float(t.features[i, 0]): int(t.labels[i]) for t in (splits.train, splits.test) for i in range(2)}
    assert together == {1: 1, 2: 0, 3: 1, 4: 0}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"x": [1.0, np.nan], "label": [0, 1]}, "row 1, column 'x' is nan"),
        ({"x": [1.0, 1e300], "label": [0, 1]}, r"row 1, column 'x' is 1e\+300"),
        ({"x": [1.0, None], "label": [0, 1]}, "row 1, column 'x' has no value"),
        ({"x": [1.0, 2.0], "label": [0, None]}, "row 1, column 'label' has no value"),
        ({"x": [1.0, 2.0], "label": [0, -1]}, "row 1 has label -1"),
        ({"x": [1.0, 2.0], "label": [0.0, 1.0]}, r"'label' \(data.label\) is double"),
        ({"x": [1.0, 2.0], "lable": [0, 1]}, "no column 'label'.* did you mean 'lable'"),
        ({"x": ["a", "b"], "label": [0, 1]}, "no numeric column"),
        ({"x": pa.array([], pa.float32()), "label": pa.array([], pa.int64())}, "has no rows"),
    ],
)
def test_bad_columns_are_named(tmp_path: Path, columns: dict, message: str) -> None:
    train = column_file(tmp_path / "a.parquet", **columns)
    with pytest.raises(DataError, match=message) as error:
        Parquet(train=train).load(seed=0)
    assert train in str(error.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"features": ("x", "z")}, r"no column 'z' \(data.features\)"),
        ({"features": ("name",)}, r"'name' \(data.features\) is .*string, not numeric"),
        ({"client": "hwo"}, r"no column 'hwo' \(data.client\); did you mean 'who'"),
        ({"client": "x"}, r"'x' \(data.client\) is double; it must be integers or strings"),
        ({"image": "x"}, r"'x' \(data.image\) is double, not struct<bytes, path>"),
    ],
)
def test_settings_that_name_a_bad_column(tmp_path: Path, settings: dict, message: str) -> None:
    train = column_file(tmp_path / "a.parquet", x=[1.0, 2.0], who=[1, 2], name=["p", "q"], label=[0, 1])
    with pytest.raises(DataError, match=message):
        Parquet(train=train, **settings).load(seed=0)


def test_parquet_image_and_features_exclude_each_other(tmp_path: Path) -> None:
    train = column_file(tmp_path / "a.parquet", x=[1.0], label=[0])
    with pytest.raises(ConfigError) as error:
        Parquet(train=train, image="x", features=("x",)).load(seed=0)
    assert error.value.key == "data.features"


def test_parquet_label_the_train_has_not(tmp_path: Path) -> None:
    train = column_file(tmp_path / "a.parquet", x=[1.0, 2.0], label=["a", "b"])
    test = column_file(tmp_path / "b.parquet", x=[1.0, 2.0], label=["a", "c"])
    with pytest.raises(DataError, match=r"b\.parquet: row 1 has label c"):
        Parquet(train=train, test=test).load(seed=0)
    numbers = column_file(tmp_path / "c.parquet", x=[1.0], label=[0])
    for one, other in ((train, numbers), (numbers, train)):
        with pytest.raises(DataError, match="but those of the train are"):
            Parquet(train=one, test=other).load(seed=0)


def test_damaged_and_missing_files_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = column_file(tmp_path / "a.parquet", x=np.arange(1e4), label=np.arange(10_000) % 2)
    data = Path(train).read_bytes()
    for damaged in (b"", b"hello", data[: len(data) // 2], data[:4] + bytes(2000) + data[2004:]):
        Path(train).write_bytes(damaged)
        with pytest.raises(DataError, match=r"a\.parquet: is no Parquet file or is damaged"):
            Parquet(train=train).load(seed=0)
    monkeypatch.setenv("RAYSIM_DATA_ROOT", str(tmp_path / "root"))
    with pytest.raises(DataError, match=r"there is no file .*absent\.parquet or .*root.absent\.parquet"):
        Parquet(train="absent.parquet").load(seed=0)


def test_relative_paths_are_also_looked_for_under_the_data_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    column_file(tmp_path / "a.parquet", x=[1.0], label=[0])
    monkeypatch.setenv("RAYSIM_DATA_ROOT", str(tmp_path))
    assert len(Parquet(train="a.parquet").load(seed=0).train) == 1


# LibSVM


def test_libsvm(tmp_path: Path) -> None:
    (tmp_path / "train").write_text("-1 1:0.5 3:2\n+1 2:1\n-1 1:1\n")
    (tmp_path / "test.gz").write_bytes(gzip.compress(b"+1 4:7\n"))
    splits = LibSVM(train=str(tmp_path / "train"), test=str(tmp_path / "test.gz")).load(seed=0)
    np.testing.assert_array_equal(splits.train.features, [[0.5, 0, 2, 0], [0, 1, 0, 0], [1, 0, 0, 0]])
    np.testing.assert_array_equal(splits.test.features, [[0, 0, 0, 7]])
    np.testing.assert_array_equal(splits.train.labels, [0, 1, 0])
    np.testing.assert_array_equal(splits.test.labels, [1])
    assert splits.classes == 2
    assert splits.train.features.dtype == np.float32
    wide = LibSVM(train=str(tmp_path / "train"), n_features=9, test_fraction=0).load(seed=0)
    assert wide.train.shape == (9,)


@pytest.mark.parametrize("text", ["", "hello\n", "1 1:x\n", "1 2:1 1:1\n", "1 1:nan\n", "1 1:1e300\n", "nan 1:1\n"])
def test_bad_libsvm_text_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad").write_text(text)
    with pytest.raises(DataError, match=r"bad"):
        LibSVM(train=str(tmp_path / "bad"), test_fraction=0).load(seed=0)


def test_libsvm_labels_and_widths_must_fit(tmp_path: Path) -> None:
    (tmp_path / "train").write_text("-1 1:1\n+1 2:1\n")
    (tmp_path / "test").write_text("-1 1:1\n2 2:1\n")
    with pytest.raises(DataError, match=r"test: row 1 has label 2"):
        LibSVM(train=str(tmp_path / "train"), test=str(tmp_path / "test")).load(seed=0)
    with pytest.raises(ConfigError, match="the files have 2 features") as error:
        LibSVM(train=str(tmp_path / "train"), n_features=1).load(seed=0)
    assert error.value.key == "data.n_features"


# Quadratic


@pytest.mark.parametrize("spread", [0.0, 1.0, 100.0])
def test_quadratic_is_strongly_convex_concave_whatever_the_spread(spread: float) -> None:
    splits = Quadratic(clients=6, rows=2, dim_x=4, dim_y=3, spread=spread, mu=0.5).load(seed=0)
    assert splits.train.features.shape == (12, 4 * 4 + 4 * 3 + 3 * 3 + 4 + 3)
    assert len(splits.test) == 0
    np.testing.assert_array_equal(splits.train.clients, np.repeat(np.arange(6), 2))
    A, B, C, a, c = unpack_quadratic(splits.train.features, 4, 3)
    assert [part.shape[1:] for part in (A, B, C, a, c)] == [(4, 4), (4, 3), (3, 3), (4,), (3,)]
    for matrix in (A, C):
        np.testing.assert_array_equal(matrix, matrix.swapaxes(1, 2))
        eigenvalues = np.linalg.eigvalsh(matrix.astype(np.float64))
        assert eigenvalues.min() > 0.5 - 1e-6
        assert eigenvalues.max() < 1.0 + 1e-6
    assert (spread == 0) == bool((B[0] == B[-1]).all() and (A[0] == A[-1]).all() and (a[0] == a[-1]).all())


def test_quadratic_of_lower_rank_has_one_subspace_of_y_for_all_clients() -> None:
    settings = {"clients": 6, "rows": 2, "dim_x": 4, "dim_y": 5, "mu": 0.5, "noise": 1.0}
    rows = Quadratic(**settings, rank_y=2).load(seed=0).train.features.astype(np.float64)
    _, B, C, _, c = unpack_quadratic(rows, 4, 5)
    np.testing.assert_array_equal(C, C.swapaxes(1, 2))
    eigenvalues = np.linalg.eigvalsh(C)
    np.testing.assert_allclose(eigenvalues[:, :3], 0, atol=1e-6)
    assert eigenvalues[:, 3:].min() > 0.5 - 1e-6
    assert eigenvalues.max() < 1.0 + 1e-6
    null = np.linalg.eigh(C[0])[1][:, :3]
    for name, part in {"B": B, "C": C, "c": c}.items():
        assert np.abs(part @ null).max() < 1e-5, name
    assert (C[0] != C[2]).any()
    assert (c[0] != c[1]).any()
    full = Quadratic(**settings).load(seed=0).train.features
    np.testing.assert_array_equal(Quadratic(**settings, rank_y=5).load(seed=0).train.features, full)


def test_quadratic_shift_moves_the_eigenvalues_of_every_A_and_nothing_else() -> None:
    plain, shifted = (
        unpack_quadratic(Quadratic(clients=4, shift=shift).load(seed=0).train.features, 4, 3) for shift in (0.0, 2.5)
    )
    np.testing.assert_allclose(np.linalg.eigvalsh(shifted[0]), np.linalg.eigvalsh(plain[0]) - 2.5, atol=1e-6)
    assert np.linalg.eigvalsh(shifted[0]).max() < 0
    for one, other in zip(plain[1:], shifted[1:], strict=True):
        np.testing.assert_array_equal(one, other)


def test_quadratic_noise_keeps_the_clients_means() -> None:
    calm = Quadratic(clients=3, rows=50, noise=0.0).load(seed=0).train.features.reshape(3, 50, -1)
    noisy = Quadratic(clients=3, rows=50, noise=2.0).load(seed=0).train.features.reshape(3, 50, -1)
    np.testing.assert_array_equal(calm, np.broadcast_to(calm[:, :1], calm.shape))
    np.testing.assert_allclose(noisy.mean(axis=1), calm[:, 0], atol=1e-5)
    np.testing.assert_array_equal(noisy[..., :-7], calm[..., :-7])  # only a and c, the last 4 + 3, have noise
    assert noisy[..., -7:].std(axis=1).mean() == pytest.approx(2.0, rel=0.1)


def test_quadratic_identical_clients_and_seeds() -> None:
    same = Quadratic(clients=3, identical=True).load(seed=0).train.features
    assert (same == same[0]).all()
    assert (same != Quadratic(clients=3, identical=True).load(seed=1).train.features).any()


def test_unpack_quadratic_gives_views_of_arrays_and_works_under_vmap() -> None:
    rows = Quadratic(clients=5).load(seed=0).train.features
    assert all(np.shares_memory(part, rows) for part in unpack_quadratic(rows, 4, 3))
    whole = unpack_quadratic(torch.from_numpy(rows), 4, 3)
    mapped = torch.func.vmap(lambda row: unpack_quadratic(row, 4, 3))(torch.from_numpy(rows))
    assert all(torch.equal(one, other) for one, other in zip(whole, mapped, strict=True))
    with pytest.raises(DataError, match="rows of 44 numbers are no quadratic with dim_x 3 and dim_y 3"):
        unpack_quadratic(rows, 3, 3)


@pytest.mark.parametrize(
    ("name", "settings", "key"),
    [
        ("digits", {"test_fraction": 1}, "data.test_fraction"),
        ("mnist", {"download": "false"}, "data.download"),
        ("parquet", {}, "data.train"),
        ("quadratic", {"clients": 3, "spread": -1.0}, "data.spread"),
        ("quadratic", {"clients": 3, "sprad": 1.0}, "data.sprad"),
        ("quadratic", {"clients": 3, "dim_y": 4, "rank_y": 5}, "data.rank_y"),
        ("quadratic", {"clients": 3, "rank_y": 0}, "data.rank_y"),
        ("quadratic", {"clients": 3, "shift": -0.5}, "data.shift"),
    ],
)
def test_bad_settings_are_named(name: str, settings: dict, key: str) -> None:
    with pytest.raises(ConfigError) as error:
        SOURCES.build(name, settings)
    assert error.value.key == key
