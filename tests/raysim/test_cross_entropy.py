"""Cross-entropy and ratio loss: the published formulas row by row, and gradients against differences."""

import math

import pytest
import torch

from raysim.batch import Batch
from raysim.errors import ConfigError
from raysim.models import MODELS, NetworkFactory
from raysim.point import Point
from raysim.problems import BinaryCrossEntropy, DataSpec, RatioLoss

COUNTS = (10, 30, 60)  # of class 0 a tenth


def built(kind: type[BinaryCrossEntropy], **settings: object) -> BinaryCrossEntropy:
    factory = NetworkFactory(MODELS, "mlp", (5,), {"hidden": [4]})
    return kind(network=factory, data=DataSpec((5,), COUNTS), **settings)  # type: ignore[arg-type]


def batch(rows: int = 12) -> Batch:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(rows, 5, generator=generator, dtype=torch.float64)
    return Batch(inputs, torch.arange(rows) % 3, torch.full((rows,), 1 / rows, dtype=torch.float64))


@pytest.mark.parametrize(
    ("kind", "settings", "of_positive", "of_negative"),
    [
        (BinaryCrossEntropy, {}, 1.0, 1.0),
        (RatioLoss, {}, 1.9, 1 + 0.1 / 9),  # 9 negatives for each positive
        (RatioLoss, {"alpha": 0.5, "beta": 2.0}, 18.5, 0.5 + 2 / 9),
        (RatioLoss, {"positive": (0, 1)}, 1 + 0.1 * 1.5, 1 + 0.1 / 1.5),
    ],
)
def test_the_value_weighs_each_row_s_cross_entropy_by_its_kind(
    kind: type[BinaryCrossEntropy], settings: dict[str, object], of_positive: float, of_negative: float
) -> None:
    made, rows = built(kind, **settings), batch()
    z = made.init(1).to(torch.float64)
    assert z.y.shape == (0,)
    expected = 0.0
    for score, label in zip(made.outputs(z, rows).tolist(), rows.labels.tolist(), strict=True):
        positive = label in settings.get("positive", (0,))  # type: ignore[operator]
        expected -= of_positive * math.log(score) if positive else of_negative * math.log(1 - score)
    assert float(made.value(z, rows)) == pytest.approx(expected / len(rows.labels), rel=1e-12)


@pytest.mark.parametrize("kind", [BinaryCrossEntropy, RatioLoss])
def test_gradient_agrees_with_central_differences(kind: type[BinaryCrossEntropy]) -> None:
    made, rows = built(kind), batch()
    z = made.init(1).to(torch.float64)
    g, eps = made.gradient(z, rows), 1e-6
    slopes = []
    for i in range(len(z.x)):
        ends = []
        for sign in (1, -1):
            moved = z.x.clone()
            moved[i] += sign * eps
            ends.append(float(made.value(Point(moved, z.y), rows)))
        slopes.append((ends[0] - ends[1]) / (2 * eps))
    assert g.x.tolist() == pytest.approx(slopes, abs=1e-8)
    assert g.y.shape == (0,)


def test_metrics_are_of_the_scores() -> None:
    made, rows = built(BinaryCrossEntropy), batch(90)
    z = made.init(1).to(torch.float64)
    scores, labels = made.outputs(z, rows).detach().numpy(), rows.labels.numpy()
    found = made.metrics(z, scores, labels)
    pairs = [(a > b) + (a == b) / 2 for a in scores[labels == 0] for b in scores[labels != 0]]
    assert found["auc"] == pytest.approx(sum(pairs) / len(pairs))
    assert found["accuracy"] == pytest.approx(((scores > 0.5) == (labels == 0)).mean())
    assert made.metrics(z, scores[labels == 0], labels[labels == 0])["auc"] is None
    assert made.label_scores(labels[:3]).tolist() == [1, 0, 0]


def test_both_kinds_are_needed() -> None:
    with pytest.raises(ConfigError, match=r"problem.positive: 100% of the rows are positive; both kinds are needed"):
        built(RatioLoss, positive=(0, 1, 2))
    with pytest.raises(ConfigError, match=r"problem.positive: class 3 is not in the data, which has 0 to 2"):
        built(BinaryCrossEntropy, positive=(3,))
