"""Saddle problems: one file each."""

from raysim.problems.auc import AUC
from raysim.problems.problem import DataSpec, NetworkProblem, Problem
from raysim.problems.quadratic import Quadratic
from raysim.registry import Registry

PROBLEMS = Registry("problem", {"auc": AUC, "quadratic": Quadratic}, injected=("network", "data"), base=Problem)

__all__ = ["AUC", "PROBLEMS", "DataSpec", "NetworkProblem", "Problem", "Quadratic"]
