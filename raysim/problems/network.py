"""Problems whose rows' inputs go through one network only."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from raysim.batch import Batch
from raysim.errors import ConfigError
from raysim.models.network import Network
from raysim.models.normalisation import moments
from raysim.point import Point
from raysim.problems.abilities import HasNetworks, Named, ScoredByRow, StatisticsOfRows
from raysim.problems.pool import NormalisedPool, Pool
from raysim.problems.problem import Problem

# The most training rows from which an evaluation takes BatchNorm's statistics. Running statistics, which are of the
# last ten minibatches or so, are of a tenth as many.
POPULATION_ROWS = 5_000


class NetworkProblem(HasNetworks, ScoredByRow, StatisticsOfRows, Named, Problem):
    """A problem F(x, y) = loss(net(w, inputs + shift(y)), rest, y), where x = (w, rest) and w are a network's weights.

    Engines have faster ways of running one network for many clients than to differentiate `value`. They use them
    where `value`, `gradient` and `seen` are those of this class, and `loss` says what the problem is.
    """

    @property
    @abstractmethod
    def net(self) -> Network:
        """The network; the first `net.size` numbers of x are its weights."""

    def _require_weights(self) -> None:
        """Raises ConfigError if there is nothing to train.

        Constructors call it: it builds the module, which must not happen within a transformation.
        """
        if not self.net.size:
            raise ConfigError("model.name", "the network has no weights to train")

    @property
    def networks(self) -> tuple[Network, ...]:
        return (self.net,)

    def settled(self, z: Point, train: Pool) -> Callable[[Pool], Pool]:
        """Gives BatchNorm the statistics of training rows at z, so that a row's outputs depend on no other row."""
        if not self.mixes_rows:
            return lambda pool: pool
        statistics = train.spread(POPULATION_ROWS).total(NetworkProblem.moments, z)
        return lambda pool: NormalisedPool(pool, modules_of, statistics)

    def moments(self, z: Point, batch: Batch) -> Tensor:
        """Returns the batch's part in the mean and mean square of BatchNorm's inputs, (2, M)."""
        return float(batch.weights.sum()) * moments(modules_of(self), lambda: self.outputs(z, batch))

    def shift(self, y: Tensor) -> Tensor | None:
        """Returns the shift that is added to every row's inputs, of their shape; None adds nothing.

        Leading axes of y (..., D_y), where there are any, are different clients', and stay.
        """
        return None

    def seen(self, y: Tensor, inputs: Tensor) -> Tensor:
        """Returns the network's inputs, a batch's inputs (..., B, *shape) plus the shift."""
        shift = self.shift(y)
        return inputs if shift is None else inputs + shift.unsqueeze(y.dim() - 1)

    @abstractmethod
    def loss(self, outputs: Tensor, rest: Tensor, y: Tensor, batch: Batch) -> Tensor:
        """Returns F from the network's outputs, of shape (...).

        Leading axes, where there are any, are different clients', and labels and weights are (..., B) then.

        Args:
            outputs: (..., B, net.outputs).
            rest: (..., n), the numbers of x behind the network's weights.
            y: (..., D_y).
            batch: its inputs must not be used.
        """

    def value(self, z: Point, batch: Batch) -> Tensor:
        # One split: its backward is one concatenation, where indexing would add zero-padded copies.
        w, rest = z.x.split((self.net.size, len(z.x) - self.net.size))
        return self.loss(self.net(w, self.seen(z.y, batch.inputs)), rest, z.y, batch)

    def parts(self, z: Point) -> Mapping[str, Tensor]:
        """Returns the network's weights under their own names, then "rest" and "y" where there are such numbers."""
        w, rest = z.x[: self.net.size], z.x[self.net.size :]
        others = {"rest": rest, "y": z.y}
        return {**self.net.unflatten(w), **{name: part for name, part in others.items() if len(part)}}


def modules_of(problem: Any) -> Sequence[nn.Module]:
    """Returns the modules of a problem's networks."""
    return [net.module for net in problem.networks]
