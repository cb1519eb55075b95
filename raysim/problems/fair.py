"""Fair classification: the worst mixture of the classes' losses is minimised.

X. Wu et al., "Solving a class of non-convex minimax optimization in federated learning", NeurIPS 2023,
https://arxiv.org/abs/2310.03613, section 4.1, after M. Mohri, G. Sivek, A. T. Suresh, "Agnostic federated learning",
ICML 2019:

    min over x, max over y in the simplex of sum over classes c of y_c L_c(x),

with L_c the mean cross-entropy over all clients' rows of class c.

| symbol | name | meaning |
|---|---|---|
| x | z.x | network weights |
| y | z.y | weights of the classes, uniform at first |
| p_c | | share of class c among all clients' rows |

A batch's part is the sum over its rows of weight times y_b / p_b times cross-entropy, b being the row's label. Over all
rows of all clients this is the function above; it is additive over chunks of a shard, and unbiased on a minibatch. The
mean over the rows of each class within a minibatch, which the authors' code takes, is neither where a class is rare.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic.dataclasses import dataclass as record
from torch import Tensor

from raysim.batch import Batch
from raysim.domain import Simplex
from raysim.errors import ConfigError
from raysim.models.network import Network, NetworkFactory
from raysim.point import Point
from raysim.problems.classification import pooled_losses, row_losses
from raysim.problems.network import NetworkProblem
from raysim.problems.problem import DataSpec
from raysim.registry import STRICT


@record(frozen=True, kw_only=True, config=STRICT)
class Fair(NetworkProblem):
    """Fair classification: the classes' losses under their worst weights (x: network, y: a point of the simplex).

    Attributes:
        renormalise: after a step, cut negative class weights off and divide by the sum, as the authors' code does,
            instead of the Euclidean projection onto the simplex.
    """

    network: NetworkFactory
    data: DataSpec
    renormalise: bool = False

    headline: ClassVar[str] = "worst_class_accuracy"

    def __post_init__(self) -> None:
        if 0 in self.data.class_counts:
            empty = self.data.class_counts.index(0)
            raise ConfigError("problem.name", f"fair needs rows of every class, and class {empty} has none")
        self._require_weights()

    @cached_property
    def net(self) -> Network:
        """The classifier."""
        return self.network(self.data.classes)

    @cached_property
    def _per_share_C(self) -> tuple[float, ...]:
        counts = self.data.class_counts
        return tuple(sum(counts) / n for n in counts)

    def init(self, seed: int) -> Point:
        C = self.data.classes
        return Point(self.net.init(seed), torch.full((C,), 1 / C), Simplex(self.renormalise))

    def loss(self, outputs: Tensor, rest: Tensor, y: Tensor, batch: Batch) -> Tensor:
        """Returns the batch's part of F, sum_b weights_b y_b / p_b CE_b."""
        weights = torch.gather(y * y.new_tensor(self._per_share_C), -1, batch.labels)
        return (batch.weights * weights * row_losses(outputs, batch.labels)).sum(-1)

    def outputs(self, z: Point, batch: Batch) -> Tensor:
        """Returns the logits of the batch's rows, (B, C)."""
        return self.net(z.x, batch.inputs)

    def metrics(self, z: Point, outputs: NDArray[np.float64], labels: NDArray[np.int64]) -> Mapping[str, float | None]:
        """Returns the metrics on a split.

        They are `accuracy`, `worst_class_accuracy`, `value`, which is F, and for each class c `accuracy_c`, `loss_c`
        and its weight `y_c`. Accuracy and loss of a class are None where the split has no rows of the class.
        """
        losses = pooled_losses(outputs, labels)
        right = outputs.argmax(1) == labels
        values: dict[str, float | None] = {"accuracy": float(right.mean())}
        by_class, value = [], 0.0
        for c, y_c in enumerate(z.y.tolist()):
            of_class = labels == c
            has_rows = bool(of_class.any())
            values[f"accuracy_{c}"] = float(right[of_class].mean()) if has_rows else None
            values[f"loss_{c}"] = float(losses[of_class].mean()) if has_rows else None
            values[f"y_{c}"] = y_c
            if has_rows:
                by_class.append(float(right[of_class].mean()))
                value += y_c * float(losses[of_class].mean())
        return values | {"worst_class_accuracy": min(by_class), "value": value}
