"""Fair classification: its gradient, its value over all rows, and the saddle's meaning."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from clients.fleet import InProcessFleet
from raysim.batch import Batch
from raysim.domain import Simplex
from raysim.errors import ConfigError
from raysim.models import MODELS, NetworkFactory
from raysim.point import Point
from raysim.problems import DataSpec, Fair
from tests.contracts.table import TABLE, settings
from tests.play import DIGITS, experiment, trajectory

COUNTS = (6, 12, 18)


def problem() -> Fair:
    return Fair(network=NetworkFactory(MODELS, "mlp", (5,), {"hidden": [4]}), data=DataSpec((5,), COUNTS))


def all_rows() -> Batch:
    generator = torch.Generator().manual_seed(0)
    labels = torch.repeat_interleave(torch.arange(3), torch.tensor(COUNTS))
    inputs = torch.randn(36, 5, generator=generator, dtype=torch.float64)
    return Batch(inputs, labels, torch.full((36,), 1 / 36, dtype=torch.float64))


def somewhere(fair: Fair) -> Point:
    z = fair.init(1).to(torch.float64)
    return Point(z.x, torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64), z.domain)


def test_over_all_rows_it_is_the_weighted_sum_of_the_classes_mean_losses() -> None:
    fair, rows = problem(), all_rows()
    z = somewhere(fair)
    logits = fair.outputs(z, rows)
    losses = [cross_entropy(logits[rows.labels == c], rows.labels[rows.labels == c]) for c in range(3)]
    expected = float(sum(y_c * loss for y_c, loss in zip(z.y, losses, strict=True)))
    assert fair.value(z, rows).item() == pytest.approx(expected, rel=1e-12)
    assert fair.gradient(z, rows).y.tolist() == pytest.approx([float(loss) for loss in losses], rel=1e-12)
    metrics = fair.metrics(z, logits.detach().numpy(), rows.labels.numpy())
    assert metrics["value"] == pytest.approx(expected, rel=1e-12)
    right = logits.argmax(1) == rows.labels
    by_class = [float(right[rows.labels == c].double().mean()) for c in range(3)]
    assert [metrics[f"accuracy_{c}"] for c in range(3)] == by_class
    assert metrics["worst_class_accuracy"] == min(by_class)
    assert metrics["accuracy"] == pytest.approx(float(right.double().mean()))


def test_gradient_agrees_with_central_differences() -> None:
    fair, rows = problem(), all_rows()
    z = somewhere(fair)
    g, eps = fair.gradient(z, rows), 1e-6

    def slope(i: int) -> float:
        moved = [z.x.clone(), z.x.clone()]
        moved[0][i] += eps
        moved[1][i] -= eps
        up, down = (fair.value(Point(x, z.y), rows).item() for x in moved)
        return (up - down) / (2 * eps)

    assert [slope(i) for i in range(len(z.x))] == pytest.approx(g.x.tolist(), abs=1e-8)


def test_a_class_without_rows_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"problem.name: fair needs rows of every class, and class 1 has none"):
        Fair(network=NetworkFactory(MODELS, "mlp", (5,), {"hidden": [4]}), data=DataSpec((5,), (3, 0)))


@pytest.mark.parametrize("name", TABLE)
def test_class_weights_stay_in_the_simplex_in_both_engines(name: str, tmp_path: Path) -> None:
    """With steps large enough that they would not without a projection, and server steps beyond the mean."""
    large = {key: 2.0 for key in ("gamma", "c_gamma") if key in TABLE[name].settings}
    loop, together = (
        trajectory(
            experiment(DIGITS, settings(name, **large), problem={"name": "fair"}, clients={"engine": engine}),
            tmp_path,
            3,
        )
        for engine in ("loop", "vectorized")
    )
    for a, b in zip(loop, together, strict=True):
        torch.testing.assert_close(a.x, b.x, rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(a.y, b.y, rtol=1e-9, atol=1e-11)
        assert a.domain == b.domain == Simplex()
    for z in loop[1:]:  # the initial point is of float32
        assert float(z.y.min()) >= -1e-15
        assert float(z.y.sum()) == pytest.approx(1, abs=1e-12)
    assert float((loop[-1].y - loop[0].y).abs().max()) > 1e-3


def test_with_the_network_held_all_weight_goes_to_the_class_of_the_largest_loss(tmp_path: Path) -> None:
    """F is linear in y, so its maximum over the simplex is a corner."""
    made = experiment(
        DIGITS,
        {"name": "parallel_sgda", "S": 5, "eta": 1e-9, "gamma": 2.0},
        problem={"name": "fair"},
        partition={"name": "stride", "clients": 5},
    )
    z = trajectory(made, tmp_path, 12)[-1]
    everything = np.arange(len(made.shards.train))
    labels = made.shards.labels(everything)
    logits = torch.from_numpy(InProcessFleet(made.engine()).pool("train").each(Fair.outputs, z))
    losses = [float(cross_entropy(logits[labels == c], labels[labels == c])) for c in range(10)]
    assert z.y.tolist() == [float(c == np.argmax(losses)) for c in range(10)]
