"""The ruler itself: its gradient and its saddle, by other means."""

from pathlib import Path

import numpy as np
import torch

from raysim.data import PARTITIONERS, SOURCES, Shards, build
from raysim.phase import Batch
from raysim.point import Point
from raysim.problems import DataSpec, Quadratic


def made(tmp_path: Path) -> tuple[Quadratic, Shards]:
    source = SOURCES.build("quadratic", {"clients": 5, "rows": 4, "dim_x": 3, "dim_y": 2, "noise": 0.5})
    shards = Shards.open(build(source, PARTITIONERS.build("natural", {}), 0, tmp_path))
    return Quadratic(data=DataSpec(shards.shape, (20,)), dim_x=3, dim_y=2), shards


def everything(shards: Shards) -> Batch:
    rows = np.arange(20)
    share = torch.full((20,), 1 / 20, dtype=torch.float64)
    return Batch(shards.inputs(rows, dtype=torch.float64), shards.labels(rows), share)


def test_the_gradient_vanishes_at_the_known_saddle_and_nowhere_near(tmp_path: Path) -> None:
    problem, shards = made(tmp_path)
    z = problem.known(shards)
    assert problem.gradient(z, everything(shards)).norm() < 1e-12
    assert problem.gradient(Point(z.x + 0.1, z.y), everything(shards)).norm() > 1e-2


def test_the_saddle_is_a_minimum_in_x_and_a_maximum_in_y(tmp_path: Path) -> None:
    problem, shards = made(tmp_path)
    z, data = problem.known(shards), everything(shards)
    at = problem.value(z, data)
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        dx, dy = (torch.randn(n, generator=generator, dtype=torch.float64) for n in (3, 2))
        assert problem.value(Point(z.x + dx, z.y), data) > at > problem.value(Point(z.x, z.y + dy), data)


def test_row_outputs_average_to_the_gradient(tmp_path: Path) -> None:
    problem, shards = made(tmp_path)
    z, data = problem.init(0).to(torch.float64), everything(shards)
    g = problem.gradient(z, data)
    rows = problem.outputs(z, data.inputs)
    torch.testing.assert_close(rows.mean(0), torch.cat((g.x, g.y)))
    assert np.isclose(problem.metrics(z, rows.numpy(), np.zeros(20))["gradient_norm"], g.norm())
