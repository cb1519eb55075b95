"""The screen for clients' results that cannot be used, because they are not finite or far too large."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from raysim.errors import ClientError
from raysim.exchange import Order


@dataclass(frozen=True)
class Screen:
    """Decides which results of clients can be used, and what is done about the others.

    Attributes:
        max_norm: largest Euclidean norm of all that a client uploads in a phase.
        reject: True leaves a result beyond it out of the mean, and its client's memory as it was; False stops the run.
    """

    max_norm: float
    reject: bool

    def accepts(self, norms: Tensor) -> Tensor:
        """Returns True for norms, of any shape, of results that can be used; a norm that is not finite is not below."""
        return norms <= self.max_norm

    def rejected(self, order: Order, client: int, norm: float) -> int:
        """Returns the number of a client whose result is left out. Raises ClientError where it stops the run."""
        if self.reject:
            return client
        fault = "is not finite" if not math.isfinite(norm) else f"has the norm {norm:.3g}"
        raise ClientError(
            client, order.round, order.phase.name,
            f"the upload {fault}, and server.max_norm is {self.max_norm:g}; look at this client's rows, take a smaller "
            "step size, or go on without such results with server.bad_results: reject",
        )  # fmt: skip


def norm(rows: Iterable[Tensor]) -> Tensor:
    """Returns the Euclidean norm, (...) float64, of all numbers of tensors (..., n) together."""
    squares = [_norm(tensor) ** 2 for tensor in rows] or [torch.zeros((), dtype=torch.float64)]
    total: Tensor = torch.stack(torch.broadcast_tensors(*squares)).sum(0).sqrt()
    return total


def _norm(rows: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(rows if rows.is_floating_point() else rows.double(), dim=-1)
    return norm.double()
