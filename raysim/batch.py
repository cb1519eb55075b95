"""A batch: rows of one client's shard, with the weight and the random numbers of each row."""

from typing import NamedTuple

import torch
from torch import Tensor


class Batch(NamedTuple):
    """Holds B rows of one client's shard.

    A value or a gradient on the batch is the weighted sum over its rows, F(z; batch) = sum_b weights_b F(z; row b).

    Attributes:
        inputs: (B, *shape), of the model's dtype.
        labels: (B,) int64, the data set's own classes.
        weights: (B,) of the model's dtype: 1/B in a minibatch, 1/n_i in each chunk of a pass over a whole shard, and 0
            where a row is padding.
        noise: (B, problem.noise), uniform on [0, 1): the random numbers that a row's part in the problem depends on.
            They are drawn afresh for each step and belong to the batch, so that gradients at two points see the same.
    """

    inputs: Tensor
    labels: Tensor
    weights: Tensor
    noise: Tensor = torch.empty(0)
