"""BatchNorm in evaluation: a population's statistics, which make no row depend on another."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from clients.fleet import InProcessFleet
from raysim.models.normalisation import moments, normalised
from raysim.point import Point
from raysim.problems import AUC
from tests.contracts.table import settings
from tests.play import DIGITS, experiment, server

BASE = dict(DIGITS) | {"model": {"name": "tests.toys:Normalised"}}


def net() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3, track_running_stats=False), nn.ReLU(), nn.Flatten(),
            nn.Linear(3 * 16, 4), nn.BatchNorm1d(4, affine=False, track_running_stats=False),
        ).double()  # fmt: skip


def rows(n: int) -> torch.Tensor:
    return 3 + torch.randn(n, 1, 6, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_of_one_batch_they_are_the_batch_s_own() -> None:
    module, inputs = net(), rows(20)
    found = moments([module], lambda: module(inputs))
    assert (found.shape, found.dtype) == ((2, 7), torch.float64)
    with normalised([module], found):
        torch.testing.assert_close(module(inputs), net()(inputs), rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(module(inputs[3:4]), net()(inputs)[3:4], rtol=1e-12, atol=1e-13)


def test_statistics_of_batches_of_different_sizes_add_up() -> None:
    module, inputs = net()[:2], rows(20)
    parts = [inputs[:3], inputs[3:20]]
    found = sum(len(part) / 20 * moments([module], lambda part=part: module(part)) for part in parts)
    torch.testing.assert_close(found, moments([module], lambda: module(inputs)), rtol=1e-12, atol=1e-13)


def test_a_layer_that_is_not_reached_does_not_matter() -> None:
    module, inputs = net(), rows(20)
    idle = nn.ModuleList([module, nn.BatchNorm1d(2, track_running_stats=False)])
    found = moments([idle], lambda: module(inputs))
    assert (found.shape, found[:, 7:].abs().max()) == ((2, 9), 0)
    with normalised([idle], found):
        torch.testing.assert_close(module(inputs), net()(inputs), rtol=1e-12, atol=1e-13)


def test_they_are_gone_afterwards_whatever_happens() -> None:
    module, inputs = net(), rows(8)
    before = module(inputs)
    with pytest.raises(ZeroDivisionError), normalised([module], torch.ones(2, 7)):
        raise ZeroDivisionError
    assert torch.equal(module(inputs), before)
    assert all(layer.training for layer in module)


@pytest.mark.parametrize("settled", [True, False])
def test_a_score_depends_on_no_other_row_of_its_batch(settled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made = experiment(BASE, settings("cd_ma"))
    z = made.problem.init(0).to(torch.float64)
    fleet = InProcessFleet(made.engine())
    seen = made.problem.settled(z, fleet.pool("train"))

    def scores() -> Any:
        pool = fleet.pool("test")
        return (seen(pool) if settled else pool).each(AUC.outputs, z)

    together = scores()
    monkeypatch.setattr("clients.engine.CHUNK_ROWS", 9)
    assert np.allclose(scores(), together, rtol=1e-10) == settled


def test_the_population_is_that_of_all_clients_training_rows_or_an_even_part_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By label, so that the first rows are of one class and would be another population."""
    made = experiment(BASE, settings("cd_ma"))
    fleet, z = InProcessFleet(made.engine()), made.problem.init(0).to(torch.float64)
    first = made.problem.net.module[2]
    inputs = made.shards.inputs(np.arange(len(made.shards.train.labels)), dtype=torch.float64).flatten(1)
    weight, bias = z.x[: 6 * 64].view(6, 64), z.x[6 * 64 : 6 * 65]
    hidden = inputs @ weight.T + bias

    def found() -> tuple[torch.Tensor, torch.Tensor]:
        pool = made.problem.settled(z, fleet.pool("train"))(fleet.pool("test"))
        mean, square = pool.moments
        assert len(mean) == first.num_features
        return mean, square - mean**2

    mean, variance = found()
    torch.testing.assert_close(mean, hidden.mean(0), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(variance, hidden.var(0, correction=0), rtol=1e-10, atol=1e-12)
    monkeypatch.setattr("raysim.problems.network.POPULATION_ROWS", 300)
    mean, variance = found()
    part = fleet.pool("train").spread(300).part
    some = hidden[part.rows(np.arange(len(inputs) // part.every), made.shards)]
    torch.testing.assert_close(mean, some.mean(0), rtol=1e-10, atol=1e-12)
    assert 150 <= len(some) <= 300


def test_a_run_is_evaluated_so_and_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    made = experiment(BASE, settings("cd_ma", batch=500, S=12))
    quiet = experiment(BASE, settings("cd_ma", batch=500, S=12), evaluate={"every": 9})
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    playing, other = server(made, tmp_path / "a"), server(quiet, tmp_path / "b")
    reports = [list(one.run()) for one in (playing, other)]
    assert torch.equal(playing.point.x, other.point.x)
    z, fleet = playing.point, InProcessFleet(made.engine())
    with normalised(
        [made.problem.net.module], made.problem.settled(z, fleet.pool("train"))(fleet.pool("test")).moments
    ):
        expected = made.problem.evaluate(z, fleet.pool("test"))
    assert reports[0][-1].metrics["test"] == pytest.approx(expected)
    assert made.problem.evaluate(z, fleet.pool("test")) != pytest.approx(expected)


def test_points_beside_are_evaluated_under_their_names(tmp_path: Path) -> None:
    algorithm = settings("local_scgdam", S=12)
    made = experiment(DIGITS, algorithm, problem={"name": "compositional_auc", "rho": 2.0, "score": "sigmoid"})
    playing = server(made, tmp_path)
    *_, last = playing.run()
    fleet = InProcessFleet(made.engine())
    found = last.metrics["test"]
    h = Point(playing.state.h, playing.state.z.y)
    for prefix, z in (("", playing.point), ("inner_", h)):
        own = made.problem.evaluate(z, fleet.pool("test"))
        assert {name: found[prefix + name] for name in own} == own
    assert found["inner_auc"] != found["auc"]
