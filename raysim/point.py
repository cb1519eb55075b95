"""Point: a pair (x, y) of flat vectors, the primal and the dual variable of min over x, max over y of f(x, y)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree  # what torch.func itself walks; Point must be one of its nodes

from raysim.domain import Domain


@dataclass(frozen=True, slots=True)
class Point:
    """z = (x, y), or anything of the same shape: a gradient, a direction, an estimate.

    Attributes:
        x: primal block, shape (D_x,).
        y: dual block, shape (D_y,).
        domain: what y is confined to, None being everything. A point knows it, a difference or a gradient does not.
            Steps from a point end in it, so that every algorithm projects after each local step and each step of the
            server; a mean of points lies in it by itself.
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
        """(x - eta d_x, y + gamma d_y): the simultaneous step every algorithm takes, d being an un-negated gradient."""
        return self._at(self.x - eta * d.x, self.y + gamma * d.y)

    def towards(self, other: "Point", eta: float, gamma: float) -> "Point":
        """eta of the way to `other` in x and gamma of it in y: a server's step, beyond it where they are above 1."""
        return self._at(self.x + eta * (other.x - self.x), self.y + gamma * (other.y - self.y))

    def zeros_like(self) -> "Point":
        return Point(torch.zeros_like(self.x), torch.zeros_like(self.y))

    def to(self, dtype: torch.dtype) -> "Point":
        return Point(self.x.to(dtype), self.y.to(dtype), self.domain)

    def norm(self) -> float:
        """The Euclidean norm of the pair."""
        return float(torch.linalg.vector_norm(torch.cat((self.x, self.y))))

    def _at(self, x: Tensor, y: Tensor) -> "Point":
        return Point(x, y if self.domain is None else self.domain.project(y), self.domain)


def _flatten(z: Point) -> tuple[list[Tensor], Domain | None]:
    return [z.x, z.y], z.domain


def _unflatten(leaves: Any, domain: Domain | None) -> Point:
    x, y = leaves
    return Point(x, y, domain)


pytree.register_pytree_node(Point, _flatten, _unflatten, serialized_type_name="raysim.point.Point")
