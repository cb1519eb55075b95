"""Algorithms: one file per paper's idea, both halves of it, phase by phase."""

from raysim.algorithm import Algorithm
from raysim.algorithms.catalyst_scaffold_s import CatalystScaffoldS
from raysim.algorithms.cd_ma import CDMA
from raysim.algorithms.cd_mage import CDMage, CDMagePlus
from raysim.algorithms.coda import CODA, CODASCA, CODAPlus
from raysim.algorithms.extra_step import ExtraStepLocalSGD
from raysim.algorithms.fedavg import Ditto, FedAvg, LocalOnly
from raysim.algorithms.fedcr import FedCR
from raysim.algorithms.fedgda_gt import FedGDAGT
from raysim.algorithms.fednest import FedNest
from raysim.algorithms.fedpac import FedPAC
from raysim.algorithms.fedprox import FedProx
from raysim.algorithms.fedreco import FedReCo, FedReCoPVR
from raysim.algorithms.fedrep import FedBABU, FedRep
from raysim.algorithms.fedsgda import FedSGDAM, FedSGDAPlus
from raysim.algorithms.local_scgdam import LocalSCGDAM
from raysim.algorithms.local_sgda import LocalSGDA, LocalSGDAPlus
from raysim.algorithms.local_sgdm import LocalSGDM
from raysim.algorithms.momentum_local_sgda import MomentumLocalSGDA
from raysim.algorithms.parallel_sgda import ParallelSGDA
from raysim.algorithms.sagda import SAGDA
from raysim.algorithms.scaffold import SCAFFOLD
from raysim.registry import Registry

ALGORITHMS = Registry(
    "algorithm",
    {
        "cd_mage": CDMage,
        "cd_mage_plus": CDMagePlus,
        "cd_ma": CDMA,
        "parallel_sgda": ParallelSGDA,
        "extra_step_local_sgd": ExtraStepLocalSGD,
        "local_sgda": LocalSGDA,
        "local_sgda_plus": LocalSGDAPlus,
        "catalyst_scaffold_s": CatalystScaffoldS,
        "coda": CODA,
        "coda_plus": CODAPlus,
        "codasca": CODASCA,
        "fedsgda_plus": FedSGDAPlus,
        "fedsgda_m": FedSGDAM,
        "momentum_local_sgda": MomentumLocalSGDA,
        "sagda": SAGDA,
        "fednest": FedNest,
        "fedgda_gt": FedGDAGT,
        "local_scgdam": LocalSCGDAM,
        "local_sgdm": LocalSGDM,
        "scaffold": SCAFFOLD,
        "fedprox": FedProx,
        "fedreco": FedReCo,
        "fedreco_pvr": FedReCoPVR,
        "fedavg": FedAvg,
        "ditto": Ditto,
        "fedrep": FedRep,
        "fedbabu": FedBABU,
        "fedpac": FedPAC,
        "fedcr": FedCR,
        "local_only": LocalOnly,
    },
    injected=("clients", "seed", "extractor_size", "feature_size", "code_size", "classes"),
    base=Algorithm,
)

__all__ = [
    "ALGORITHMS",
    "CDMA",
    "CODA",
    "CODASCA",
    "SAGDA",
    "SCAFFOLD",
    "CDMage",
    "CDMagePlus",
    "CODAPlus",
    "CatalystScaffoldS",
    "Ditto",
    "ExtraStepLocalSGD",
    "FedAvg",
    "FedBABU",
    "FedCR",
    "FedGDAGT",
    "FedNest",
    "FedPAC",
    "FedProx",
    "FedReCo",
    "FedReCoPVR",
    "FedRep",
    "FedSGDAM",
    "FedSGDAPlus",
    "LocalOnly",
    "LocalSCGDAM",
    "LocalSGDA",
    "LocalSGDAPlus",
    "LocalSGDM",
    "MomentumLocalSGDA",
    "ParallelSGDA",
]
