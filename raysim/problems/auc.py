"""AUC maximisation as a min-max problem.

Y. Ying, L. Wen, S. Lyu, "Stochastic online AUC maximization", NeurIPS 2016; M. Liu et al., "Stochastic AUC maximization
with deep neural networks", ICLR 2020; as stated in J. Xie et al., "Efficient cross-device federated learning algorithms
for minimax problems", appendix B.2. With score h, label b in {-1, +1} and prior p = P(b = +1):

    F = (1-p)(h-s1)^2 [b=+1] + p(h-s2)^2 [b=-1] + 2(1+y)(p h [b=-1] - (1-p) h [b=+1]) - p(1-p) y^2

| symbol | name | meaning |
|---|---|---|
| x = (w, s1, s2) | z.x | network weights, then the mean score of positives and of negatives (a, b in the paper) |
| y | z.y | the dual scalar (lambda in the paper) |
| p | prior | share of positive rows over all clients (tau in the paper) |

F is 2p(1-p)-strongly concave in y. With w held, the saddle is s1 = E[h|+], s2 = E[h|-], y = s2 - s1, and F there is
p(1-p) (E[(1 - h + h')^2] - 1) over pairs of a positive h and a negative h', which is negative for a good scorer. Judge
a scorer by its AUC, not by F.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from pydantic.dataclasses import dataclass as record
from torch import Tensor

from raysim.batch import Batch
from raysim.errors import ConfigError
from raysim.models.network import Network
from raysim.point import Point
from raysim.problems.abilities import ClosedFormDual
from raysim.problems.binary import Binary
from raysim.registry import STRICT


@record(frozen=True, kw_only=True, config=STRICT)
class AUC(ClosedFormDual, Binary):
    """AUC maximisation of a scoring network, chosen classes against the rest (x: weights, s1, s2; y: scalar).

    Attributes:
        positive: the classes whose label is +1.
        prior: share of positives, known to every client; None takes it from the class counts of all training data. A
            prior estimated per batch would make the loss identically 0 on a client with one class.
        score: `softmax` keeps one output per class and takes softmax(logits)[1] (the CD-MAGE authors' choice, to which
            the paper's step sizes belong); `sigmoid` has one output.
    """

    prior: Annotated[float, Field(gt=0, lt=1)] | None = None
    score: Literal["softmax", "sigmoid"] = "softmax"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.score == "softmax" and self.data.classes < 2:
            raise ConfigError("problem.score", "softmax needs at least two classes; take 'sigmoid'")

    @cached_property
    def p(self) -> float:
        """The prior: the setting, or else the share of positive rows in all training data."""
        return super().p if self.prior is None else self.prior

    @cached_property
    def net(self) -> Network:
        """The scoring network: one output per class, or one."""
        return self.network(self.data.classes if self.score == "softmax" else 1)

    def init(self, seed: int) -> Point:
        w = self.net.init(seed)
        return Point(torch.cat((w, w.new_zeros(2))), w.new_zeros(1))

    def scores(self, outputs: Tensor) -> Tensor:
        return torch.softmax(outputs, dim=-1)[..., 1] if self.score == "softmax" else torch.sigmoid(outputs[..., 0])

    def loss(self, outputs: Tensor, rest: Tensor, y: Tensor, batch: Batch) -> Tensor:
        """Returns F of the module's docstring, as the weighted sum over the batch's rows."""
        h, p = self.scores(outputs), self.p
        positive = self.is_positive(batch.labels)
        s1, s2 = rest[..., :1], rest[..., 1:]
        slope = p - positive.to(h.dtype)  # -(1-p) for a positive row, p for a negative one
        f = slope.abs() * (h - torch.where(positive, s1, s2)) ** 2 + 2 * (1 + y) * slope * h - p * (1 - p) * y**2
        return (batch.weights * f).sum(-1)

    def best_dual(self, z: Point, batch: Batch) -> Tensor:
        """Returns the y that maximises F on the batch, E[h|-] - E[h|+] where a share p of its rows is positive."""
        slope = self.p - self.is_positive(batch.labels).to(z.x.dtype)
        return (batch.weights * slope * self.outputs(z, batch)).sum(-1, keepdim=True) / (self.p * (1 - self.p))

    def metrics(self, z: Point, outputs: NDArray[np.float64], labels: NDArray[np.int64]) -> Mapping[str, float | None]:
        """Returns `auc` and `score_std` of the scores, and `value`, which is F over the pooled rows."""
        h, pos = outputs, self.are_positive(labels)
        s1, s2, y, p = float(z.x[-2]), float(z.x[-1]), float(z.y[0]), self.p
        f = np.where(
            pos,
            (1 - p) * (h - s1) ** 2 - 2 * (1 + y) * (1 - p) * h,
            p * (h - s2) ** 2 + 2 * (1 + y) * p * h,
        )
        return {**self.ranking(h, labels), "value": float(f.mean()) - p * (1 - p) * y**2}

    def parts(self, z: Point) -> Mapping[str, Tensor]:
        return {**self.net.unflatten(z.x[:-2]), "s1": z.x[-2], "s2": z.x[-1], "y": z.y[0]}
