"""Algorithms: one file per paper's idea, both halves of it, phase by phase."""

from raysim.algorithms.cd_ma import CDMA
from raysim.algorithms.cd_mage import CDMage, CDMagePlus
from raysim.algorithms.parallel_sgda import ParallelSGDA
from raysim.phase import Algorithm
from raysim.registry import Registry

ALGORITHMS = Registry(
    "algorithm",
    {"cd_mage": CDMage, "cd_mage_plus": CDMagePlus, "cd_ma": CDMA, "parallel_sgda": ParallelSGDA},
    base=Algorithm,
)

__all__ = ["ALGORITHMS", "CDMA", "CDMage", "CDMagePlus", "ParallelSGDA"]
