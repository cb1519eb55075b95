"""An algorithm is a frozen record of hyper-parameters, whose phases of a round are pure functions."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Generic

from raysim.phase import Cohort, Phase, Reply, Same, State
from raysim.point import Point


@dataclass(frozen=True)
class Rate:
    """States a convergence theorem: the mean of ||grad Phi||^2 over T rounds with S clients each falls as S^S T^T.

    Attributes:
        S, T: exponents of the clients per phase and of the rounds, in the term that noise dominates.
        source: where the theorem is stated.
    """

    S: Fraction
    T: Fraction
    source: str

    @property
    def rounds(self) -> Fraction:
        """The exponent of S in the number of rounds until the mean is below a given value."""
        return -self.S / self.T


class Algorithm(ABC, Generic[State]):
    """A frozen record of hyper-parameters with pure functions. Nothing survives a round but State and client memory.

    Its constructor may take `clients` (how many have data) and `seed` (the experiment's), which the simulator supplies,
    and settings, which a configuration gives.

    Attributes:
        rate: the proven convergence rate, where S of the clients are sampled.
        personal: True if clients have models of their own.
    """

    rate: ClassVar[Rate | None] = None
    personal: ClassVar[bool] = False

    @abstractmethod
    def init(self, z: Point) -> State:
        """Returns the state before the first round, from the initial point."""

    @abstractmethod
    def phases(self, t: int) -> tuple[Phase[State, Any, Any, Any], ...]:
        """Returns the phases of round t = 0, 1, ... in order."""

    @abstractmethod
    def point(self, state: State) -> Point:
        """Returns the point that is evaluated and saved."""

    def personal_model(self, state: State) -> Phase[State, Any, Any, Point]:
        """Returns the phase that makes each client's own model, as its upload. It remembers and absorbs nothing.

        These models are evaluated on the clients' own rows where clients have tests of their own. Every client has the
        algorithm's point, unless this is overridden; then `personal` is to be True.
        """
        return SharedModel(Same(), self)

    def extra_points(self, state: State) -> Mapping[str, Point]:
        """Returns further points to evaluate, by name; the names of their metrics begin with theirs and `_`."""
        return {}


@dataclass(frozen=True)
class SharedModel(Phase[Any, Point, Point, Point]):
    """Gives every client the algorithm's point as its model."""

    cohort: Cohort
    algorithm: Algorithm[Any]

    name = "own"
    passes = ()

    def sends(self, state: Any) -> Point:
        return self.algorithm.point(state)

    def start(self, sent: Point, memory: Any) -> Point:
        return sent

    def finish(self, sent: Point, carry: Point) -> Reply[Point]:
        return Reply(carry)

    def absorb(self, state: Any, mean: Point, accepted: int) -> Any:
        return state
