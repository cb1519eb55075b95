"""Point: a pair (x, y) of flat vectors, the primal and the dual variable of min over x, max over y of f(x, y)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree  # what torch.func itself walks; Point must be one of its nodes


@dataclass(frozen=True, slots=True)
class Point:
    """z = (x, y), or anything of the same shape: a gradient, a direction, an estimate.

    Attributes:
        x: primal block, shape (D_x,).
        y: dual block, shape (D_y,).
    """

    x: Tensor
    y: Tensor

    def __add__(self, other: "Point") -> "Point":
        return Point(self.x + other.x, self.y + other.y)

    def __sub__(self, other: "Point") -> "Point":
        return Point(self.x - other.x, self.y - other.y)

    def __rmul__(self, scale: float) -> "Point":
        return Point(scale * self.x, scale * self.y)

    def descent_ascent(self, d: "Point", eta: float, gamma: float) -> "Point":
        """(x - eta d_x, y + gamma d_y): the simultaneous step every algorithm takes, d being an un-negated gradient."""
        return Point(self.x - eta * d.x, self.y + gamma * d.y)

    def towards(self, other: "Point", eta: float, gamma: float) -> "Point":
        """eta of the way to `other` in x and gamma of it in y: a server's step, beyond it where they are above 1."""
        return Point(self.x + eta * (other.x - self.x), self.y + gamma * (other.y - self.y))

    def zeros_like(self) -> "Point":
        return Point(torch.zeros_like(self.x), torch.zeros_like(self.y))

    def to(self, dtype: torch.dtype) -> "Point":
        return Point(self.x.to(dtype), self.y.to(dtype))

    def norm(self) -> float:
        """The Euclidean norm of the pair."""
        return float(torch.linalg.vector_norm(torch.cat((self.x, self.y))))


def _flatten(z: Point) -> tuple[list[Tensor], None]:
    return [z.x, z.y], None


def _unflatten(leaves: Any, _: None) -> Point:
    return Point(*leaves)


pytree.register_pytree_node(Point, _flatten, _unflatten, serialized_type_name="raysim.point.Point")
