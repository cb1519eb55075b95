"""What is done about a client's result that cannot be used: one that is not finite, or far too large."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from raysim.errors import ClientError
from raysim.exchange import Order


@dataclass(frozen=True)
class Screen:
    """Attributes:
    max_norm: largest Euclidean norm of all that a client uploads in a phase.
    reject: leaves a result beyond it out of the mean, and its client's memory as it was; without, the run stops.
    """

    max_norm: float
    reject: bool

    def accepts(self, norms: Tensor) -> Tensor:
        """Of norms of any shape, which results can be used; one with a number that is not finite has no norm below."""
        return norms <= self.max_norm

    def rejected(self, order: Order, client: int, norm: float) -> int:
        """The client, whose result did not pass and is left out. Raises ClientError where that stops the run."""
        if self.reject:
            return client
        what = "is not finite" if not math.isfinite(norm) else f"has the norm {norm:.3g}"
        raise ClientError(
            client, order.round, order.phase.name,
            f"the upload {what}, and server.max_norm is {self.max_norm:g}; look at this client's rows, take a smaller "
            "step size, or go on without such results with server.bad_results: reject",
        )  # fmt: skip


def norm(rows: Iterable[Tensor]) -> Tensor:
    """(...) float64, of all numbers of tensors (..., n) together."""
    squares = [_norm(tensor) ** 2 for tensor in rows] or [torch.zeros((), dtype=torch.float64)]
    total: Tensor = torch.stack(torch.broadcast_tensors(*squares)).sum(0).sqrt()
    return total


def _norm(rows: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(rows if rows.is_floating_point() else rows.double(), dim=-1)
    return norm.double()
