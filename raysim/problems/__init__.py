"""Saddle problems: one file each."""

from raysim.problems.auc import AUC
from raysim.problems.fair import Fair
from raysim.problems.gan import GAN
from raysim.problems.problem import Curve, DataSpec, NetworkProblem, Pool, Problem
from raysim.problems.quadratic import Quadratic
from raysim.problems.robust import Robust
from raysim.registry import Registry

PROBLEMS = Registry(
    "problem",
    {"auc": AUC, "robust": Robust, "gan": GAN, "fair": Fair, "quadratic": Quadratic},
    injected=("network", "data", "classifier"),
    base=Problem,
)

__all__ = [
    "AUC",
    "GAN",
    "PROBLEMS",
    "Curve",
    "DataSpec",
    "Fair",
    "NetworkProblem",
    "Pool",
    "Problem",
    "Quadratic",
    "Robust",
]
