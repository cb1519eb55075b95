"""Robust training: its gradients, its evaluation by ascent, and the engine that shifts inputs."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from clients.fleet import InProcessFleet
from clients.vectorized import VectorizedEngine
from raysim.batch import Batch
from raysim.models import MODELS, NetworkFactory
from raysim.point import Point
from raysim.problems import DataSpec, Robust
from tests.contracts.table import settings
from tests.play import DIGITS, experiment

ROBUST: dict[str, Any] = dict(DIGITS) | {"problem": {"name": "robust", "penalty": 0.5}}


def problem(**other: Any) -> Robust:
    network = NetworkFactory(MODELS, "mlp", (2, 3), {"hidden": [4]})
    return Robust(network=network, data=DataSpec((2, 3), (5, 5, 5)), **({"penalty": 0.5} | other))


def rows() -> Batch:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(9, 2, 3, generator=generator, dtype=torch.float64)
    return Batch(inputs, torch.arange(9) % 3, torch.full((9,), 1 / 9, dtype=torch.float64))


def somewhere(robust: Robust) -> Point:
    z = robust.init(1).to(torch.float64)
    return replace(z, y=torch.linspace(-1, 1, 6, dtype=torch.float64))


@pytest.mark.parametrize("halved", [True, False])
def test_value_and_gradient(halved: bool) -> None:
    robust, batch, eps = problem(halved=halved), rows(), 1e-6
    z = somewhere(robust)

    def by_hand(z: Point) -> float:
        loss = cross_entropy(robust.net(z.x, batch.inputs + z.y.view(2, 3)), batch.labels)
        return (loss - 0.5 * z.y.square().sum() * (0.5 if halved else 1)).item()

    assert robust.value(z, batch).item() == pytest.approx(by_hand(z), rel=1e-12)
    g = robust.gradient(z, batch)
    for block, slopes in (("x", g.x), ("y", g.y)):
        v = getattr(z, block)
        for i in range(len(v)):
            step = torch.zeros_like(v).index_fill(0, torch.tensor(i), eps)
            up, down = (by_hand(replace(z, **{block: v + sign * step})) for sign in (1, -1))
            assert slopes[i].item() == pytest.approx((up - down) / (2 * eps), rel=1e-5, abs=1e-9)
    torch.testing.assert_close(robust.ascent(z, batch), g.y)
    metrics = robust.metrics(z, robust.outputs(z, batch).detach().numpy(), batch.labels.numpy())
    assert metrics["loss"] == pytest.approx(by_hand(z), rel=1e-12)


def test_chunks_of_a_shard_add_up_to_the_whole_with_the_penalty_counted_once() -> None:
    robust, batch = problem(), rows()
    z = somewhere(robust)
    pieces = [Batch(*(leaf[part] for leaf in batch[:3])) for part in (slice(0, 4), slice(4, 9))]
    assert sum(robust.value(z, piece).item() for piece in pieces) == pytest.approx(robust.value(z, batch).item())


def test_the_robust_loss_is_the_maximum_where_it_is_known() -> None:
    """With a linear network of equal rows of weights the loss does not depend on y: the maximum is at y = 0."""
    made = experiment(ROBUST, settings("cd_ma"), model={"name": "mlp", "hidden": []})
    z = made.problem.init(0).to(torch.float64)
    flat = Point(torch.zeros_like(z.x), torch.linspace(-0.3, 0.3, 64, dtype=torch.float64))
    pool = InProcessFleet(made.engine()).pool("train")
    found = made.problem.evaluate(flat, pool)
    # Each of the 20 steps of size 1 takes y to (1 - penalty) y.
    left = 0.25 * 0.5**40 * flat.y.square().sum().item()
    assert found["robust_loss"] == pytest.approx(np.log(10) - left, rel=1e-12)
    assert found["loss"] == pytest.approx(np.log(10) - 0.25 * flat.y.square().sum().item(), rel=1e-12)


def test_evaluation_ascends_from_the_present_perturbation_or_from_none() -> None:
    made = experiment(ROBUST, settings("cd_ma"))
    pool = InProcessFleet(made.engine()).pool("test")
    z = made.problem.init(3).to(torch.float64)
    small, none, large = (made.problem.evaluate(replace(z, y=y), pool) for y in (z.y + 0.1, z.y, z.y + 1))
    assert small["robust_loss"] > small["loss"]
    assert large["robust_loss"] == none["robust_loss"] != small["robust_loss"]
    assert none["loss"] == pytest.approx(-np.mean(np.log(_likelihoods(made, z))), rel=1e-9)
    assert none["clean_accuracy"] == none["accuracy"] == large["clean_accuracy"]


def _likelihoods(made: Any, z: Point) -> Any:
    everything = np.arange(len(made.shards.test))
    logits = made.problem.net(z.x, made.shards.inputs(everything, "test", torch.float64))
    return torch.softmax(logits, 1)[everything, made.shards.labels(everything, "test")].detach().numpy()


@pytest.mark.parametrize("model", [{"name": "mlp", "hidden": [8]}, {"name": "tests.toys:Convolutional"}])
def test_a_chain_of_layers_is_run_by_hand(model: dict[str, Any]) -> None:
    made = experiment(dict(ROBUST) | {"model": model}, settings("cd_ma"), clients={"engine": "auto"})
    engine = made.engine()
    assert isinstance(engine, VectorizedEngine)
    assert engine._chain is not None


def test_the_picture_has_the_perturbations_signs() -> None:
    made = experiment(ROBUST, settings("cd_ma"))
    y = torch.zeros(64)
    y[3], y[5] = 0.2, -0.1
    picture = made.problem.pictures(Point(made.problem.init(0).x, y))["perturbation"]
    assert picture.shape == (1, 1, 8, 8)
    assert [picture.flatten()[i].item() for i in (0, 3, 5)] == pytest.approx([0.5, 1, 0.25])
