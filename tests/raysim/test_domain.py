"""Projections against what defines them, and where steps end."""

import itertools

import numpy as np
import pytest
import torch

from raysim.domain import Simplex
from raysim.point import Point

CASES = [
    np.random.default_rng(seed).standard_normal(n) * scale for seed, n, scale in [(0, 2, 1), (1, 5, 3), (2, 7, 0.1)]
]
CASES += [np.array([0.2, 0.3, 0.5]), np.array([5.0, 5.0, -9.0]), np.array([-1.0, -1.0]), np.array([4.0])]


def nearest(v: np.ndarray) -> np.ndarray:
    """By trying every support: on it the nearest point differs from v by a constant."""
    best, distance = v, np.inf
    for size in range(1, len(v) + 1):
        for support in itertools.combinations(range(len(v)), size):
            chosen = list(support)
            y = np.zeros_like(v)
            y[chosen] = v[chosen] - (v[chosen].sum() - 1) / size
            if y.min() >= -1e-15 and np.linalg.norm(y - v) < distance:
                best, distance = y, np.linalg.norm(y - v)
    return best


@pytest.mark.parametrize("v", CASES)
def test_the_projection_onto_the_simplex_is_its_nearest_point(v: np.ndarray) -> None:
    y = Simplex().project(torch.from_numpy(v))
    np.testing.assert_allclose(y.numpy(), nearest(v), atol=1e-14)


def test_projecting_is_mapped_over_clients() -> None:
    v = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for domain in (Simplex(), Simplex(renormalise=True)):
        one_by_one = torch.stack([domain.project(row) for row in v.abs()])
        torch.testing.assert_close(torch.func.vmap(domain.project)(v.abs()), one_by_one, rtol=0, atol=0)


def test_renormalising_divides_what_is_not_negative() -> None:
    y = Simplex(renormalise=True).project(torch.tensor([3.0, -1.0, 1.0]))
    assert y.tolist() == [0.75, 0.0, 0.25]


def test_steps_from_a_point_end_in_its_domain_and_differences_have_none() -> None:
    z = Point(torch.zeros(2), torch.tensor([0.5, 0.5]), Simplex())
    d = Point(torch.zeros(2), torch.tensor([1.0, -1.0]))
    assert z.descent_ascent(d, 1.0, 0.3).y.tolist() == pytest.approx([0.8, 0.2])
    far = z.descent_ascent(d, 1.0, 9.0)
    assert far.y.tolist() == [1.0, 0.0]
    assert z.towards(far, 1.0, 1.5).y.tolist() == [1.0, 0.0], "a server's step beyond the mean"
    assert far.domain == z.to(torch.float64).domain == Simplex()
    assert (far - z).domain is (far + z).domain is z.zeros_like().domain is None
