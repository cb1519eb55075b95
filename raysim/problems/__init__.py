"""Saddle problems: one file each."""

from raysim.problems.auc import AUC
from raysim.problems.fair import Fair
from raysim.problems.problem import DataSpec, NetworkProblem, Problem
from raysim.problems.quadratic import Quadratic
from raysim.registry import Registry

PROBLEMS = Registry(
    "problem", {"auc": AUC, "fair": Fair, "quadratic": Quadratic}, injected=("network", "data"), base=Problem
)

__all__ = ["AUC", "PROBLEMS", "DataSpec", "Fair", "NetworkProblem", "Problem", "Quadratic"]
