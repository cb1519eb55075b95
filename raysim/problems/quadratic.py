"""The ruler: a quadratic saddle problem whose solution is known in closed form.

A row of the data set `quadratic` (raysim.data) holds the coefficients (A, B, C, a, c) of

    F(x, y; row) = 1/2 x'Ax + x'By - 1/2 y'Cy + a'x - c'y,

so clients differ as their rows do. f = mean_i f_i has the saddle of the mean coefficients,

    [ A   B ] [x]   [-a]
    [-B'  C ] [y] = [-c].
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

from raysim.data import Shards, unpack_quadratic
from raysim.errors import ConfigError
from raysim.phase import Batch
from raysim.point import Point
from raysim.problems.problem import DataSpec, Problem
from raysim.registry import STRICT


@record(frozen=True, kw_only=True, config=STRICT)
class Quadratic(Problem):
    """Strongly-convex-strongly-concave quadratic with a closed-form saddle, for the data set of the same name.

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
        """(1, ..., 1), away from the saddle, whatever the seed."""
        return Point(torch.ones(self.dim_x), torch.ones(self.dim_y))

    def value(self, z: Point, batch: Batch) -> Tensor:
        A, B, C, a, c = unpack_quadratic(batch.weights @ batch.inputs, self.dim_x, self.dim_y)
        x, y = z.x, z.y
        return x @ A @ x / 2 + x @ B @ y - y @ C @ y / 2 + a @ x - c @ y

    def outputs(self, z: Point, inputs: Tensor) -> Tensor:
        """(grad_x F, grad_y F) of each row, shape (B, D_x + D_y)."""
        A, B, C, a, c = unpack_quadratic(inputs, self.dim_x, self.dim_y)
        gx = A @ z.x + B @ z.y + a
        gy = B.transpose(-1, -2) @ z.x - C @ z.y - c
        return torch.cat((gx, gy), dim=-1)

    def metrics(self, z: Point, outputs: NDArray[np.float64], labels: NDArray[np.int64]) -> Mapping[str, float | None]:
        """`gradient_norm`: norm of the mean gradient over the rows, 0 at the saddle of the pooled data."""
        return {"gradient_norm": float(np.linalg.norm(outputs.mean(0)))}

    def known(self, shards: Shards) -> Point:
        """The saddle of the uniform mean over clients, float64."""
        means = np.stack([shards.shard(i)[0].mean(0, dtype=np.float64) for i in range(shards.n_clients)])
        A, B, C, a, c = unpack_quadratic(means.mean(0), self.dim_x, self.dim_y)
        z = np.linalg.solve(np.block([[A, B], [-B.T, C]]), np.concatenate((-a, -c)))
        return Point(torch.from_numpy(z[: self.dim_x]), torch.from_numpy(z[self.dim_x :]))
