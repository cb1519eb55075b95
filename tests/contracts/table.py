"""The algorithm table: one row buys an algorithm every contract test."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from raysim.algorithms import ALGORITHMS
from tests.play import CODES, DIGITS, OWN


@dataclass(frozen=True)
class Floats:
    """Numbers on the wire, in units of |x| and |y|, and others."""

    x: int
    y: int
    more: int = 0

    @classmethod
    def of_z(cls, n: int) -> "Floats":
        return cls(n, n)

    def bytes(self, clients: int, dim_x: int, dim_y: int, itemsize: int) -> int:
        return clients * (self.x * dim_x + self.y * dim_y + self.more) * itemsize


@dataclass(frozen=True)
class Row:
    """What the contracts must be told of an algorithm.

    Attributes:
        settings: for the 8-client quadratic, with 4 clients a phase.
        everyone: settings in which all 8 clients take part and the iteration contracts.
        drifts: whether, on heterogeneous clients, K > 1 local steps settle away from the saddle.
        up, down: floats per round and client.
        up_in, down_in: the same in those of the first three rounds that differ.
        rounds: within which it settles.
        moves: whether the point that the server has does.
    """

    settings: dict[str, Any]
    everyone: dict[str, Any]
    drifts: bool
    up: Floats
    down: Floats
    up_in: Mapping[int, Floats] = field(default_factory=dict)
    down_in: Mapping[int, Floats] = field(default_factory=dict)
    rounds: int = 150
    moves: bool = True


z = Floats.of_z
STEPS = {"eta": 0.05, "gamma": 0.05}
LOCAL = {"K": 4, "batch": 2}
FULL = {"K": 4, "batch": 6}  # all rows of a client of the quadratic
SOME, ALL = {"S": 4}, {"S": 8}
MOMENTUM = {"alpha": 0.3, "beta": 0.4}
STAGES = {"eta": 0.05, "theta": 0.1, "stage_steps": [8, 4]}
PROXIMAL = {"eta": 0.05, "theta": 0.1, "stage_steps": 8, "decay": 1}  # the centre moves on until the saddle is reached
TABLE = {
    "cd_mage": Row(SOME | LOCAL | STEPS, ALL | LOCAL | STEPS, drifts=False, up=z(2), down=z(3)),
    "cd_mage_plus": Row(
        SOME | LOCAL | {"c_eta": 0.05, "c_gamma": 0.05, "c_alpha": 0.7, "rho": 0.2},
        ALL | LOCAL | {"c_eta": 0.1, "c_gamma": 0.1, "c_alpha": 0.7, "rho": 0.1},
        drifts=False,
        up=z(2),
        down=z(4),
        down_in={0: z(3)},  # nothing precedes z_0
    ),
    "cd_ma": Row(SOME | LOCAL | STEPS, ALL | FULL | STEPS, drifts=True, up=z(1), down=z(1)),
    "parallel_sgda": Row(SOME | STEPS, ALL | {"eta": 0.2, "gamma": 0.2}, drifts=False, up=z(1), down=z(1), rounds=600),
    "extra_step_local_sgd": Row(
        SOME | LOCAL | {"eta": 0.05}, ALL | FULL | {"eta": 0.05}, drifts=True, up=z(1), down=z(1)
    ),
    "local_sgda": Row(SOME | LOCAL | STEPS, FULL | STEPS, drifts=True, up=z(1), down=z(1)),
    "local_sgda_plus": Row(
        SOME | LOCAL | STEPS | {"snapshot_steps": 8},
        FULL | STEPS,
        drifts=True,
        up=z(1),
        down=Floats(2, 1),
        down_in={0: z(1), 2: z(1)},  # the snapshot is x_t
    ),
    "catalyst_scaffold_s": Row(
        SOME | LOCAL | {"eta": 0.05, "theta": 0.1, "stage_steps": 12},
        ALL | LOCAL | {"eta": 0.05, "theta": 0.1, "stage_steps": 12},
        drifts=False,
        up=z(2),
        down=z(4),
    ),
    "coda": Row(
        SOME | LOCAL | STAGES | {"dual_batch": 3},
        FULL | PROXIMAL | {"dual_batch": 6},
        drifts=True,
        up=z(1),
        down=Floats(2, 1),
        up_in={2: Floats(1, 2)},  # a stage begins
        down_in={2: Floats(3, 2)},
    ),
    "coda_plus": Row(SOME | LOCAL | STAGES, FULL | PROXIMAL, drifts=True, up=z(1), down=Floats(2, 1)),
    "codasca": Row(
        SOME | LOCAL | STAGES | {"eta_g": 1.1},
        FULL | PROXIMAL | {"eta_g": 1.1},
        drifts=False,
        up=z(2),
        down=Floats(3, 2),
    ),
    "fedsgda_plus": Row(
        SOME | LOCAL | STEPS | {"eta_g": 1.5, "gamma_g": 0.8, "snapshot_rounds": 3},
        FULL | STEPS | {"eta_g": 0.8, "gamma_g": 1.2, "snapshot_rounds": 2, "clients_keep_snapshot": True},
        drifts=True,
        up=z(1),
        down=Floats(2, 1),
        down_in={0: z(1)},
        rounds=300,
    ),
    "fedsgda_m": Row(
        SOME | LOCAL | STEPS | MOMENTUM, FULL | STEPS | MOMENTUM, drifts=True, up=z(2), down=z(2), down_in={0: z(1)}
    ),
    "momentum_local_sgda": Row(
        SOME | LOCAL | STEPS | {"beta_x": 0.3, "beta_y": 0.4},
        FULL | STEPS | {"beta_x": 0.9, "beta_y": 0.8},
        drifts=True,
        up=z(2),
        down=z(2),
        down_in={0: z(1)},
    ),
    "sagda": Row(SOME | LOCAL | STEPS | {"gamma_g": 0.9}, FULL | STEPS, drifts=False, up=z(2), down=z(2)),
    "fednest": Row(
        SOME | LOCAL | STEPS | {"inner": 2},
        LOCAL | STEPS | {"inner": 2},
        drifts=False,
        up=Floats(2, 4),
        down=Floats(2, 5),
    ),
    "fedgda_gt": Row(SOME | {"K": 4, "eta": 0.05}, {"K": 4, "eta": 0.05}, drifts=False, up=z(2), down=z(2)),
    "local_scgdam": Row(
        SOME | LOCAL | STEPS | {"alpha": 0.8, "beta_x": 0.3, "beta_y": 0.4, "stage_steps": [8]},
        FULL | STEPS | {"alpha": 0.8, "beta_x": 0.9, "beta_y": 0.8},
        drifts=True,
        up=Floats(3, 2),
        down=Floats(3, 2),
        down_in={0: z(1)},
    ),
    "local_sgdm": Row(
        SOME | LOCAL | {"eta": 0.05, "beta": 0.4, "stage_steps": [8]},
        FULL | {"eta": 0.05, "beta": 0.4},
        drifts=True,
        up=z(2),
        down=z(2),
        down_in={0: z(1)},
    ),
    "scaffold": Row(
        SOME | LOCAL | {"eta": 0.05, "eta_g": 1.1, "stage_steps": [8]},
        FULL | {"eta": 0.05, "eta_g": 1.1},
        drifts=False,
        up=z(2),
        down=z(2),
    ),
    "fedprox": Row(
        SOME | LOCAL | {"eta": 0.05, "mu": 0.1, "stage_steps": [8]},
        FULL | {"eta": 0.05, "mu": 0.1},
        drifts=True,
        up=z(1),
        down=z(1),
    ),
}

STEPS_UV = {"K_v": 3, "K_u": 4, "batch": 5, "eta_v": 0.1, "eta_u": 0.05, "eta_0": 0.02, "weight": 0.3, "clip": 2.0}
STEPS_HEADS = {name: STEPS_UV[name] for name in ("K_v", "K_u", "batch", "eta_v", "eta_u", "clip")}
STEPS_Z = {"K": 4, "batch": 5, "eta": 0.1, "clip": 2.0}

# Clients have models of their own: an extractor and a head take the places of x and y.
PERSONAL = {
    "fedreco": Row(
        SOME | STEPS_UV | {"shard_gradient": True}, STEPS_UV | {"tune_v": 2}, False, up=Floats(1, 0), down=Floats(1, 0)
    ),
    "fedreco_pvr": Row(SOME | STEPS_UV, STEPS_UV, False, up=Floats(1, 0), down=Floats(1, 0)),
    "fedavg": Row(
        SOME | STEPS_Z | {"privacy": {"epsilon": 500.0, "delta": 0.01, "clip": 0.5}},
        STEPS_Z | {"tune_v": 3},
        False,
        up=z(1),
        down=z(1),
    ),
    "ditto": Row(SOME | STEPS_Z | {"weight": 0.3}, STEPS_Z | {"weight": 0.3}, False, up=z(1), down=z(1)),
    "fedrep": Row(SOME | STEPS_HEADS, STEPS_HEADS | {"tune_v": 2}, False, up=Floats(1, 0), down=Floats(1, 0)),
    "fedbabu": Row(
        SOME | STEPS_Z | {"personal_heads": True},
        STEPS_Z | {"tune_v": 2, "tune_u": 2},
        False,
        up=Floats(1, 0),
        down=Floats(1, 0),
    ),
    # Heads, features' moments (10 classes, 8 features), their variance; centroids and which of them there are.
    "fedpac": Row(
        SOME | STEPS_HEADS | {"weight": 0.5},
        STEPS_HEADS | {"weight": 0.5, "tune_u": 1},
        False,
        up=Floats(1, 1, 2 * 80 + 10 + 1),
        down=Floats(1, 1, 80 + 10),
        down_in={0: z(1)},
    ),
    # Two moments of 10 classes' codes of 4 numbers.
    "fedcr": Row(
        SOME | STEPS_Z | {"weight": 0.01},
        STEPS_Z | {"weight": 0.01, "tune_v": 1},
        False,
        up=Floats(1, 0, 80),
        down=Floats(1, 0, 80),
        down_in={0: Floats(1, 0)},
    ),
    "local_only": Row(SOME | STEPS_Z, STEPS_Z, False, up=z(0), down=z(0), moves=False),
}
ALL_ROWS = TABLE | PERSONAL

# What the simulator tells an algorithm of a model.
SIZES = {"extractor_size": 5, "classes": 4, "feature_size": 3, "code_size": 2}

assert ALL_ROWS.keys() == ALGORITHMS.entries.keys(), "every registered algorithm has its row"


def settings(name: str, which: str = "settings", **changed: Any) -> dict[str, Any]:
    """The algorithm section of a configuration."""
    return {"name": name} | getattr(ALL_ROWS[name], which) | changed


def base_of(name: str, other: dict[str, Any] = DIGITS) -> dict[str, Any]:
    """Real rows for it; `other` where clients have no models of their own."""
    if name == "fedcr":
        return OWN | CODES
    return OWN if name in PERSONAL else other
