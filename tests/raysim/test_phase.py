"""Sums of partials."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from raysim.exchange import Partial, pairwise_sum


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 13, 32])
@pytest.mark.parametrize("run", [1, 2, 4, 8])
def test_runs_of_two_to_the_k_may_be_added_up_first_without_changing_a_bit(n: int, run: int) -> None:
    values = np.random.default_rng(n).standard_normal((n, 50)) * 10.0 ** np.arange(-25, 25)
    partials = [Partial(torch.from_numpy(v), 0.1 * (i + 1), i) for i, v in enumerate(values)]
    whole = pairwise_sum(partials)
    in_runs = pairwise_sum(pairwise_sum(partials[i : i + run]) for i in range(0, n, run))
    assert torch.equal(in_runs.total, whole.total)
    assert in_runs.weight == whole.weight
    assert whole.bytes_up == sum(range(n))
    exact = [float(sum(map(Fraction, column))) for column in values.T.tolist()]
    np.testing.assert_allclose(whole.total.numpy(), exact, rtol=1e-13)
