"""Fits exponents to the costs of runs, with confidence intervals."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import scipy  # loads its parts on first use: stats takes a second
from numpy.typing import NDArray

from cluster.report.runs import Runs, Setting
from raysim.algorithm import Rate
from raysim.algorithms import ALGORITHMS

CONFIDENCE = 0.95
# A fit over rounds needs this many evaluations, and leaves out this share of the rounds at the start.
FEWEST, START = 16, 1 / 8
# An interval needs this many points: three leave one degree of freedom, whose interval is of no use.
INTERVAL_FROM = 4
# The theorems bound the square of this metric.
PRIMAL = "primal_gradient_norm"


@dataclass(frozen=True)
class Fit:
    """A fitted power law.

    Attributes:
        of: the cost and the variable of the law, such as "rounds until the target, in S".
        where: the settings that it holds for.
        exponent, low, high: the exponent and its confidence interval at CONFIDENCE; NaN where there is none.
        points: the number of fitted settings or seeds; none where there were too few, which the source says.
        theory: the exponent of a theorem; None where there is none.
        source: where the theorem stands, and what was left out of the fit.
    """

    of: str
    where: str
    exponent: float
    low: float
    high: float
    points: int
    theory: Fraction | None
    source: str


def fitted(runs: Runs, target: float | None) -> list[Fit]:
    """Returns all fits for which the runs have enough points.

    Rounds until the target in S and in K, over settings that nothing else tells apart and whose runs all reached it: a
    straight line through the means over seeds of their logarithms, whose interval is that of their distances from it:
    what bends the line, and not only what differs between seeds, is in it. And, where the metric is the gradient of
    Phi, the mean of its square over rounds, in T: a line for each seed, and the mean of their slopes.
    """
    found: list[Fit] = []
    if target is not None:
        for key in ("algorithm.S", "algorithm.K"):
            found += [_in_key(key, label, group, target) for label, group in families(runs, key)]
    for setting in runs.settings:
        found += [fit for fit in [_in_rounds(setting)] if fit]
    return found


def families(runs: Runs, key: str) -> list[tuple[str, list[Setting]]]:
    """Returns groups of settings that differ only in this key, in its numbers' order, and what each group shares."""
    groups: dict[str, list[Setting]] = {}
    for setting in runs.settings:
        if setting.number(key) is not None:
            groups.setdefault(setting.without(key), []).append(setting)
    ordered = {label: sorted(group, key=lambda s: s.number(key) or 0.0) for label, group in groups.items()}
    return [(label, group) for label, group in ordered.items() if len({s.number(key) for s in group}) > 1]


def power(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[float, float, float]:
    """Returns the exponent of x in y with its confidence interval, by least squares on the logarithms.

    Args:
        x, y: positive numbers, of shape (n,) with n > 2.
    """
    line = scipy.stats.linregress(np.log(x), np.log(y))
    error = 0.0 if np.ptp(y) == 0 else float(line.stderr)  # SciPy gives NaN for a flat line
    half = float(scipy.stats.t.ppf((1 + CONFIDENCE) / 2, len(x) - 2)) * error
    return float(line.slope), float(line.slope) - half, float(line.slope) + half


def _in_key(key: str, where: str, group: Sequence[Setting], target: float) -> Fit:
    of = f"rounds until the target, in {key.rpartition('.')[2]}"
    whole = [(s, costs) for s in group if np.isfinite(costs := s.costs(target, "round")).all() and (costs > 0).all()]
    x = np.array([setting.number(key) for setting, _ in whole])
    if len(set(x.tolist())) < 3 or (x <= 0).any():
        return Fit(of, where, np.nan, np.nan, np.nan, 0, None, "fewer than three settings whose runs all reached it")
    y = np.array([np.exp(np.log(costs).mean()) for _, costs in whole])
    rate = _rate(group[0].algorithm) if key == "algorithm.S" else None
    said = [rate.source] if rate else []
    if len(whole) < len(group):
        said.append(f"without {len(group) - len(whole)} of {len(group)} settings where not all reached it")
    slope, low, high = power(x, y)
    if len(x) < INTERVAL_FROM:
        low = high = np.nan
        said.append(f"no interval from {len(x)} points")
    return Fit(of, where, slope, low, high, len(x), rate.rounds if rate else None, "; ".join(said))


def _in_rounds(setting: Setting) -> Fit | None:
    """Fits the mean over rounds of the squared gradient of Phi, where a problem has it for a metric."""
    if setting.runs[0].metric != PRIMAL:
        return None
    slopes = []
    for run in setting.runs:
        at, value = run.curve.axes["round"], run.curve.value
        mean = np.cumsum(value**2) / np.arange(1, len(value) + 1)
        fits = (at > START * at[-1]) & (mean > 0) & np.isfinite(mean)
        if np.count_nonzero(fits) < FEWEST:
            return None
        slopes.append(np.polyfit(np.log(at[fits]), np.log(mean[fits]), 1)[0])
    rate = _rate(setting.algorithm)
    middle = float(np.mean(slopes))
    half = np.nan
    if len(slopes) > 1:
        half = float(scipy.stats.t.ppf((1 + CONFIDENCE) / 2, len(slopes) - 1) * scipy.stats.sem(slopes))
    return Fit(
        "mean of ||grad Phi||^2 over rounds, in T", setting.label, middle, middle - half, middle + half, len(slopes),
        rate.T if rate else None, rate.source if rate else "",
    )  # fmt: skip


def _rate(algorithm: str) -> Rate | None:
    """Returns the proven rate of one of raysim's algorithms, by its name in configurations."""
    found = ALGORITHMS.entries.get(algorithm)
    return None if found is None else found.rate  # type: ignore[attr-defined]
