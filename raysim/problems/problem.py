"""What a saddle problem is: min over x, max over y of f(x, y) = mean over clients of f_i, f_i a mean over rows."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from raysim.errors import ConfigError
from raysim.models.network import Network
from raysim.phase import Batch
from raysim.point import Point


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

        def value(x: Tensor, y: Tensor) -> Tensor:
            return self.value(Point(x, y), batch)

        return Point(*torch.func.grad(value, argnums=(0, 1))(z.x, z.y))

    @abstractmethod
    def outputs(self, z: Point, inputs: Tensor) -> Tensor:
        """Evaluation, row by row: inputs (B, *shape) to (B, ...), whatever `metrics` needs of a row."""

    @abstractmethod
    def metrics(self, z: Point, outputs: NDArray[np.float64], labels: NDArray[np.int64]) -> Mapping[str, float | None]:
        """Evaluation, pooled: outputs (N, ...) and labels (N,) of all rows of a split; None where it is undefined."""

    @property
    def mixes_rows(self) -> bool:
        """Whether a row's part in F depends on the batch's other rows, as with BatchNorm. Then no batch is padded."""
        return False

    def label_scores(self, labels: NDArray[np.int64]) -> NDArray[np.float64] | None:
        """Labels (R,) as numbers in [0, 1] that devices' availability may depend on; None: no such meaning."""
        return None

    def parts(self, z: Point) -> Mapping[str, Tensor]:
        """z by name, as saved with a run (a network's parameters under their own names)."""
        return {"x": z.x, "y": z.y}


class NetworkProblem(Problem):
    """A problem that sees the rows' inputs only through one network: x is its weights, followed by what else there is.

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
    def mixes_rows(self) -> bool:
        return any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in self.net.module.modules())

    @abstractmethod
    def loss(self, outputs: Tensor, rest: Tensor, y: Tensor, batch: Batch) -> Tensor:
        """F from the network's outputs (..., B, net.outputs), the rest of x (..., n) and y (..., D_y), of shape (...).

        Leading axes, where there are any, are different clients', and labels and weights are (..., B) then. The inputs
        of the batch must not be used.
        """

    def value(self, z: Point, batch: Batch) -> Tensor:
        # One split: its backward is one concatenation, where indexing would add zero-padded copies.
        w, rest = z.x.split((self.net.size, len(z.x) - self.net.size))
        return self.loss(self.net(w, batch.inputs), rest, z.y, batch)
