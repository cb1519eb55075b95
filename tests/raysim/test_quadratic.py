"""The ruler itself: its gradients and its stationary points, by other means."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from raysim.batch import Batch
from raysim.data import PARTITIONERS, SOURCES, Shards, build, unpack_quadratic
from raysim.point import Point
from raysim.problems import DataSpec, Quadratic
from tests.contracts.table import settings
from tests.play import QUADRATIC, experiment, trajectory

MU = 0.5
# Concave in x and, since C is singular, not strongly concave in y. The seed makes Phi convex nevertheless.
NONCONVEX_PL = {"clients": 5, "rows": 4, "dim_x": 3, "dim_y": 5, "rank_y": 4, "shift": 1.2, "mu": MU, "noise": 0.5}
SEED = 9


def made(tmp_path: Path, **other: float) -> tuple[Quadratic, Shards]:
    data = {"clients": 5, "rows": 4, "dim_x": 3, "dim_y": 2, "noise": 0.5} | other
    source = SOURCES.build("quadratic", data)
    shards = Shards.open(build(source, PARTITIONERS.build("natural", {}), SEED, tmp_path))
    return Quadratic(data=DataSpec(shards.shape, (20,)), dim_x=data["dim_x"], dim_y=data["dim_y"]), shards


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
    rows = problem.outputs(z, data)
    torch.testing.assert_close(rows.mean(0)[:5], torch.cat((g.x, g.y)))
    assert np.isclose(problem.metrics(z, rows.numpy(), np.zeros(20))["gradient_norm"], g.norm())


def mean(shards: Shards, dim_y: int) -> tuple[NDArray[np.float64], ...]:
    """(A, B, C, a, c) of f."""
    return unpack_quadratic(shards.train.features.mean(0, dtype=np.float64), 3, dim_y)


def highest(shards: Shards, x: NDArray[np.float64], dim_y: int) -> float:
    """Phi(x) = max over y of f(x, y), from a least-squares solution of C y = B'x - c."""
    A, B, C, a, c = mean(shards, dim_y)
    y = np.linalg.lstsq(C, B.T @ x - c, rcond=1e-6)[0]
    return float(x @ A @ x / 2 + x @ B @ y - y @ C @ y / 2 + a @ x - c @ y)


@pytest.mark.parametrize("data", [{}, NONCONVEX_PL], ids=["strongly concave", "nonconvex-PL"])
def test_the_primal_gradient_is_that_of_the_maximum_over_y(data: dict[str, float], tmp_path: Path) -> None:
    problem, shards = made(tmp_path, **data)
    generator, h = torch.Generator().manual_seed(0), 1e-4
    for _ in range(5):
        x, y = (torch.randn(n, generator=generator, dtype=torch.float64) for n in (3, problem.dim_y))
        rows = problem.outputs(Point(x, y), everything(shards)).numpy()
        found = problem.metrics(Point(x, y), rows, np.zeros(20))["primal_gradient_norm"]
        differences = [
            (highest(shards, x.numpy() + e, problem.dim_y) - highest(shards, x.numpy() - e, problem.dim_y)) / (2 * h)
            for e in h * np.eye(3)
        ]
        assert found == pytest.approx(np.linalg.norm(differences), rel=1e-5)


def test_lower_rank_is_polyak_lojasiewicz_with_modulus_mu_and_not_strongly_concave(tmp_path: Path) -> None:
    problem, shards = made(tmp_path, **NONCONVEX_PL)
    data, generator = everything(shards), torch.Generator().manual_seed(0)
    for scale in (0.01, 1.0, 100.0):
        x, y = (scale * torch.randn(n, generator=generator, dtype=torch.float64) for n in (3, 5))
        z = Point(x, y)
        gap = highest(shards, x.numpy(), 5) - float(problem.value(z, data))
        assert float(problem.gradient(z, data).y.square().sum()) / 2 >= MU * gap > 0
    flat = torch.from_numpy(np.linalg.eigh(mean(shards, 5)[2])[1][:, 0])  # C has the eigenvalue 0 there
    at = problem.value(z, data)
    for step in (-100.0, 100.0):
        assert float(problem.value(Point(x, y + step * flat), data)) == pytest.approx(float(at), rel=1e-5)


@pytest.mark.slow
def test_cd_mage_converges_to_the_known_point_of_a_nonconvex_pl_problem(tmp_path: Path) -> None:
    algorithm = settings("cd_mage", S=5, K=5, batch=4, eta=0.01, gamma=0.1)  # every client and row: no chance
    dims = {"dim_x": 3, "dim_y": 5}
    run = experiment(QUADRATIC, algorithm, data=NONCONVEX_PL, problem=dims, seed=SEED)
    A, B, C, _, _ = mean(run.shards, 5)
    assert np.linalg.eigvalsh(A).max() < -0.1
    assert np.linalg.eigvalsh(A + B @ np.linalg.pinv(C, rcond=1e-6) @ B.T).min() > 0.1
    known = run.problem.known(run.shards)  # type: ignore[attr-defined]
    points = trajectory(run, tmp_path, 120)
    assert (points[0] - known).norm() > 0.5
    assert (points[-1] - known).norm() < 1e-5
    assert run.problem.gradient(known, everything(run.shards)).norm() < 1e-6
