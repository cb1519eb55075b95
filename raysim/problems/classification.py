"""Classification by cross-entropy, and the cross-entropy of rows for other problems.

    min over x of E CE(h_x(a), b)

| symbol | name | meaning |
|---|---|---|
| x | z.x | network weights; there is no y, which has length 0 |

Personalised methods take x = (u, v), the weights of a model's submodules `extractor` and `head`.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic.dataclasses import dataclass as record
from torch import Tensor
from torch.nn.functional import cross_entropy

from raysim.batch import Batch
from raysim.errors import ConfigError
from raysim.models.network import Network, NetworkFactory
from raysim.point import Point
from raysim.problems.abilities import HasExtractor
from raysim.problems.network import NetworkProblem
from raysim.problems.problem import DataSpec
from raysim.registry import STRICT


def row_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Returns the cross-entropy of each row, (..., B), from logits (..., B, C) and labels (..., B)."""
    return cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none").view(labels.shape)


def pooled_losses(logits: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Returns the cross-entropy of each pooled row, (N,), from logits (N, C) and labels (N,)."""
    shifted = logits - logits.max(1, keepdims=True)
    losses: NDArray[np.float64] = np.log(np.exp(shifted).sum(1)) - shifted[np.arange(len(labels)), labels]
    return losses


@record(frozen=True, kw_only=True, config=STRICT)
class Classification(HasExtractor, NetworkProblem):
    """Cross-entropy over the data's classes (x: network; no y)."""

    network: NetworkFactory
    data: DataSpec

    headline: ClassVar[str] = "accuracy"

    def __post_init__(self) -> None:
        self._require_weights()

    @cached_property
    def net(self) -> Network:
        """The classifier."""
        return self.network(self.data.classes)

    @cached_property
    def extractor(self) -> Network:
        """The part of the classifier that computes the features. Raises ConfigError where the model has none."""
        return self.network(self.data.classes, "extractor")

    @cached_property
    def head(self) -> Network:
        """The part of the classifier that computes the logits. Raises ConfigError where the model has none."""
        return self.network(self.data.classes, "head")

    @property
    def extractor_size(self) -> int:
        if self.extractor.size + self.head.size != self.net.size:
            raise ConfigError("model.name", "has weights outside of its submodules extractor and head")
        if not next(iter(self.net.unflatten(self.net.init(0)))).startswith("extractor."):
            raise ConfigError("model.name", "has its head before its extractor; make the extractor first")
        return self.extractor.size

    @cached_property
    def feature_size(self) -> int:
        """The number of a row's features."""
        return self.extractor(self.extractor.init(0), torch.zeros(1, *self.data.shape)).shape[-1]

    def features(self, u: Tensor, batch: Batch) -> Tensor:
        """Returns the features of the batch's rows, (B, d), with the extractor's weights u."""
        return self.extractor(u, batch.inputs)

    def logits(self, v: Tensor, features: Tensor) -> Tensor:
        """Returns the logits (B, C) of features (B, d), with the head's weights v."""
        return self.head(v, features)

    def cross_entropy(self, logits: Tensor, batch: Batch) -> Tensor:
        """Returns the cross-entropy of logits (..., B, C), as the weighted sum over the batch's rows."""
        return (batch.weights * row_losses(logits, batch.labels)).sum(-1)

    def init(self, seed: int) -> Point:
        w = self.net.init(seed)
        return Point(w, w.new_zeros(0))

    def loss(self, outputs: Tensor, rest: Tensor, y: Tensor, batch: Batch) -> Tensor:
        """Returns the cross-entropy of the batch's rows, as a weighted sum."""
        return self.cross_entropy(outputs, batch)

    def outputs(self, z: Point, batch: Batch) -> Tensor:
        """Returns the logits of the batch's rows, (B, C)."""
        return self.net(z.x, batch.inputs)

    def metrics(self, z: Point, outputs: NDArray[np.float64], labels: NDArray[np.int64]) -> Mapping[str, float | None]:
        """Returns `accuracy`, and `value`, which is the mean cross-entropy."""
        return {
            "accuracy": float((outputs.argmax(1) == labels).mean()),
            "value": float(pooled_losses(outputs, labels).mean()),
        }
