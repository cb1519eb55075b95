"""Tests the contracts that every problem keeps."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from clients.fleet import InProcessFleet
from cluster.experiment import Experiment
from raysim import draws
from raysim.batch import Batch
from raysim.models.normalisation import layers
from raysim.point import Point
from raysim.problems import Evaluated, HasNetworks, LabelScored, Named, Problem
from raysim.problems.evaluation import evaluated
from tests.contracts.problems import TABLE, made
from tests.play import trajectory

NAMES = list(TABLE)
ROWS = 12


def somewhere(problem: Problem, seed: int = 0) -> Point:
    """A point near the initial one, in float64, at which nothing is zero."""
    z = problem.init(seed).to(torch.float64)
    rng = draws.generator(seed, "somewhere")
    x, y = (block + 0.1 * torch.from_numpy(rng.standard_normal(len(block))) for block in (z.x, z.y))
    return Point(x, y.abs() / y.abs().sum() if z.domain else y, z.domain)


def rows_of(experiment: Experiment, n: int = ROWS) -> Batch:
    """The first rows of several clients, with weights of their own."""
    places = experiment.shards.offsets_N1[:n] if experiment.shards.n_clients >= n else np.arange(n)
    weights = torch.from_numpy(draws.uniform(0, "weights", np.arange(n)))
    noise = draws.uniform(0, "rows' noise", np.arange(n)[:, None], np.arange(experiment.problem.noise))
    inputs = experiment.shards.inputs(places, "train", dtype=torch.float64)
    return Batch(inputs, experiment.shards.labels(places, "train"), weights / weights.sum(), torch.from_numpy(noise))


def leaves(z: Point) -> Tensor:
    return torch.cat((z.x, z.y))


@pytest.mark.parametrize("name", NAMES)
def test_the_gradient_is_that_of_the_value(name: str) -> None:
    experiment = made(name)
    problem, batch = experiment.problem, rows_of(experiment)
    z = somewhere(problem)
    g = problem.gradient(z, batch)
    assert (g.x.shape, g.y.shape) == (z.x.shape, z.y.shape)
    rng = draws.generator(1, "directions")
    for _ in range(5):
        dx, dy = (torch.from_numpy(rng.standard_normal(len(block))) for block in (z.x, z.y))
        step = 1e-6 / max(1.0, float(torch.cat((dx, dy)).norm()))
        up, down = (problem.value(Point(z.x + s * dx, z.y + s * dy), batch) for s in (step, -step))
        slope = float(up - down) / (2 * step)
        assert slope == pytest.approx(float(g.x @ dx + g.y @ dy), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_rows_means_nothing(name: str) -> None:
    experiment = made(name)
    problem, batch, z = experiment.problem, rows_of(experiment), somewhere(experiment.problem)
    order = torch.from_numpy(draws.permutation(ROWS, 0, "order"))
    permuted = Batch(*(leaf[order] for leaf in batch))
    torch.testing.assert_close(problem.value(z, permuted), problem.value(z, batch), rtol=1e-10, atol=1e-12)
    g, other = (leaves(problem.gradient(z, each)) for each in (batch, permuted))
    torch.testing.assert_close(other, g, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "gan"])  # whose rows are mixed
def test_it_is_a_weighted_sum_over_rows(name: str) -> None:
    experiment = made(name)
    problem, batch, z = experiment.problem, rows_of(experiment), somewhere(experiment.problem)
    assert not problem.mixes_rows
    parts = [
        batch._replace(weights=batch.weights * there) for there in (torch.arange(ROWS) < 5, torch.arange(ROWS) >= 5)
    ]
    g, first, second = (leaves(problem.gradient(z, each)) for each in (batch, *parts))
    torch.testing.assert_close(first + second, g, rtol=1e-9, atol=1e-11)
    value = sum(problem.value(z, part) for part in parts)
    torch.testing.assert_close(value, problem.value(z, batch), rtol=1e-10, atol=1e-12)
    without = Batch(*(leaf[:5] for leaf in parts[0]))  # rows of weight 0 are padding
    torch.testing.assert_close(leaves(problem.gradient(z, without)), first, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", NAMES)
def test_both_engines_take_the_same_steps(name: str, tmp_path: Path) -> None:
    loop, together = (trajectory(made(name, clients={"engine": e}), tmp_path, 2) for e in ("loop", "vectorized"))
    for a, b in zip(loop, together, strict=True):
        torch.testing.assert_close(leaves(a), leaves(b), rtol=1e-9, atol=1e-11)
    assert (loop[0] - loop[-1]).norm() > 1e-4


@pytest.mark.parametrize("name", [name for name in NAMES if name != "gan"])  # images depend on those made with them
def test_an_evaluation_in_pieces_is_that_of_the_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = made(name)
    fleet, z = InProcessFleet(experiment.engine()), somewhere(experiment.problem)

    def metrics() -> Any:
        pools = {split: fleet.pool(split) for split in experiment.splits}
        return evaluated(experiment.problem, z, fleet.pool("train"), pools)

    whole = metrics()
    monkeypatch.setattr("clients.engine.CHUNK_ROWS", 7)
    monkeypatch.setattr("clients.pool.SPAN_ROWS", 21)
    pieces = metrics()
    assert isinstance(experiment.problem, Evaluated)
    for split in experiment.splits:
        assert experiment.problem.headline in whole[split]
        assert pieces[split] == pytest.approx(whole[split], rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_it_goes_to_another_process_as_it_is(name: str) -> None:
    experiment = made(name)
    problem, batch, z = experiment.problem, rows_of(experiment), somewhere(experiment.problem)
    again = pickle.loads(pickle.dumps(problem))
    assert torch.equal(again.value(z, batch), problem.value(z, batch))
    assert torch.equal(again.init(3).x, problem.init(3).x)


@pytest.mark.parametrize("name", NAMES)
def test_its_abilities_are_what_they_promise(name: str) -> None:
    experiment = made(name)
    problem = experiment.problem
    z = problem.init(0)
    assert torch.equal(leaves(z), leaves(problem.init(0)))
    if isinstance(problem, Named):
        parts = problem.parts(z)
        assert sum(part.numel() for part in parts.values()) == len(leaves(z)), "every number has a name"
    if isinstance(problem, HasNetworks):
        assert problem.networks
        assert problem.mixes_rows == any(layers(net.module) for net in problem.networks)
        assert sum(net.size for net in problem.networks) <= len(leaves(z))
    if isinstance(problem, LabelScored):
        scores = problem.label_scores(experiment.shards.train.labels)
        assert scores.shape == experiment.shards.train.labels.shape
        assert 0 <= scores.min() <= scores.max() <= 1
