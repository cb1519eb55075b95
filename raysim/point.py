"""Point: a pair (x, y) of flat vectors, the primal and the dual variable of min over x, max over y of f(x, y)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree  # torch.func walks trees by this module; Point is registered in it

from raysim.domain import Domain


@dataclass(frozen=True, slots=True)
class Point:
    """A pair z = (x, y), or anything of the same shape: a gradient, a direction, an estimate.

    Attributes:
        x: primal block, shape (D_x,).
        y: dual block, shape (D_y,).
        domain: the convex set that y is confined to; None is the whole space. A point has it, a difference or a
            gradient has None. Steps from a point are projected onto it, so that every algorithm projects after each
            local step and each step of the server; a mean of points lies in a convex set by itself.
    """

    x: Tensor
    y: Tensor
    domain: Domain | None = None

    def __add__(self, other: "Point") -> "Point":
        return Point(self.x + other.x, self.y + other.y)

    def __sub__(self, other: "Point") -> "Point":
        return Point(self.x - other.x, self.y - other.y)

    def __rmul__(self, scale: float) -> "Point":
        return Point(scale * self.x, scale * self.y)

    def descent_ascent(self, d: "Point", eta: float, gamma: float) -> "Point":
        """Returns (x - eta d_x, y + gamma d_y), the step of every algorithm, where d is a gradient, not negated."""
        return self._at(self.x - eta * d.x, self.y + gamma * d.y)

    def towards(self, other: "Point", eta: float, gamma: float) -> "Point":
        """Returns (x + eta (x' - x), y + gamma (y' - y)), a server's step towards `other`, which is (x', y')."""
        return self._at(self.x + eta * (other.x - self.x), self.y + gamma * (other.y - self.y))

    def zeros_like(self) -> "Point":
        """Returns zeros of the same shapes, without a domain."""
        return Point(torch.zeros_like(self.x), torch.zeros_like(self.y))

    def to(self, dtype: torch.dtype) -> "Point":
        """Returns the point in another type, with its domain."""
        return Point(self.x.to(dtype), self.y.to(dtype), self.domain)

    def norm(self) -> float:
        """Returns the Euclidean norm of the pair, sqrt(|x|^2 + |y|^2)."""
        return float(torch.linalg.vector_norm(torch.cat((self.x, self.y))))

    def _at(self, x: Tensor, y: Tensor) -> "Point":
        return Point(x, y if self.domain is None else self.domain.project(y), self.domain)


def _flatten(z: Point) -> tuple[list[Tensor], Domain | None]:
    return [z.x, z.y], z.domain


def _unflatten(leaves: Any, domain: Domain | None) -> Point:
    x, y = leaves
    return Point(x, y, domain)


pytree.register_pytree_node(Point, _flatten, _unflatten, serialized_type_name="raysim.point.Point")
