"""Saddle problems, one file each."""

from raysim.problems.abilities import (
    ClosedFormDual,
    Composed,
    Curve,
    Evaluated,
    HasCodes,
    HasExtractor,
    HasFigures,
    HasNetworks,
    LabelScored,
    Named,
    Prepared,
    ScoredByRow,
    StatisticsOfRows,
    require,
    require_declared,
)
from raysim.problems.auc import AUC
from raysim.problems.binary import Binary
from raysim.problems.classification import Classification
from raysim.problems.compositional_auc import CompositionalAUC
from raysim.problems.cross_entropy import BinaryCrossEntropy, RatioLoss
from raysim.problems.fair import Fair
from raysim.problems.gan import GAN
from raysim.problems.network import NetworkProblem
from raysim.problems.pool import Pool
from raysim.problems.problem import DataSpec, Problem
from raysim.problems.quadratic import Quadratic
from raysim.problems.robust import Robust
from raysim.problems.stochastic import StochasticClassification
from raysim.registry import Registry

PROBLEMS = Registry(
    "problem",
    {
        "auc": AUC,
        "compositional_auc": CompositionalAUC,
        "binary_cross_entropy": BinaryCrossEntropy,
        "ratio_loss": RatioLoss,
        "classification": Classification,
        "stochastic_classification": StochasticClassification,
        "robust": Robust,
        "gan": GAN,
        "fair": Fair,
        "quadratic": Quadratic,
    },
    injected=("network", "data", "classifier"),
    base=Problem,
)

__all__ = [
    "AUC",
    "GAN",
    "PROBLEMS",
    "Binary",
    "BinaryCrossEntropy",
    "Classification",
    "ClosedFormDual",
    "Composed",
    "CompositionalAUC",
    "Curve",
    "DataSpec",
    "Evaluated",
    "Fair",
    "HasCodes",
    "HasExtractor",
    "HasFigures",
    "HasNetworks",
    "LabelScored",
    "Named",
    "NetworkProblem",
    "Pool",
    "Prepared",
    "Problem",
    "Quadratic",
    "RatioLoss",
    "Robust",
    "ScoredByRow",
    "StatisticsOfRows",
    "StochasticClassification",
    "require",
    "require_declared",
]
