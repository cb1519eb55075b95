"""Inception score and Frechet distance: closed forms, and a classifier trained on real images."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from raysim.data import PARTITIONERS, SOURCES, Shards, build
from raysim.errors import ConfigError, DataError
from raysim.inception import FEATURES, Classifier, Gaussian, inception_score


def log(p: list[list[float]]) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log(np.array(p))


def test_certain_and_diverse_scores_the_number_of_classes() -> None:
    assert inception_score(log(np.tile(np.eye(10), (20, 1)).tolist()), 2) == pytest.approx((10, 0))


def test_one_class_only_or_no_idea_scores_one() -> None:
    assert inception_score(log([[1, 0, 0]] * 8), 2) == pytest.approx((1, 0))
    assert inception_score(log([[0.2, 0.3, 0.5]] * 8), 2) == pytest.approx((1, 0))


def test_splits_are_disjoint() -> None:
    """Three splits of images of one class each: within each there is no diversity, together there would be."""
    certain = log(np.repeat(np.eye(3), 4, axis=0).tolist())
    assert inception_score(certain, 3) == pytest.approx((1, 0))
    assert inception_score(certain, 1) == pytest.approx((3, 0))
    halves = log([[1, 0], [1, 0], [1, 0], [0, 1]])
    assert inception_score(halves, 2) == pytest.approx((1.5, 0.5))


def test_a_known_score() -> None:
    p = np.array([[0.9, 0.1], [0.4, 0.6]])
    q = p.mean(axis=0)
    expected = np.exp(np.mean([sum(a * np.log(a / b) for a, b in zip(row, q, strict=True)) for row in p]))
    assert inception_score(np.log(p), 1)[0] == pytest.approx(expected, rel=1e-12)


def test_frechet_distance_of_normal_distributions_in_closed_form() -> None:
    a = Gaussian(np.array([1.0, 2.0]), np.diag([4.0, 9.0]))
    b = Gaussian(np.array([0.0, 0.0]), np.diag([1.0, 25.0]))
    assert a.distance(b) == pytest.approx(5 + (2 - 1) ** 2 + (3 - 5) ** 2)
    generator = np.random.default_rng(0)
    turn, _ = np.linalg.qr(generator.normal(size=(2, 2)))
    turned = [Gaussian(turn @ g.mean_F, turn @ g.cov_FF @ turn.T) for g in (a, b)]
    assert turned[0].distance(turned[1]) == pytest.approx(10)
    assert a.distance(a) == pytest.approx(0, abs=1e-9)


def test_moments_are_those_of_the_features() -> None:
    features = np.random.default_rng(1).normal(size=(50, 3))
    made = Gaussian.of(features)
    np.testing.assert_allclose(made.mean_F, features.mean(axis=0))
    np.testing.assert_allclose(made.cov_FF, np.cov(features.T))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def digits(cache: Path, clients: int = 20) -> Shards:
    partition = PARTITIONERS.build("by_label", {"clients": clients})
    return Shards.open(build(SOURCES.build("digits", {}), partition, 0, cache))


@pytest.fixture(scope="module")
def classifier(cache: Path) -> Classifier:
    return Classifier.trained(digits(cache), 4, cache, lambda line: None)


@pytest.mark.xdist_group("classifier")
@pytest.mark.slow
def test_real_images_score_near_ten_and_noise_near_one(classifier: Classifier, cache: Path) -> None:
    shards = digits(cache)
    real = classifier.judge(shards.inputs(np.arange(len(shards.test)), "test")).double().numpy()
    noise = 2 * torch.rand(len(real), 1, 8, 8, generator=torch.Generator().manual_seed(0)) - 1
    made = classifier.judge(noise).double().numpy()
    assert classifier.accuracy > 0.9
    score, _ = inception_score(real[:, :-FEATURES], 1)
    assert 8 < score <= 10
    assert inception_score(made[:, :-FEATURES], 1)[0] < 4 < score
    of_real = classifier.real.distance(Gaussian.of(real[:, -FEATURES:]))
    of_noise = classifier.real.distance(Gaussian.of(made[:, -FEATURES:]))
    assert of_real < 0.2 * of_noise
    train = classifier.judge(shards.inputs(np.arange(len(shards.train)))).double().numpy()
    assert classifier.real.distance(Gaussian.of(train[:, -FEATURES:])) == pytest.approx(0, abs=1e-3 * of_noise)


@pytest.mark.xdist_group("classifier")
@pytest.mark.slow
def test_it_is_trained_once_however_the_rows_are_dealt(classifier: Classifier, cache: Path) -> None:
    said: list[str] = []
    again = Classifier.trained(digits(cache, clients=7), 4, cache, said.append)
    assert again.path == classifier.path
    assert not said
    assert pickle.loads(pickle.dumps(again)).accuracy == classifier.accuracy


@pytest.mark.xdist_group("classifier")
@pytest.mark.slow
def test_a_damaged_file_is_named(classifier: Classifier, tmp_path: Path) -> None:
    damaged = tmp_path / classifier.path.name
    damaged.write_bytes(classifier.path.read_bytes()[:1000])
    with pytest.raises(DataError, match=f"cannot use {damaged}.*delete it to train it anew"):
        Classifier.open(damaged)


def test_rows_that_are_no_images_are_refused(tmp_path: Path) -> None:
    source = SOURCES.build("quadratic", {"clients": 2, "rows": 3})
    shards = Shards.open(build(source, PARTITIONERS.build("natural", {}), 0, tmp_path))
    with pytest.raises(ConfigError, match="images"):
        Classifier.trained(shards, 1, tmp_path, lambda line: None)
