"""Counter-based chance: known laws, and independence of everything that must not matter."""

import subprocess
import sys

import numpy as np
import pytest

from raysim import draws


def test_uniform_numbers_are_uniform_and_uncorrelated() -> None:
    u = draws.uniform(1, "test", 3, np.arange(100_000))
    counts = np.histogram(u, bins=100, range=(0, 1))[0]
    assert ((counts - 1000) ** 2 / 1000).sum() < 149.4  # chi-squared, 99 degrees of freedom, p = 0.0008
    assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 4 / np.sqrt(len(u))


def test_every_counter_the_seed_and_the_purpose_matter() -> None:
    base = draws.bits(1, "a", 2, 3, np.arange(50))
    for other in (
        draws.bits(2, "a", 2, 3, np.arange(50)),
        draws.bits(1, "b", 2, 3, np.arange(50)),
        draws.bits(1, "a", 3, 3, np.arange(50)),
        draws.bits(1, "a", 2, 4, np.arange(50)),
        draws.bits(1, "a", 3, 2, np.arange(50)),
        draws.bits(1, "a", 2, 3, np.arange(50, 100)),
    ):
        assert not np.isin(base, other).any()


def test_an_element_does_not_depend_on_the_array_it_is_drawn_in() -> None:
    together = draws.bits(7, "test", np.arange(1000))
    assert together[123] == draws.bits(7, "test", 123)
    assert (draws.bits(7, "test", np.arange(1000)[::-1])[::-1] == together).all()


def test_another_process_draws_the_same() -> None:
    code = "from raysim import draws; print(int(draws.bits(7, 'test', 1, 2)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(out) == int(draws.bits(7, "test", 1, 2))


@pytest.mark.parametrize("n", [0, 1, 2, 17, 1000])
def test_a_permutation_is_one(n: int) -> None:
    assert sorted(draws.permutation(n, 0, "test", 4)) == list(range(n))


def test_all_orders_of_three_are_equally_likely() -> None:
    orders = [tuple(draws.permutation(3, 0, "test", i)) for i in range(6000)]
    _, counts = np.unique(orders, axis=0, return_counts=True)
    assert len(counts) == 6
    assert ((counts - 1000) ** 2 / 1000).sum() < 20.5  # chi-squared, 5 degrees of freedom, p = 0.001


@pytest.mark.parametrize("S", [6, 14])
def test_a_sample_is_uniform_without_replacement(S: int) -> None:
    """Counts over many draws obey the law of sampling without replacement, singly and in pairs."""
    N = 30
    R = 4000
    drawn = np.zeros((R, N), dtype=int)
    for r in range(R):
        sample = draws.sample(np.arange(N), S, 0, "test", r)
        assert len(sample) == S
        assert (np.diff(sample) > 0).all(), "ascending and distinct"
        drawn[r, sample] = 1
    v = R * (S / N) * (1 - S / N)
    statistic = (N - 1) / N * ((drawn.sum(0) - R * S / N) ** 2 / v).sum()
    assert 10 < statistic < 58.3  # chi-squared, 29 degrees of freedom, p = 0.0005 and 0.999
    pairs = (drawn.T @ drawn)[np.triu_indices(N, 1)] / R
    p = S * (S - 1) / (N * (N - 1))
    assert abs(pairs - p).max() < 4.5 * np.sqrt(p * (1 - p) / R)


def test_a_sample_of_all_is_all_and_one_of_many_has_distinct_elements() -> None:
    population = np.arange(100, 1100)
    assert (draws.sample(population, 1000, 0, "test", 1) == population).all()
    many = draws.sample(population, 250, 3, "test", 2)
    assert len(np.unique(many)) == 250
    assert (draws.sample(population, 250, 3, "test", 2) == many).all()


def test_generators_of_two_purposes_differ_and_repeat() -> None:
    a, b, c = (draws.generator(3, purpose).standard_normal(4) for purpose in ("a", "a", "b"))
    assert (a == b).all()
    assert not (a == c).any()
