"""Abilities that only some problems have, each a class from which a problem derives in addition to Problem.

| ability | who asks for it |
|---|---|
| Evaluated, ScoredByRow | the server's evaluation |
| StatisticsOfRows | the server's evaluation, before each point |
| HasFigures | the run folder's plots and pictures |
| Named | the saved model |
| Prepared | the experiment, once before a run |
| HasNetworks | the engines, and whoever looks for BatchNorm |
| LabelScored | availability that depends on labels, and the ledger's groups |
| Composed | LocalSCGDAM |
| ClosedFormDual | CODA |
| HasExtractor, HasCodes | algorithms whose clients have models of their own |

`require` returns a problem that has an ability, or raises the error that says what is missing.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from raysim.batch import Batch
from raysim.data import Shards
from raysim.errors import ConfigError
from raysim.models.network import Network
from raysim.models.normalisation import layers
from raysim.point import Point
from raysim.problems.pool import Pool
from raysim.problems.problem import Problem


class Ability(ABC):
    """The base class of the abilities.

    Attributes:
        absent: ends the error "<problem> ..." about a problem that lacks the ability.
    """

    absent: ClassVar[str]


Wanted = TypeVar("Wanted", bound=Ability)


def require(problem: Problem, ability: type[Wanted], key: str = "problem.name") -> Wanted:
    """Returns the problem as one that has the ability. Raises ConfigError at `key` where it has not."""
    if not isinstance(problem, ability):
        raise ConfigError(key, f"{type(problem).__name__} {ability.absent}")
    return problem


def require_declared(problem: Problem) -> None:
    """Raises ConfigError where a problem has a method of an ability that it does not derive from.

    Nobody would ask for that method.
    """
    for ability in _below(Ability):
        methods = [name for name, member in vars(ability).items() if not name.startswith("_") and _is_code(member)]
        method = next((name for name in methods if hasattr(type(problem), name)), None)
        if method is not None and not isinstance(problem, ability) and not hasattr(Problem, method):
            raise ConfigError(
                "problem.name",
                f"{type(problem).__name__} has a method {method!r}, which counts only for a class that derives from "
                f"raysim.problems.{ability.__name__}; name that before Problem among its bases",
            )


def _below(kind: type[Ability]) -> Iterator[type[Ability]]:
    """Yields the abilities of this module that derive from a class."""
    for ability in kind.__subclasses__():
        if ability.__module__ == __name__:
            yield ability
            yield from _below(ability)


def _is_code(member: object) -> bool:
    return callable(member) or isinstance(member, property)


class Evaluated(Ability):
    """Can be measured at a point on all rows of a split. The server's evaluation asks for it.

    Attributes:
        headline: name of the metric that progress and plots show.
        higher_is_better: direction of the headline metric.
    """

    absent = "cannot be evaluated; derive it from raysim.problems.ScoredByRow too, with `outputs` and `metrics`"
    headline: ClassVar[str]
    higher_is_better: ClassVar[bool] = True

    @abstractmethod
    def evaluate(self, z: Point, pool: Pool) -> Mapping[str, float | None]:
        """Returns metrics by name, None where one is undefined.

        Names that end in an underscore and a number, from 0 on, are drawn together as one family.
        """

    def trouble(self, metrics: Mapping[str, float | None]) -> str | None:
        """Says what is wrong with a point that has these metrics on a split, and what to try; None if nothing is."""
        infinite = [name for name, value in metrics.items() if value is not None and not math.isfinite(value)]
        return f"{infinite[0]} is {metrics[infinite[0]]}; take smaller step sizes" if infinite else None


class ScoredByRow(Evaluated):
    """Can be measured from the outputs for each row. The server's evaluation asks for it."""

    @abstractmethod
    def outputs(self, z: Point, batch: Batch) -> Tensor:
        """Returns the outputs for each row that `metrics` takes, (B, ...)."""

    @abstractmethod
    def metrics(self, z: Point, outputs: NDArray[np.float64], labels: NDArray[np.int64]) -> Mapping[str, float | None]:
        """Returns metrics by name from the outputs (N, ...) and labels (N,) of all rows of a split."""

    def evaluate(self, z: Point, pool: Pool) -> Mapping[str, float | None]:
        return self.metrics(z, pool.each(type(self).outputs, z), pool.labels)


class StatisticsOfRows(Ability):
    """Takes statistics of training rows before a point is evaluated. The server's evaluation asks for it."""

    absent = "takes no statistics of training rows"

    @abstractmethod
    def settled(self, z: Point, train: Pool) -> Callable[[Pool], Pool]:
        """Returns a function from each split's pool to the pool that z is evaluated on, given the training rows."""


@dataclass(frozen=True)
class Curve:
    """A line to be drawn.

    Attributes:
        x, y: its points, float64, of equal shape (n,).
        x_label, y_label: the names of the axes.
    """

    x: NDArray[np.float64]
    y: NDArray[np.float64]
    x_label: str
    y_label: str


class HasFigures(Ability):
    """Has curves or pictures of a point to look at. The run folder's plots and pictures ask for it."""

    absent = "has nothing to draw"

    def curves(self, z: Point, pool: Pool) -> Mapping[str, Curve]:
        """Returns curves of the final point on a split, by name."""
        return {}

    def pictures(self, z: Point) -> Mapping[str, Tensor]:
        """Returns images of a point, by name: (n, channels, height, width), numbers in [0, 1]."""
        return {}


class Named(Ability):
    """Has names for the parts of a point. The saved model asks for it; otherwise the parts are x and y."""

    absent = "has no names for its parts"

    @abstractmethod
    def parts(self, z: Point) -> Mapping[str, Tensor]:
        """Returns z by name, as saved with a run (a network's parameters under their own names)."""


class Prepared(Ability):
    """Needs something made before it can be evaluated. The experiment asks for it once before a run."""

    absent = "needs no preparation"

    @abstractmethod
    def prepared(self, shards: Shards, cache: Path, report: Callable[[str], None]) -> Self:
        """Returns the problem with what it takes to evaluate it.

        Args:
            shards: the data.
            cache: a folder for files that are slow to make.
            report: is called with a line about work that takes long.
        """

    @property
    @abstractmethod
    def files(self) -> Sequence[Path]:
        """The files kept by `prepared` that the problem is unpickled from: every node of a cluster gets them."""


class HasNetworks(Ability):
    """Has networks whose weights are in x or y. The engines ask for it, and whoever looks for BatchNorm."""

    absent = "has no network"

    @property
    @abstractmethod
    def networks(self) -> Sequence[Network]:
        """The networks."""

    @property
    def mixes_rows(self) -> bool:
        """True if a network has BatchNorm layers."""
        return any(layers(net.module) for net in self.networks)


class LabelScored(Ability):
    """Has a meaning of labels as numbers. Availability that depends on labels and the ledger's groups ask for it."""

    absent = "has no label scores"

    @abstractmethod
    def label_scores(self, labels: NDArray[np.int64]) -> NDArray[np.float64]:
        """Returns labels (R,) as numbers in [0, 1]."""


class Composed(Ability):
    """Is a composition f(g(x), y) of two functions that are both means over clients. LocalSCGDAM asks for it."""

    absent = "is no composition of two functions"

    @abstractmethod
    def composed(
        self, z: Point, h: Tensor, alpha: float, inner: Batch, outer: Batch, shrink: float = 1.0
    ) -> tuple[Tensor, Point]:
        """Returns an estimate of the inner function, and the gradient of the composition there.

        Args:
            z: the point (x, y).
            h: the estimate of g so far, of x's shape.
            alpha: weight of g(x) in the new estimate h' = (1 - alpha) h + alpha g(x).
            inner: the rows for g and its Jacobian.
            outer: the rows for f.
            shrink: factor of the inner step, where g has one.

        Returns:
            h', and (transposed Jacobian of g at x times grad_x f(h', y), grad_y f(h', y)).
        """


class ClosedFormDual(Ability):
    """Knows the best y in closed form. CODA asks for it."""

    absent = "has no closed form of its best y"

    @abstractmethod
    def best_dual(self, z: Point, batch: Batch) -> Tensor:
        """Returns the y that maximises F(x, y) on the batch, of shape (D_y,)."""


class HasExtractor(Ability):
    """Has a feature extractor u and a head v, x = (u, v). Algorithms with personal models ask for it."""

    absent = "has no feature extractor and head; take classification"

    @property
    @abstractmethod
    def extractor_size(self) -> int:
        """The number of the extractor's weights, with which x begins. Raises ConfigError where there is none."""

    @property
    @abstractmethod
    def feature_size(self) -> int:
        """The number of a row's features. Raises ConfigError where the model has no extractor."""


class HasCodes(Ability):
    """Draws a random code of each row, which the head sees. FedCR asks for it."""

    absent = "has no random codes; take stochastic_classification"

    @property
    @abstractmethod
    def code_size(self) -> int:
        """The number of numbers in a row's code."""
