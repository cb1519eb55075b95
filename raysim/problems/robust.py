"""Training against a universal perturbation: one change of all inputs that hurts the network most.

J. Xie et al., "Efficient cross-device federated learning algorithms for minimax problems", 2021,
https://arxiv.org/abs/2105.14216v2, section 5.2, after Y. Deng, M. Mahdavi, "Local stochastic gradient descent ascent",
AISTATS 2021:

    min over x, max over y of E cross-entropy(h_x(a + y), b) - penalty/2 |y|^2

| symbol | name | meaning |
|---|---|---|
| x | z.x | the network's weights |
| y | z.y | the perturbation, of an input's shape, flattened; 0 at first |
| lambda | penalty | in place of the constraint |y| <= 1 |

The robust loss is that maximum over y, estimated by 20 steps of gradient ascent of size 1 on all rows; they begin at
the present y, or at 0 where |y|^2 > 10, and the robust accuracy is measured where they end.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import NonNegativeFloat
from pydantic.dataclasses import dataclass as record
from torch import Tensor

from raysim.batch import Batch
from raysim.derivative import gradients
from raysim.models.network import Network, NetworkFactory
from raysim.point import Point
from raysim.problems.abilities import HasFigures
from raysim.problems.classification import pooled_losses, row_losses
from raysim.problems.network import NetworkProblem
from raysim.problems.pool import Pool
from raysim.problems.problem import DataSpec
from raysim.registry import STRICT

# The gradient ascent of the robust loss, as in the CD-MAGE authors' code.
ASCENT_STEPS = 20
STEP_SIZE = 1.0
RESET_ABOVE = 10.0


@record(frozen=True, kw_only=True, config=STRICT)
class Robust(HasFigures, NetworkProblem):
    """Classification under one perturbation of all inputs (x: network, y: the perturbation).

    Attributes:
        penalty: lambda of the module's docstring.
        halved: penalty/2 |y|^2 as in the paper; otherwise penalty |y|^2, as in its authors' code.
    """

    network: NetworkFactory
    data: DataSpec
    penalty: NonNegativeFloat = 0.001
    halved: bool = True

    headline: ClassVar[str] = "robust_loss"
    higher_is_better: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self._require_weights()

    @cached_property
    def net(self) -> Network:
        """The classifier."""
        return self.network(self.data.classes)

    def init(self, seed: int) -> Point:
        return Point(self.net.init(seed), torch.zeros(math.prod(self.data.shape)))

    def shift(self, y: Tensor) -> Tensor:
        return y.reshape(*y.shape[:-1], *self.data.shape)

    def loss(self, outputs: Tensor, rest: Tensor, y: Tensor, batch: Batch) -> Tensor:
        # The penalty belongs to each row, so that the chunks of a shard add up to the whole.
        rows = row_losses(outputs, batch.labels) - self._penalty((y**2).sum(-1, keepdim=True))
        return (batch.weights * rows).sum(-1)

    def outputs(self, z: Point, batch: Batch) -> Tensor:
        """Returns the logits of the perturbed rows, (B, C)."""
        return self.net(z.x, self.seen(z.y, batch.inputs))

    def ascent(self, z: Point, batch: Batch) -> Tensor:
        """Returns grad_y F on the batch, (D_y,)."""
        (gradient,) = gradients(lambda y: self.value(replace(z, y=y), batch), z.y)
        return gradient

    def evaluate(self, z: Point, pool: Pool) -> Mapping[str, float | None]:
        """Returns the metrics on a split, with and without a perturbation.

        `robust_loss` and `robust_accuracy` are at the perturbation that ascent finds, `loss` and `accuracy` at the
        present one, and `clean_accuracy` without any; `perturbation_norm` is |y| of the present one.
        """
        y = z.y if float((z.y**2).sum()) <= RESET_ABOVE else torch.zeros_like(z.y)
        for _ in range(ASCENT_STEPS):
            y = y + STEP_SIZE * pool.total(Robust.ascent, replace(z, y=y)).to(y.dtype)
        values: dict[str, float | None] = {}
        for prefix, at in (("robust_", y), ("", z.y), ("clean_", torch.zeros_like(y))):
            point = replace(z, y=at)
            measured = self.metrics(point, pool.each(Robust.outputs, point), pool.labels)
            values |= {f"{prefix}{name}": number for name, number in measured.items()}
        del values["clean_loss"]
        return values | {"perturbation_norm": float(z.y.norm())}

    def metrics(self, z: Point, outputs: NDArray[np.float64], labels: NDArray[np.int64]) -> Mapping[str, float | None]:
        """Returns `loss`, which is F, and `accuracy`."""
        losses = pooled_losses(outputs, labels)
        return {
            "loss": float(losses.mean()) - float(self._penalty((z.y.double() ** 2).sum())),
            "accuracy": float((outputs.argmax(1) == labels).mean()),
        }

    def pictures(self, z: Point) -> Mapping[str, Tensor]:
        """Returns `perturbation`, where grey is 0, and black and white are the largest change."""
        y = self.shift(z.y)
        if y.dim() != 3 or len(y) not in (1, 3):
            return {}
        return {"perturbation": (0.5 + y / (2 * y.abs().max().clamp(min=1e-12)))[None]}

    def parts(self, z: Point) -> Mapping[str, Tensor]:
        return {**self.net.unflatten(z.x), "perturbation": self.shift(z.y)}

    def _penalty(self, squares: Tensor) -> Tensor:
        return squares * (self.penalty / 2 if self.halved else self.penalty)
