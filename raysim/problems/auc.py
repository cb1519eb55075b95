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
p(1-p) (E[(1 - h + h')^2] - 1) over pairs of a positive h and a negative h': negative for a good scorer. Read the AUC.
"""

import functools
import operator
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from pydantic.dataclasses import dataclass as record
from torch import Tensor

from raysim.errors import ConfigError
from raysim.models.network import Network, NetworkFactory
from raysim.phase import Batch
from raysim.point import Point
from raysim.problems.problem import Curve, DataSpec, NetworkProblem, Pool
from raysim.registry import STRICT

# Kept of a ROC curve. What lies between two of them, right and up, is 1/250 long, and a straight line instead takes at
# most 1/8 of that squared from the area: 1e-3 in all.
ROC_POINTS = 500


# Standard deviation of scores below which they are called the same: ranks are then those of rounding.
SAME_SCORES = 1e-6


@record(frozen=True, kw_only=True, config=STRICT)
class AUC(NetworkProblem):
    """AUC maximisation of a scoring network, chosen classes against the rest (x: weights, s1, s2; y: scalar).

    Attributes:
        positive: the classes whose label is +1.
        prior: share of positives, known to every client; None takes it from the class counts of all training data. A
            prior estimated per batch would make the loss identically 0 on a client with one class.
        score: `softmax` keeps one output per class and takes softmax(logits)[1] (the CD-MAGE authors' choice, to which
            the paper's step sizes belong); `sigmoid` has one output.
    """

    network: NetworkFactory
    data: DataSpec
    positive: Annotated[tuple[int, ...], Field(min_length=1)] = (0,)
    prior: Annotated[float, Field(gt=0, lt=1)] | None = None
    score: Literal["softmax", "sigmoid"] = "softmax"

    headline: ClassVar[str] = "auc"

    def __post_init__(self) -> None:
        classes = self.data.classes
        for c in self.positive:
            if not 0 <= c < classes:
                raise ConfigError("problem.positive", f"class {c} is not in the data, which has 0 to {classes - 1}")
        if not 0 < self.p < 1:
            raise ConfigError("problem.positive", f"{self.p:.0%} of the rows are positive; both kinds are needed")
        if self.score == "softmax" and classes < 2:
            raise ConfigError("problem.score", "softmax needs at least two classes; take 'sigmoid'")
        self._check_net()

    @cached_property
    def p(self) -> float:
        """The prior in use."""
        counts = self.data.class_counts
        return self.prior if self.prior is not None else sum(counts[c] for c in set(self.positive)) / sum(counts)

    @cached_property
    def net(self) -> Network:
        """The scoring network: one output per class, or one."""
        return self.network(self.data.classes if self.score == "softmax" else 1)

    def init(self, seed: int) -> Point:
        w = self.net.init(seed)
        return Point(torch.cat((w, w.new_zeros(2))), w.new_zeros(1))

    def loss(self, outputs: Tensor, rest: Tensor, y: Tensor, batch: Batch) -> Tensor:
        """F of the module's docstring, over the batch's rows."""
        h, p = self._scores(outputs), self.p
        positive = self._is_positive(batch.labels)
        s1, s2 = rest[..., :1], rest[..., 1:]
        slope = p - positive.to(h.dtype)  # -(1-p) for a positive row, p for a negative one
        f = slope.abs() * (h - torch.where(positive, s1, s2)) ** 2 + 2 * (1 + y) * slope * h - p * (1 - p) * y**2
        return (batch.weights * f).sum(-1)

    def outputs(self, z: Point, batch: Batch) -> Tensor:
        """Scores h, shape (B,)."""
        return self._scores(self.net(z.x[:-2], batch.inputs))

    def metrics(self, z: Point, outputs: NDArray[np.float64], labels: NDArray[np.int64]) -> Mapping[str, float | None]:
        """`auc`: exact area under the ROC curve of the pooled scores, None when a split has one kind of label only.
        `value`: F over the pooled rows. `score_std`: spread of the scores; near 0 the network has saturated."""
        from sklearn.metrics import roc_auc_score

        h, pos = outputs, np.isin(labels, self.positive)
        s1, s2, y, p = float(z.x[-2]), float(z.x[-1]), float(z.y[0]), self.p
        f = np.where(
            pos,
            (1 - p) * (h - s1) ** 2 - 2 * (1 + y) * (1 - p) * h,
            p * (h - s2) ** 2 + 2 * (1 + y) * p * h,
        )
        return {
            "auc": float(roc_auc_score(pos, h)) if 0 < pos.sum() < len(pos) else None,
            "value": float(f.mean()) - p * (1 - p) * y**2,
            "score_std": float(h.std()),
        }

    def trouble(self, metrics: Mapping[str, float | None]) -> str | None:
        spread = metrics["score_std"]
        if spread is not None and spread < SAME_SCORES:
            return (
                "all scores are the same: the network has saturated or died, and its gradients vanish; take smaller "
                "step sizes or another seed. Steps that were tuned with model.final_relu are too large without it"
            )
        return super().trouble(metrics)

    def curves(self, z: Point, pool: Pool) -> Mapping[str, Curve]:
        """`roc`: of the pooled scores, where a split has both kinds of label."""
        from sklearn.metrics import roc_curve

        pos = np.isin(pool.labels, self.positive)
        if pos.all() or not pos.any():
            return {}
        false, true, _ = roc_curve(pos, pool.each(type(self).outputs, z))
        if len(false) > ROC_POINTS:
            # Evenly along the curve: every so many of its corners would cut off long stretches.
            at = np.linspace(0, 2, ROC_POINTS)
            false, true = np.interp(at, false + true, false), np.interp(at, false + true, true)
        return {"roc": Curve(false, true, "false positive rate", "true positive rate")}

    def label_scores(self, labels: NDArray[np.int64]) -> NDArray[np.float64]:
        """1 for a positive row, so that a client's mean is its share of positives."""
        return np.isin(labels, self.positive).astype(np.float64)

    def parts(self, z: Point) -> Mapping[str, Tensor]:
        return {**self.net.unflatten(z.x[:-2]), "s1": z.x[-2], "s2": z.x[-1], "y": z.y[0]}

    def _scores(self, logits: Tensor) -> Tensor:
        return torch.softmax(logits, dim=-1)[..., 1] if self.score == "softmax" else torch.sigmoid(logits[..., 0])

    def _is_positive(self, labels: Tensor) -> Tensor:
        return functools.reduce(operator.or_, (labels == c for c in self.positive))
