"""Sets that the dual variable is confined to."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Domain(Protocol):
    """A closed convex set of vectors y. Two that are equal are the same set."""

    def project(self, y: Tensor) -> Tensor:
        """Where y (D_y,) is to be moved: itself if it lies in the set."""


@dataclass(frozen=True)
class Simplex:
    """Numbers that are not negative and add up to 1.

    Attributes:
        renormalise: cut negative numbers off and divide by the sum, which is no projection; else the Euclidean
            projection, the nearest point.
    """

    renormalise: bool = False

    def project(self, y: Tensor) -> Tensor:
        if self.renormalise:
            kept = torch.relu(y)
            return kept / kept.sum()
        # J. Duchi et al., ICML 2008, figure 1. Of the thresholds that supports of 1, 2, ... numbers have, the right one
        # is the largest: the next number of the order raises a threshold exactly if it lies above it.
        falling = torch.sort(y, descending=True).values
        excess = (torch.cumsum(falling, 0) - 1) / torch.arange(1, len(y) + 1, dtype=y.dtype, device=y.device)
        return torch.relu(y - excess.amax())
