"""Cross-entropy of chosen classes against the rest, and the ratio loss, with which AUC maximisation is compared.

X. Zhang et al., "Federated compositional deep AUC maximization", NeurIPS 2023, https://arxiv.org/abs/2304.10101,
section 6.1; the ratio loss is L. Wang, S. Xu, X. Wang, Q. Zhu, "Addressing class imbalance in federated learning", AAAI
2021, https://arxiv.org/abs/2008.06217, equation 8. With label b of a row and CE its cross-entropy:

    min over x of E w_b CE(h_x(a), b),    w_b = 1 for cross-entropy, alpha + beta R_b for the ratio loss

| symbol | name | meaning | default's source |
|---|---|---|---|
| x | z.x | the network's weights; there is no y, which has length 0 | |
| R_b | ratios | rows of the other kind for each row of kind b | see below |
| alpha, beta | alpha, beta | | 1, 0.1: the code of Wang et al. |

Wang et al. estimate R_b at the server, in every round, by how far the outputs of the last layer move when the global
model is trained on a few auxiliary rows of one class. With one output for both kinds, as in Zhang et al., who do not
say what they do, there are no outputs of a class to be watched: R_b is taken from the counts of all clients' rows,
which is what the estimate stands for.
"""

from collections.abc import Mapping
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import NonNegativeFloat
from pydantic.dataclasses import dataclass as record
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from raysim.batch import Batch
from raysim.point import Point
from raysim.problems.binary import Binary
from raysim.registry import STRICT


@record(frozen=True, kw_only=True, config=STRICT)
class BinaryCrossEntropy(Binary):
    """Cross-entropy of a network with one output, chosen classes against the rest (x: weights; no y).

    Attributes:
        positive: the classes whose label is +1.
    """

    @property
    def row_weights(self) -> tuple[float, float]:
        """The weights w_b of a negative and of a positive row."""
        return 1.0, 1.0

    def init(self, seed: int) -> Point:
        w = self.net.init(seed)
        return Point(w, w.new_zeros(0))

    def scores(self, outputs: Tensor) -> Tensor:
        return torch.sigmoid(outputs[..., 0])

    def loss(self, outputs: Tensor, rest: Tensor, y: Tensor, batch: Batch) -> Tensor:
        """Returns the mean of w_b CE, as the weighted sum over the batch's rows."""
        positive = self.is_positive(batch.labels)
        of_negative, of_positive = self.row_weights
        losses = binary_row_losses(outputs[..., 0], positive)
        weights = of_negative + (of_positive - of_negative) * positive.to(losses.dtype)
        return (batch.weights * weights * losses).sum(-1)

    def metrics(self, z: Point, outputs: NDArray[np.float64], labels: NDArray[np.int64]) -> Mapping[str, float | None]:
        """Returns `auc` and `score_std` of the scores, and `accuracy`, with rows scored above 1/2 called positive."""
        right = (outputs > 0.5) == self.are_positive(labels)
        return {**self.ranking(outputs, labels), "accuracy": float(right.mean())}


@record(frozen=True, kw_only=True, config=STRICT)
class RatioLoss(BinaryCrossEntropy):
    """Cross-entropy that weighs the rarer of two kinds more, by the ratio of their numbers (x: weights; no y).

    Attributes:
        positive: the classes whose label is +1.
        alpha, beta: a row of kind b weighs alpha + beta R_b.
    """

    alpha: NonNegativeFloat = 1.0
    beta: NonNegativeFloat = 0.1

    @cached_property
    def ratios(self) -> tuple[float, float]:
        """The ratios R_b of negatives and of positives."""
        return self.p / (1 - self.p), (1 - self.p) / self.p

    @property
    def row_weights(self) -> tuple[float, float]:
        of_negative, of_positive = (self.alpha + self.beta * ratio for ratio in self.ratios)
        return of_negative, of_positive


def binary_row_losses(logits: Tensor, positive: Tensor) -> Tensor:
    """Returns the cross-entropy of each row, (..., B), from logits (..., B) and `positive` (..., B), True or False."""
    return binary_cross_entropy_with_logits(logits, positive.to(logits.dtype), reduction="none")
