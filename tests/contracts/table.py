"""The algorithm table: one row buys an algorithm every contract test."""

from dataclasses import dataclass
from typing import Any

from raysim.algorithms import ALGORITHMS


@dataclass(frozen=True)
class Row:
    """What the contracts must be told of an algorithm.

    Attributes:
        settings: for the 8-client quadratic, with 4 clients a phase.
        everyone: settings in which all 8 clients take part and the iteration contracts.
        drifts: whether, on heterogeneous clients, K > 1 local steps settle away from the saddle.
        up, down: floats per round in units of S |z|, from round 1 on.
        rounds: after which it has contracted to rounding.
    """

    settings: dict[str, Any]
    everyone: dict[str, Any]
    drifts: bool
    up: int
    down: int
    rounds: int = 150


STEPS = {"eta": 0.05, "gamma": 0.05}
LOCAL = {"K": 4, "batch": 2}
TABLE = {
    "cd_mage": Row({"S": 4, **LOCAL, **STEPS}, {"S": 8, **LOCAL, **STEPS}, drifts=False, up=2, down=3),
    "cd_mage_plus": Row(
        {"S": 4, **LOCAL, "c_eta": 0.05, "c_gamma": 0.05, "c_alpha": 0.7, "rho": 0.2},
        {"S": 8, **LOCAL, "c_eta": 0.1, "c_gamma": 0.1, "c_alpha": 0.7, "rho": 0.1},
        drifts=False,
        up=2,
        down=4,
    ),
    "cd_ma": Row({"S": 4, **LOCAL, **STEPS}, {"S": 8, "K": 4, "batch": 6, **STEPS}, drifts=True, up=1, down=1),
    "parallel_sgda": Row({"S": 4, **STEPS}, {"S": 8, "eta": 0.2, "gamma": 0.2}, drifts=False, up=1, down=1, rounds=300),
}

assert TABLE.keys() == ALGORITHMS.entries.keys(), "every registered algorithm has its row"


def settings(name: str, which: str = "settings", **changed: Any) -> dict[str, Any]:
    """The algorithm section of a configuration."""
    return {"name": name} | getattr(TABLE[name], which) | changed
