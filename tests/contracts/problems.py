"""The problem table: one row buys a problem every contract test."""

from dataclasses import dataclass, field
from typing import Any

from cluster.experiment import Experiment
from raysim.problems import PROBLEMS
from tests.play import CODES, DIGITS, OWN, QUADRATIC, experiment


@dataclass(frozen=True)
class Row:
    """A row of the table of problems: one problem, and the facts that the contracts need about it.

    Attributes:
        problem: its section of a configuration, without the name.
        sections: other sections that it needs, over those of `base`.
        base: the experiment.
    """

    problem: dict[str, Any] = field(default_factory=dict)
    sections: dict[str, Any] = field(default_factory=dict)
    base: dict[str, Any] = field(default_factory=lambda: DIGITS)


FAIR = {"partition": {"name": "stride", "clients": 20}}
# The other gradient of a generator, which is the default, is not that of one function.
SATURATING = {"saturating": True, "classifier_epochs": 1}
TABLE = {
    "auc": Row(),
    "compositional_auc": Row({"rho": 0.5}),
    "binary_cross_entropy": Row(),
    "ratio_loss": Row({"positive": [0, 3]}),
    "classification": Row(base=OWN),
    "stochastic_classification": Row({"samples": 3}, {"model": CODES["model"]}, OWN),
    "robust": Row({"penalty": 0.1}),
    "gan": Row(SATURATING, {"model": {"name": "tests.toys:TinyGAN"}}),
    "fair": Row(sections=FAIR),
    "quadratic": Row(base=QUADRATIC),
}

assert TABLE.keys() == PROBLEMS.entries.keys(), "every registered problem has its row"


def made(name: str, **sections: Any) -> Experiment:
    """The row's experiment with CD-MA, in float64."""
    row = TABLE[name]
    algorithm = {"name": "cd_ma", "S": 4, "K": 3, "batch": 6, "eta": 0.05, "gamma": 0.05}
    problem = {"name": name} | row.problem
    return experiment(row.base | row.sections, algorithm, problem=problem, **sections)
