"""The common parts of problems that tell chosen classes from the rest: labels, scores, and the ROC curve."""

import functools
import operator
from abc import abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from pydantic.dataclasses import dataclass as record
from torch import Tensor

from raysim.batch import Batch
from raysim.errors import ConfigError
from raysim.models.network import Network, NetworkFactory
from raysim.point import Point
from raysim.problems.abilities import Curve, HasFigures, LabelScored
from raysim.problems.network import NetworkProblem
from raysim.problems.pool import Pool
from raysim.problems.problem import DataSpec
from raysim.registry import STRICT

# Points of a ROC curve that are kept. The stretch between two of them is 1/250 long, right and up together, and a
# straight line in its place changes the area by at most 1/8 of that squared: 1e-3 in all.
ROC_POINTS = 500

# Standard deviation of scores below which they count as equal, because their ranks are those of rounding errors.
SAME_SCORES = 1e-6


@record(frozen=True, kw_only=True, config=STRICT)
class Binary(LabelScored, HasFigures, NetworkProblem):
    """A network that scores rows, high for those of the positive classes.

    Attributes:
        positive: the classes whose label is +1.
    """

    network: NetworkFactory
    data: DataSpec
    positive: Annotated[tuple[int, ...], Field(min_length=1)] = (0,)

    headline: ClassVar[str] = "auc"

    def __post_init__(self) -> None:
        classes = self.data.classes
        for c in self.positive:
            if not 0 <= c < classes:
                raise ConfigError("problem.positive", f"class {c} is not in the data, which has 0 to {classes - 1}")
        if not 0 < self.p < 1:
            raise ConfigError("problem.positive", f"{self.p:.0%} of the rows are positive; both kinds are needed")
        self._require_weights()

    @cached_property
    def p(self) -> float:
        """The share of positive rows in all clients' training data."""
        counts = self.data.class_counts
        return sum(counts[c] for c in set(self.positive)) / sum(counts)

    @cached_property
    def net(self) -> Network:
        """The scoring network, of one output."""
        return self.network(1)

    @abstractmethod
    def scores(self, outputs: Tensor) -> Tensor:
        """Returns scores in [0, 1], (..., B), from the network's outputs (..., B, net.outputs)."""

    def outputs(self, z: Point, batch: Batch) -> Tensor:
        """Returns the scores of the batch's rows, (B,)."""
        return self.scores(self.net(z.x[: self.net.size], batch.inputs))

    def ranking(self, scores: NDArray[np.float64], labels: NDArray[np.int64]) -> Mapping[str, float | None]:
        """Returns the metrics of pooled scores (N,) with labels (N,).

        `auc` is the exact area under the ROC curve, None where a split has one kind of label only. `score_std` is the
        standard deviation of the scores; near 0 the network has saturated.
        """
        from sklearn.metrics import roc_auc_score

        positive = self.are_positive(labels)
        has_both_kinds = 0 < positive.sum() < len(positive)
        return {
            "auc": float(roc_auc_score(positive, scores)) if has_both_kinds else None,
            "score_std": float(scores.std()),
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
        """Returns the curve `roc` of the pooled scores, where a split has both kinds of label."""
        from sklearn.metrics import roc_curve

        positive = self.are_positive(pool.labels)
        if positive.all() or not positive.any():
            return {}
        false, true, _ = roc_curve(positive, pool.each(type(self).outputs, z))
        if len(false) > ROC_POINTS:
            # The points lie evenly along the curve: every n-th of its corners would cut off long stretches.
            at = np.linspace(0, 2, ROC_POINTS)
            false, true = np.interp(at, false + true, false), np.interp(at, false + true, true)
        return {"roc": Curve(false, true, "false positive rate", "true positive rate")}

    def label_scores(self, labels: NDArray[np.int64]) -> NDArray[np.float64]:
        """Returns 1 for a positive row and 0 for another, so that a client's mean is its share of positives."""
        return self.are_positive(labels).astype(np.float64)

    def are_positive(self, labels: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Returns True for the positive rows of pooled labels (N,)."""
        return np.isin(labels, self.positive)

    def is_positive(self, labels: Tensor) -> Tensor:
        """Returns True for the positive rows of a batch's labels (..., B)."""
        return functools.reduce(operator.or_, (labels == c for c in self.positive))
