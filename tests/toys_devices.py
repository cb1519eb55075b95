"""Problems in which it can be said in advance where an algorithm goes when some devices take part more than others.

Named in configurations by tests.toys_devices:Name. Legend: N clients, R rows, B rows of a batch, D dimensions.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic.dataclasses import dataclass as record
from torch import Tensor

from raysim import draws
from raysim.batch import Batch
from raysim.data import Source, Splits, Table
from raysim.devices import Population
from raysim.phase import Uniform
from raysim.point import Point
from raysim.problems import LabelScored, Problem, ScoredByRow
from raysim.registry import STRICT
from raysim.wire import Traffic
from server.dispatch import AnyPhase, Ideal, Outcome, Streak


@record(frozen=True, kw_only=True, config=STRICT)
class Wells(Source):
    """One row a client: curvature h in [1/2, 3/2], centre c, and a label 0..100 with which c rises from -2 to 2.

    Attributes:
        clients: N.
    """

    clients: int

    def load(self, seed: int) -> Splits:
        rng = draws.generator(seed, "wells")
        label = rng.integers(0, 101, self.clients)
        h = rng.uniform(0.5, 1.5, self.clients)
        c = 4 * label / 100 - 2 + 0.3 * rng.standard_normal(self.clients)
        train = Table(np.stack([h, c], axis=1).astype(np.float32), label, np.arange(self.clients))
        return Splits(train, train.take(np.arange(0)), classes=101)

    def fingerprint(self) -> str:
        return f"numpy {np.__version__}"


@record(frozen=True, kw_only=True, config=STRICT)
class Well(LabelScored, ScoredByRow, Problem):
    """F_k = h_k (x - c_k)^2 / 2 - y^2 / 2: the saddle is sum h c / sum h over whoever counts, and 0."""

    headline = "x"

    def init(self, seed: int) -> Point:
        return Point(torch.zeros(1), torch.zeros(1))

    def value(self, z: Point, batch: Batch) -> Tensor:
        h, c = batch.inputs.T
        value: Tensor = (batch.weights * (h * (z.x - c) ** 2 - z.y**2) / 2).sum()
        return value

    def gradient(self, z: Point, batch: Batch) -> Point:
        """By hand, since thousands of rounds are played."""
        h, c = batch.inputs.T
        return Point((batch.weights * h * (z.x - c)).sum().reshape(1), -batch.weights.sum() * z.y)

    def outputs(self, z: Point, inputs: Tensor) -> Tensor:
        return z.x.expand(len(inputs), 1)

    def metrics(self, z: Point, outputs: NDArray[np.float64], labels: NDArray[np.int64]) -> Mapping[str, float | None]:
        return {"x": float(z.x[0])}

    def label_scores(self, labels: NDArray[np.int64]) -> NDArray[np.float64]:
        return labels / 100


@dataclass(frozen=True, eq=False)
class TwoSpeeds(Population):
    """Every second device, from the second on, is slower by a factor."""

    factor: float = field(kw_only=True)

    @property
    def sec_per_sample_N(self) -> NDArray[np.float64]:
        seconds = self.model.compute.median_s_per_sample
        return np.where(np.arange(self.size) % 2 == 1, self.factor * seconds, seconds)


@dataclass(frozen=True)
class Partial(Ideal):
    """Everybody answers, but in some phases only those who happen to be about are asked: client k with share w_k.

    Attributes:
        shares: w, (N,).
        biased: names of the phases; all are uniform in the others.
    """

    shares: NDArray[np.float64] = field(kw_only=True)
    biased: frozenset[str] = field(kw_only=True)

    def dispatch(self, clock: Streak, phase: AnyPhase, t: int, traffic: Traffic, before: Outcome | None) -> Outcome:
        if phase.name not in self.biased:
            return super().dispatch(clock, phase, t, traffic, before)
        everybody, where = np.arange(len(self.shares)), (t, draws.code(phase.name))
        about = everybody[draws.uniform(self.planner.seed, "about", *where, everybody) < self.shares]
        assert isinstance(phase.cohort, Uniform)
        cohort = draws.sample(about, phase.cohort.S, self.planner.seed, "biased cohort", *where)
        n = len(cohort)
        return Outcome(n, cohort, cohort, cohort, True, n * traffic.down, n * traffic.up)


# Linear scores of two kinds of positives against negatives N(0, I) in 10 dimensions

DIMENSIONS = 10
FAR = 1.5
KINDS = ("negative", "first", "second")  # labels 0, 1, 2


def centre(kind: int) -> NDArray[np.float64]:
    """The mean of a kind of row: 0, 1.5 e_1 or 1.5 e_2; the covariance is the identity."""
    mean = np.zeros(DIMENSIONS)
    if kind:
        mean[kind - 1] = FAR
    return mean


def optimum(second: float) -> NDArray[np.float64]:
    """w* = (S+ + S- + d d')^-1 d of the squared pairwise loss; of the positives a share `second` is of that kind."""
    apart = centre(1) - centre(2)
    d = (1 - second) * centre(1) + second * centre(2)
    covariance = 2 * np.eye(DIMENSIONS) + second * (1 - second) * np.outer(apart, apart)
    return np.asarray(np.linalg.solve(covariance + np.outer(d, d), d), dtype=np.float64)


def fitted(positives: NDArray[np.float64], negatives: NDArray[np.float64]) -> NDArray[np.float64]:
    """The same from rows: the minimiser of the mean of (1 - w'(x - x'))^2 over all pairs of them."""
    d = positives.mean(0) - negatives.mean(0)
    covariance = np.cov(positives.T, bias=True) + np.cov(negatives.T, bias=True)
    return np.asarray(np.linalg.solve(covariance + np.outer(d, d), d), dtype=np.float64)


def auc(w: NDArray[np.float64], kind: int) -> float:
    """Of the score w'x, that kind of positives against negatives."""
    z = w @ centre(kind) / np.linalg.norm(w) / math.sqrt(2)
    return 0.5 * (1 + math.erf(z / math.sqrt(2)))


def true_auc(w: NDArray[np.float64]) -> float:
    """Over the population, in which both kinds of positives are as frequent."""
    return (auc(w, 1) + auc(w, 2)) / 2


def fitted_min_max(positives: NDArray[np.float64], negatives: NDArray[np.float64], p: float) -> NDArray[np.float64]:
    """The direction of the min-max form's w on rows, without a bias, where the prior is said to be p.

    With a = share of positives (1-p) and b = share of negatives p it minimises, s1, s2 and y being eliminated,
    w'(a S+ + b S-)w - 2 v'w + (v'w)^2 / (p(1-p)) with v = a mu+ - b mu-. Where p is true a = b, and it is `fitted`.
    """
    share = len(positives) / (len(positives) + len(negatives))
    a, b = share * (1 - p), (1 - share) * p
    covariance = a * np.cov(positives.T, bias=True) + b * np.cov(negatives.T, bias=True)
    w: NDArray[np.float64] = np.linalg.solve(covariance, a * positives.mean(0) - b * negatives.mean(0))
    return w


@record(frozen=True, kw_only=True, config=STRICT)
class TwoKinds(Source):
    """Clients with as many rows each.

    Attributes:
        clients: N.
        rows: of each.
        differ: in the ``kind`` of their positives, which are half of the rows: the first on even clients, the second on
            odd ones; or in the ``share`` of positives, from 0 to 1 over the clients, half of them of each kind.
        offset: of all rows, along the third axis.
    """

    clients: int
    rows: int
    differ: Literal["kind", "share"] = "kind"
    offset: float = 0.0

    def load(self, seed: int) -> Splits:
        rng = draws.generator(seed, "two kinds")
        client = np.repeat(np.arange(self.clients), self.rows)
        row = np.tile(np.arange(self.rows), self.clients)
        if self.differ == "kind":
            label = np.where(row % 2 == 0, 0, 1 + client % 2)
        else:
            positives = np.rint(self.rows * client / (self.clients - 1))
            label = np.where(row < positives, 1 + row % 2, 0)
        features = rng.standard_normal((len(label), DIMENSIONS)) + np.stack([centre(kind) for kind in range(3)])[label]
        features[:, 2] += self.offset
        train = Table(features.astype(np.float32), label, client)
        return Splits(train, train.take(np.arange(0)), classes=len(KINDS))

    def fingerprint(self) -> str:
        return f"numpy {np.__version__}"


@record(frozen=True, kw_only=True, config=STRICT)
class LinearAUC(LabelScored, ScoredByRow, Problem):
    """The min-max form of the squared pairwise loss (Ying et al., 2016) with h = w'x: its w is that of `optimum`.

    Attributes:
        prior: p.
    """

    prior: float = 0.5

    headline = "auc"

    def init(self, seed: int) -> Point:
        return Point(torch.zeros(DIMENSIONS + 2), torch.zeros(1))

    def value(self, z: Point, batch: Batch) -> Tensor:
        h, p, y = batch.inputs @ z.x[:-2], self.prior, z.y[0]
        positive = (batch.labels > 0).to(h.dtype)
        f = (1 - p) * (h - z.x[-2]) ** 2 * positive + p * (h - z.x[-1]) ** 2 * (1 - positive)
        f = f + 2 * (1 + y) * h * (p * (1 - positive) - (1 - p) * positive) - p * (1 - p) * y**2
        return (batch.weights * f).sum()

    def outputs(self, z: Point, inputs: Tensor) -> Tensor:
        return inputs @ z.x[:-2]

    def metrics(self, z: Point, outputs: NDArray[np.float64], labels: NDArray[np.int64]) -> Mapping[str, float | None]:
        """`auc`, and that of each kind of positives, in closed form."""
        w = z.x[:-2].double().numpy()
        if not w.any():
            return {"auc": None, "auc_first": None, "auc_second": None}
        return {"auc": true_auc(w), "auc_first": auc(w, 1), "auc_second": auc(w, 2)}

    def label_scores(self, labels: NDArray[np.int64]) -> NDArray[np.float64]:
        return (labels > 0).astype(np.float64)
