"""A quadratic saddle problem whose solution is known in closed form, which tests measure algorithms by.

A row of the data set `quadratic` (raysim.data) holds the coefficients (A, B, C, a, c) of

    F(x, y; row) = 1/2 x'Ax + x'By - 1/2 y'Cy + a'x - c'y,

so clients differ as their rows do. With the mean coefficients, f = mean_i f_i is stationary where

    [ A   B ] [x]   [-a]
    [-B'  C ] [y] = [-c],

a saddle if A and C are positive definite. C^+ being the pseudo-inverse of C, which may be singular where the rows of B
and c are orthogonal to its null space, Phi(x) = max_y f(x, y) has the gradient grad_x f + B C^+ grad_y f, at any y.

Legend: X = D_x, Y = D_y.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from pydantic.dataclasses import dataclass as record
from torch import Tensor

from raysim.batch import Batch
from raysim.data import Shards, unpack_quadratic
from raysim.errors import ConfigError
from raysim.point import Point
from raysim.problems.abilities import ScoredByRow
from raysim.problems.problem import DataSpec, Problem
from raysim.registry import STRICT


@record(frozen=True, kw_only=True, config=STRICT)
class Quadratic(ScoredByRow, Problem):
    """A quadratic with a closed-form solution, strongly convex-concave or nonconvex-PL, for the data set of that name.

    Attributes:
        dim_x: D_x.
        dim_y: D_y; both as in the data.
    """

    data: DataSpec
    dim_x: Annotated[int, Field(ge=1)] = 4
    dim_y: Annotated[int, Field(ge=1)] = 3

    headline: ClassVar[str] = "gradient_norm"
    higher_is_better: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.data.shape != (self._coefficients,):
            raise ConfigError(
                "problem.dim_x", f"rows of shape {self.data.shape} hold no quadratic of {self.dim_x} and {self.dim_y}"
            )

    @cached_property
    def _coefficients(self) -> int:
        return self.dim_x**2 + self.dim_x * self.dim_y + self.dim_y**2 + self.dim_x + self.dim_y

    def init(self, seed: int) -> Point:
        """Returns (1, ..., 1), away from the saddle, whatever the seed."""
        return Point(torch.ones(self.dim_x), torch.ones(self.dim_y))

    def value(self, z: Point, batch: Batch) -> Tensor:
        A, B, C, a, c = unpack_quadratic(batch.weights @ batch.inputs, self.dim_x, self.dim_y)
        x, y = z.x, z.y
        return x @ A @ x / 2 + x @ B @ y - y @ C @ y / 2 + a @ x - c @ y

    def outputs(self, z: Point, batch: Batch) -> Tensor:
        """Returns (grad_x F, grad_y F, B, C) of each row, flattened, (rows, X + Y + X*Y + Y*Y)."""
        A, B, C, a, c = unpack_quadratic(batch.inputs, self.dim_x, self.dim_y)
        gx = A @ z.x + B @ z.y + a
        gy = B.transpose(-1, -2) @ z.x - C @ z.y - c
        return torch.cat((gx, gy, B.flatten(-2), C.flatten(-2)), dim=-1)

    def metrics(self, z: Point, outputs: NDArray[np.float64], labels: NDArray[np.int64]) -> Mapping[str, float | None]:
        """Returns `gradient_norm` |grad f| and `primal_gradient_norm` |grad Phi|, where f is the mean over the rows."""
        X, Y = self.dim_x, self.dim_y
        gx, gy, B, C = np.split(outputs.mean(0), np.cumsum((X, Y, X * Y)))
        primal = gx + B.reshape(X, Y) @ _inverse(C.reshape(Y, Y)) @ gy
        return {
            "gradient_norm": float(np.linalg.norm((*gx, *gy))),
            "primal_gradient_norm": float(np.linalg.norm(primal)),
        }

    def known(self, shards: Shards) -> Point:
        """Returns the stationary point of the mean over clients, float64; of several, the one nearest to `init`."""
        means = np.stack([shards.shard(i)[0].mean(0, dtype=np.float64) for i in range(shards.n_clients)])
        A, B, C, a, c = unpack_quadratic(means.mean(0), self.dim_x, self.dim_y)
        start = self.init(0)
        z, matrix = np.concatenate((start.x, start.y), dtype=np.float64), np.block([[A, B], [-B.T, C]])
        z += _inverse(matrix) @ (np.concatenate((-a, -c)) - matrix @ z)
        return Point(torch.from_numpy(z[: self.dim_x]), torch.from_numpy(z[self.dim_x :]))


def _inverse(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the pseudo-inverse of a mean of float32 matrices; singular values within their rounding count as 0."""
    if not np.isfinite(matrix).all():
        return np.full_like(matrix, np.nan)  # as sums and products do; the decomposition would raise an error
    return np.asarray(np.linalg.pinv(matrix, rcond=len(matrix) * np.finfo(np.float32).eps), dtype=np.float64)
