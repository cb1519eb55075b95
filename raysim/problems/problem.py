"""A saddle problem is min over x, max over y of f(x, y) = mean over clients of f_i, where f_i is a mean over rows."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from raysim.batch import Batch
from raysim.derivative import gradients
from raysim.point import Point


@dataclass(frozen=True)
class DataSpec:
    """Tells a problem what it may know of the data before it sees any row, the same for every client.

    Attributes:
        shape: shape of one row's inputs.
        class_counts: rows of each class over all clients' training data.
    """

    shape: tuple[int, ...]
    class_counts: tuple[int, ...]

    @property
    def classes(self) -> int:
        """The number of classes."""
        return len(self.class_counts)


class Problem(ABC):
    """A saddle problem min over x, max over y of the mean of F(x, y; row). A problem of your own derives from this.

    `value` must be a weighted sum over the batch's rows (see Batch.weights). The constructor may take `network` (a
    raysim.models.NetworkFactory) and `data` (a DataSpec), which the simulator supplies, and settings, which a
    configuration gives. Abilities that only some problems have, such as to be evaluated, are classes to derive from
    as well: see raysim.problems.abilities.
    """

    @abstractmethod
    def init(self, seed: int) -> Point:
        """Returns the initial point, float32."""

    @abstractmethod
    def value(self, z: Point, batch: Batch) -> Tensor:
        """Returns F(z; batch), the scalar that x descends and y ascends."""

    def gradient(self, z: Point, batch: Batch) -> Point:
        """Returns (grad_x F, grad_y F) at z on the batch, neither negated."""
        x, y = gradients(lambda x, y: self.value(Point(x, y), batch), z.x, z.y)
        return Point(x, y)

    def apply(self, f: Callable[..., Any], *args: Any) -> Any:
        """Returns f(self, *args), where f is an algorithm's own function of one client's tensors.

        Engines that compute many clients at a time call f client by client.
        """
        return f(self, *args)

    @property
    def noise(self) -> int:
        """The number of random numbers that a row's part in F depends on; a batch's noise has as many for each row."""
        return 0

    @property
    def mixes_rows(self) -> bool:
        """True if a row's part in F depends on the batch's other rows, as with BatchNorm. Then no batch is padded."""
        return False
