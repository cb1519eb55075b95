"""What a saddle problem is: min over x, max over y of f(x, y) = mean over clients of f_i, f_i a mean over rows."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from raysim.data import Shards
from raysim.derivative import gradients
from raysim.errors import ConfigError
from raysim.models.network import Network
from raysim.models.normalisation import layers, moments
from raysim.phase import Batch
from raysim.point import Point
from raysim.problems.pool import NormalisedPool, Pool

# Training rows from which an evaluation takes BatchNorm's statistics, at most. Running statistics, which are of the
# last ten minibatches or so, see a tenth of them.
POPULATION_ROWS = 5_000


@dataclass(frozen=True)
class DataSpec:
    """What a problem may know of the data before it sees any: it is the same for every client.

    Attributes:
        shape: of one row's inputs.
        class_counts: rows of each class over all clients' training data.
    """

    shape: tuple[int, ...]
    class_counts: tuple[int, ...]

    @property
    def classes(self) -> int:
        return len(self.class_counts)


@dataclass(frozen=True)
class Curve:
    """Something to be looked at as a line.

    Attributes:
        x, y: its points, float64, of equal shape (n,).
        x_label, y_label: what they are.
    """

    x: NDArray[np.float64]
    y: NDArray[np.float64]
    x_label: str
    y_label: str


class Problem(ABC):
    """A problem of your own derives from this; `value` must be a weighted sum over rows (see Batch.weights).

    Its constructor may take `network` (a raysim.models.NetworkFactory) and `data` (a DataSpec), which the simulator
    supplies, and settings, which a configuration gives.

    Attributes:
        headline: the metric that progress and plots show.
        higher_is_better: of the headline.
    """

    headline: ClassVar[str]
    higher_is_better: ClassVar[bool] = True

    @abstractmethod
    def init(self, seed: int) -> Point:
        """The initial point, float32."""

    @abstractmethod
    def value(self, z: Point, batch: Batch) -> Tensor:
        """F(z; batch): the scalar that x descends and y ascends."""

    def gradient(self, z: Point, batch: Batch) -> Point:
        """(grad_x F, grad_y F) at z on the batch, neither negated."""
        x, y = gradients(lambda x, y: self.value(Point(x, y), batch), z.x, z.y)
        return Point(x, y)

    def composed(
        self, z: Point, h: Tensor, alpha: float, inner: Batch, outer: Batch, shrink: float = 1.0
    ) -> tuple[Tensor, Point]:
        """An estimate of the inner function of f(g(x), y), and the gradient there: g is the identity unless overridden.

        Args:
            z: where to.
            h: the estimate of g so far, of x's shape.
            alpha: weight of g(x) in the new estimate h' = (1 - alpha) h + alpha g(x).
            inner: the rows that g and its Jacobian are of.
            outer: the rows that f is of.
            shrink: what the inner step is multiplied with, where g has one.

        Returns:
            h', and (transposed Jacobian of g at x times grad_x f(h', y), grad_y f(h', y)).
        """
        h = (1 - alpha) * h + alpha * z.x
        return h, self.gradient(Point(h, z.y), outer)

    def apply(self, f: Callable[..., Any], *args: Any) -> Any:
        """f(self, *args), for an algorithm's own functions of a client's tensors: engines call it client by client."""
        return f(self, *args)

    def best_dual(self, z: Point, batch: Batch) -> Tensor:
        """The y that maximises F(x, y) on the batch, where there is a closed form; z.y otherwise. Shape (D_y,)."""
        return z.y

    @abstractmethod
    def outputs(self, z: Point, batch: Batch) -> Tensor:
        """Evaluation, row by row: (B, ...), whatever `metrics` needs of a row."""

    @abstractmethod
    def metrics(self, z: Point, outputs: NDArray[np.float64], labels: NDArray[np.int64]) -> Mapping[str, float | None]:
        """Evaluation, pooled: outputs (N, ...) and labels (N,) of all rows of a split; None where it is undefined.

        Names that end in an underscore and a number, from 0 on, are drawn together as one family.
        """

    def settled(self, z: Point, train: Pool) -> Callable[[Pool], Pool]:
        """What is made of each split's pool before z is evaluated on it, given that of the training rows: nothing."""
        return lambda pool: pool

    def evaluate(self, z: Point, pool: Pool) -> Mapping[str, float | None]:
        """Evaluation on a split: `metrics` of all rows' `outputs`, unless a problem has more to do."""
        return self.metrics(z, pool.each(type(self).outputs, z), pool.labels)

    def trouble(self, metrics: Mapping[str, float | None]) -> str | None:
        """What is wrong with a point that has these metrics on a split, and what to try; None if nothing is."""
        lost = [name for name, value in metrics.items() if value is not None and not math.isfinite(value)]
        return f"{lost[0]} is {metrics[lost[0]]}; take smaller step sizes" if lost else None

    def curves(self, z: Point, pool: Pool) -> Mapping[str, Curve]:
        """What is drawn of the final point, by name, for each split."""
        return {}

    def pictures(self, z: Point) -> Mapping[str, Tensor]:
        """What is saved as an image now and then, by name: (n, channels, height, width), numbers in [0, 1]."""
        return {}

    def prepared(self, shards: Shards, cache: Path, report: Callable[[str], None]) -> Self:
        """The problem with what it takes to evaluate it, which is called once before a run.

        Args:
            shards: the data.
            cache: a folder in which may be kept what is slow to make.
            report: is told a line about what takes long.
        """
        return self

    @property
    def files(self) -> tuple[Path, ...]:
        """Files that it is unpickled from, of those that `prepared` keeps: every node of a cluster is given them."""
        return ()

    @property
    def networks(self) -> tuple[Network, ...]:
        """The networks whose weights are in x or y."""
        return ()

    @property
    def extractor_size(self) -> int:
        """Of x the numbers, its first, that are weights of a feature extractor, for methods that tell them from a head.

        Raises ConfigError where it has no such parts.
        """
        raise ConfigError(
            "problem.name", f"{type(self).__name__} has no feature extractor and head; take classification"
        )

    @property
    def feature_size(self) -> int:
        """Numbers that the extractor makes of a row. Raises ConfigError where there is none."""
        raise ConfigError("problem.name", f"{type(self).__name__} has no feature extractor; take classification")

    @property
    def code_size(self) -> int:
        """Numbers in a row's random code. Raises ConfigError where there is none."""
        raise ConfigError("problem.name", f"{type(self).__name__} has no random codes; take stochastic_classification")

    @property
    def noise(self) -> int:
        """Random numbers that a row's part in F depends on: what a batch's noise has of each row."""
        return 0

    @property
    def mixes_rows(self) -> bool:
        """Whether a row's part in F depends on the batch's other rows, as with BatchNorm. Then no batch is padded."""
        return any(layers(net.module) for net in self.networks)

    def label_scores(self, labels: NDArray[np.int64]) -> NDArray[np.float64] | None:
        """Labels (R,) as numbers in [0, 1] that devices' availability may depend on; None: no such meaning."""
        return None

    def parts(self, z: Point) -> Mapping[str, Tensor]:
        """z by name, as saved with a run (a network's parameters under their own names)."""
        return {"x": z.x, "y": z.y}


class NetworkProblem(Problem):
    """A problem that sees the rows' inputs through one network only: x is its weights, followed by what else there is.

    Engines have faster ways of running a common network for many clients than differentiating `value`, so a problem
    of this kind gives its loss as a function of the network's outputs.
    """

    @property
    @abstractmethod
    def net(self) -> Network:
        """The network; the first `net.size` numbers of x are its weights."""

    def _check_net(self) -> None:
        """Raises ConfigError if there is nothing to train.

        For constructors: it builds the module, which must not happen within a transformation.
        """
        if not self.net.size:
            raise ConfigError("model.name", "the network has no weights to train")

    @property
    def networks(self) -> tuple[Network, ...]:
        return (self.net,)

    def settled(self, z: Point, train: Pool) -> Callable[[Pool], Pool]:
        """With BatchNorm the statistics of training rows at z, so that a row's outputs depend on no other row."""
        if not self.mixes_rows:
            return super().settled(z, train)
        found = train.spread(POPULATION_ROWS).total(NetworkProblem.moments, z)
        return lambda pool: NormalisedPool(pool, found)

    def moments(self, z: Point, batch: Batch) -> Tensor:
        """The batch's part in the mean and mean square of BatchNorm's inputs, (2, M)."""
        return float(batch.weights.sum()) * moments(
            [net.module for net in self.networks], lambda: self.outputs(z, batch)
        )

    def shift(self, y: Tensor) -> Tensor | None:
        """What is added to every row's inputs before the network sees them, of their shape; None: nothing is.

        Leading axes of y (..., D_y), where there are any, are different clients', and stay.
        """
        return None

    def seen(self, y: Tensor, inputs: Tensor) -> Tensor:
        """What the network sees of a batch's inputs (..., B, *shape)."""
        shift = self.shift(y)
        return inputs if shift is None else inputs + shift.unsqueeze(y.dim() - 1)

    @abstractmethod
    def loss(self, outputs: Tensor, rest: Tensor, y: Tensor, batch: Batch) -> Tensor:
        """F from the network's outputs (..., B, net.outputs), the rest of x (..., n) and y (..., D_y), of shape (...).

        Leading axes, where there are any, are different clients', and labels and weights are (..., B) then. The inputs
        of the batch must not be used.
        """

    def value(self, z: Point, batch: Batch) -> Tensor:
        # One split: its backward is one concatenation, where indexing would add zero-padded copies.
        w, rest = z.x.split((self.net.size, len(z.x) - self.net.size))
        return self.loss(self.net(w, self.seen(z.y, batch.inputs)), rest, z.y, batch)
