"""Sets that the dual variable is confined to."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Domain(Protocol):
    """A closed convex set of vectors y. Two instances that compare equal are the same set."""

    def project(self, y: Tensor) -> Tensor:
        """Returns the point of the set that y (D_y,) is moved to, which is y itself where it lies in the set."""


@dataclass(frozen=True)
class Simplex:
    """The probability simplex: vectors y with y_i >= 0 and sum_i y_i = 1.

    Attributes:
        renormalise: True sets negative numbers to 0 and divides by the sum, which is not a projection; False takes the
            Euclidean projection, the nearest point of the set.
    """

    renormalise: bool = False

    def project(self, y: Tensor) -> Tensor:
        if self.renormalise:
            nonnegative = torch.relu(y)
            return nonnegative / nonnegative.sum()
        # J. Duchi et al., ICML 2008, figure 1. The projection is max(y - threshold, 0). Each size of its support gives
        # one threshold, and the right one is the largest: a further number raises it exactly if it lies above it.
        falling = torch.sort(y, descending=True).values
        excess = (torch.cumsum(falling, 0) - 1) / torch.arange(1, len(y) + 1, dtype=y.dtype, device=y.device)
        return torch.relu(y - excess.amax())
