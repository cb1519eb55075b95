"""The AUC problem: gradients, closed-form saddle of the scalars, exact pooled AUC."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from raysim.batch import Batch
from raysim.errors import ConfigError
from raysim.models import MODELS, NetworkFactory
from raysim.point import Point
from raysim.problems import AUC, DataSpec


def problem(score: str = "softmax", counts: tuple[int, ...] = (10, 30, 60), **settings: object) -> AUC:
    factory = NetworkFactory(MODELS, "mlp", (5,), {"hidden": [4]})
    return AUC(network=factory, data=DataSpec((5,), counts), score=score, **settings)  # type: ignore[arg-type]


def batch(rows: int = 12, classes: int = 3, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows, 5, generator=generator, dtype=torch.float64)
    labels = torch.arange(rows) % classes
    return Batch(inputs, labels, torch.full((rows,), 1 / rows, dtype=torch.float64))


def somewhere(auc: AUC) -> Point:
    z = auc.init(1).to(torch.float64)
    generator = torch.Generator().manual_seed(2)
    return Point(z.x + 0.3 * torch.randn(z.x.shape, generator=generator, dtype=torch.float64), z.y + 0.7)


def test_the_value_is_the_published_formula_row_by_row() -> None:
    auc, rows = problem(counts=(10, 30, 60)), batch()
    z = somewhere(auc)
    h = auc.outputs(z, rows).tolist()
    s1, s2, y, p = z.x[-2].item(), z.x[-1].item(), z.y.item(), 0.1
    total = 0.0
    for score, label in zip(h, rows.labels.tolist(), strict=True):
        if label == 0:
            total += (1 - p) * (score - s1) ** 2 - 2 * (1 + y) * (1 - p) * score
        else:
            total += p * (score - s2) ** 2 + 2 * (1 + y) * p * score
        total -= p * (1 - p) * y**2
    assert auc.value(z, rows).item() == pytest.approx(total / 12, rel=1e-12)


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_gradient_agrees_with_central_differences(score: str) -> None:
    auc, rows = problem(score), batch()
    z = somewhere(auc)
    g = auc.gradient(z, rows)
    eps = 1e-6

    def slope(block: str, i: int) -> float:
        ends = []
        for sign in (1, -1):
            moved = getattr(z, block).clone()
            moved[i] += sign * eps
            ends.append(auc.value(Point(moved, z.y) if block == "x" else Point(z.x, moved), rows).item())
        return (ends[0] - ends[1]) / (2 * eps)

    assert [slope("x", i) for i in range(len(z.x))] == pytest.approx(g.x.tolist(), abs=1e-8)
    assert [slope("y", 0)] == pytest.approx(g.y.tolist(), abs=1e-8)


@pytest.mark.parametrize("labels", [(0, 1, 2), (1, 2), (0,)], ids=["both", "negatives", "positives"])
def test_the_best_dual_is_where_the_dual_gradient_vanishes_whatever_the_batch_holds(labels: tuple[int, ...]) -> None:
    auc, rows = problem(), batch()
    rows = rows._replace(labels=torch.tensor(labels).repeat(12)[:12])
    z = somewhere(auc)
    best = auc.best_dual(z, rows)
    assert best.shape == z.y.shape
    assert float(auc.gradient(Point(z.x, best), rows).y.abs()) < 1e-14
    assert float(auc.gradient(z, rows).y.abs()) > 1e-2


@pytest.mark.slow
def test_with_the_network_held_the_scalars_reach_their_closed_form() -> None:
    """s1 = E[h|+], s2 = E[h|-], y = s2 - s1, where the prior is the share of positives in the data."""
    auc, rows = problem(prior=1 / 3), batch(rows=30)
    z = somewhere(auc)
    held = torch.ones_like(z.x)
    held[:-2] = 0
    for _ in range(4000):
        g = auc.gradient(z, rows)
        z = z.descent_ascent(Point(held * g.x, g.y), 0.5, 0.5)
    h = auc.outputs(z, rows)
    s1, s2 = h[rows.labels == 0].mean().item(), h[rows.labels != 0].mean().item()
    assert z.x[-2:].tolist() == pytest.approx([s1, s2], abs=1e-10)
    assert z.y.item() == pytest.approx(s2 - s1, abs=1e-10)


def test_it_is_strongly_concave_in_y_with_modulus_twice_p_times_one_minus_p() -> None:
    auc, rows = problem(prior=0.1), batch()
    z = somewhere(auc)
    slope = [auc.gradient(Point(z.x, z.y + d), rows).y.item() for d in (0, 1)]
    assert slope[0] - slope[1] == pytest.approx(2 * 0.1 * 0.9, rel=1e-12)


def test_a_batch_of_one_row_has_a_gradient() -> None:
    auc = problem()
    for label in (0, 1):
        one = Batch(torch.ones(1, 5, dtype=torch.float64), torch.tensor([label]), torch.ones(1, dtype=torch.float64))
        g = auc.gradient(somewhere(auc), one)
        assert g.x[:-2].norm() > 1e-6
        assert g.y.norm() > 1e-6


def test_auc_is_the_share_of_ordered_pairs_with_ties_for_half() -> None:
    auc = problem()
    z = auc.init(0)
    h = np.array([0.9, 0.5, 0.5, 0.2, 0.1])
    labels = np.array([0, 0, 1, 2, 0])
    pairs = [(a > b) + 0.5 * (a == b) for a in h[labels == 0] for b in h[labels != 0]]
    assert auc.metrics(z, h, labels)["auc"] == pytest.approx(np.mean(pairs), rel=1e-12)


def test_pooled_value_agrees_with_the_training_value() -> None:
    auc, rows = problem(), batch()
    z = somewhere(auc)
    metrics = auc.metrics(z, auc.outputs(z, rows).numpy(), rows.labels.numpy())
    assert metrics["value"] == pytest.approx(auc.value(z, rows).item(), rel=1e-12)


def test_auc_of_one_kind_of_label_is_undefined_not_an_error() -> None:
    auc = problem()
    assert auc.metrics(auc.init(0), np.array([0.1, 0.2]), np.array([1, 2]))["auc"] is None


def test_several_positive_classes() -> None:
    auc = problem(positive=(0, 2))
    assert auc.p == pytest.approx(0.7)
    metrics = auc.metrics(auc.init(0), np.array([0.9, 0.1, 0.8]), np.array([0, 1, 2]))
    assert metrics["auc"] == 1.0


@pytest.mark.parametrize(
    ("settings", "counts", "key"),
    [
        ({"positive": (3,)}, (10, 30, 60), "problem.positive"),
        ({"positive": (-1,)}, (10, 30, 60), "problem.positive"),
        ({"positive": (0, 1)}, (10, 30), "problem.positive"),
        ({"positive": (0,)}, (0, 30), "problem.positive"),
    ],
)
def test_classes_that_cannot_be_told_apart_are_refused(settings: dict, counts: tuple[int, ...], key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        problem(counts=counts, **settings)
    assert refused.value.key == key


def test_parts_hold_the_whole_point() -> None:
    auc = problem()
    z = auc.init(0)
    parts = auc.parts(z)
    assert sum(part.numel() for part in parts.values()) == z.x.numel() + z.y.numel()
    assert {"s1", "s2", "y"} <= parts.keys()


@dataclass(frozen=True)
class OneBatch:
    """The pool of a split whose rows are one batch."""

    auc: AUC
    batch: Batch

    @property
    def labels(self) -> NDArray[np.int64]:
        return self.batch.labels.numpy()

    def each(self, f: Callable[[AUC, Point, Batch], Tensor], z: Point) -> NDArray[np.float64]:
        return f(self.auc, z, self.batch).numpy()

    def total(self, f: Callable[[AUC, Point, Batch], Tensor], z: Point) -> Tensor:
        return f(self.auc, z, self.batch)


@pytest.mark.parametrize(("rows", "points"), [(12, range(2, 13)), (20_000, range(400, 501))])
def test_the_area_under_the_roc_curve_is_the_auc(rows: int, points: range) -> None:
    auc = problem()
    z, pool = somewhere(auc), OneBatch(auc, batch(rows))
    roc = auc.curves(z, pool)["roc"]
    assert (roc.x_label, roc.y_label) == ("false positive rate", "true positive rate")
    assert len(roc.x) == len(roc.y)
    assert len(roc.x) in points
    assert (roc.x[0], roc.y[0], roc.x[-1], roc.y[-1]) == (0, 0, 1, 1)
    assert (np.diff(roc.x) >= 0).all()
    assert (np.diff(roc.y) >= 0).all()
    area = np.diff(roc.x) @ (roc.y[1:] + roc.y[:-1]) / 2
    assert area == pytest.approx(auc.evaluate(z, pool)["auc"], abs=1e-3)


def test_there_is_no_roc_curve_of_one_kind_of_label() -> None:
    auc, rows = problem(), batch()
    for label in (0, 1):
        one = Batch(rows.inputs, torch.full_like(rows.labels, label), rows.weights)
        assert auc.curves(somewhere(auc), OneBatch(auc, one)) == {}


def test_scores_that_are_all_the_same_are_trouble() -> None:
    auc = problem()
    fine = {"auc": 0.9, "value": -0.1, "score_std": 0.2}
    assert auc.trouble(fine) is None
    assert "all scores are the same" in str(auc.trouble(fine | {"score_std": 1e-9}))
    assert auc.trouble(fine | {"value": float("nan")}) == "value is nan; take smaller step sizes"
