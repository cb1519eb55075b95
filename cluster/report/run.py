"""A finished run, as a report reads it: its curve, its configuration, and its cost until a target."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from cluster import yaml12
from cluster.plots import Curve
from cluster.study import TRIALS
from cluster.tree import flat
from raysim.errors import ConfigError, DataError
from raysim.problems import PROBLEMS


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        curve: the curve of one metric.
        metric, split: the metric of the curve, and the split that it was taken on.
        higher: whether high values of the metric are good.
        keys: the configuration's values by dotted key.
        target: the configuration's target, if it is for the curve's metric and split.
        summary: the content of summary.json; empty for a run that was broken off.
    """

    curve: Curve
    metric: str
    split: str
    higher: bool
    keys: Mapping[str, Any]
    target: float | None
    summary: Mapping[str, Any]

    @classmethod
    def read(
        cls, folder: Path, metric: str | None = None, split: str | None = None, higher: bool | None = None
    ) -> "Run":
        """Reads the run of a folder.

        Args:
            metric, split: None takes the headline metric, and the last of the splits that the run evaluated.
            higher: whether high values of the metric are good; known by itself only for the headline metric.

        Raises:
            DataError: the run did not finish, or has no such metric.
            ConfigError: `higher` is needed and is not given.
        """
        try:
            config = yaml12.parse((folder / "config.yaml").read_text(encoding="utf-8"))
            summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            begun = (folder / "config.yaml").is_file()
            hint = f"; where it was broken off: raysim run --resume {folder}" if begun else ""
            why = " ".join(str(error).split())
            raise DataError(f"{folder} is no folder of a finished run, nor of a study ({why}){hint}") from None
        headline, more = _headline(folder, config, summary)
        last, keys = [*summary["final"]][-1], flat(config)
        metric, split = metric or headline, split or last
        curve = Curve.read(folder, metric, split)
        if metric != headline and higher is None:
            options = "--higher-is-better or --lower-is-better (in a study, select.higher_is_better)"
            raise ConfigError("--metric", f"{metric!r} needs {options}")
        own = (metric, split) == (headline, last)
        target = keys.get("evaluate.target") if own else None
        return cls(curve, metric, split, more if higher is None else higher, keys, target, summary)

    @classmethod
    def read_broken(cls, folder: Path, like: "Run") -> "Run":
        """Reads a run that was broken off up to its last evaluation, with the metric of another. Raises DataError."""
        curve = Curve.read(folder, like.metric, like.split)
        config = yaml12.parse((folder / "config.yaml").read_text(encoding="utf-8"))
        keys = flat(config)
        target = None if like.target is None else keys.get("evaluate.target")
        return cls(curve, like.metric, like.split, like.higher, keys, target, {})

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self.curve.folder

    @property
    def name(self) -> str:
        """The name of the run's folder, after that of its study if it is a trial."""
        folder = self.folder.resolve()
        return f"{folder.parent.parent.name}/{folder.name}" if folder.parent.name == TRIALS else folder.name

    @property
    def algorithm(self) -> str:
        """The algorithm's name in the configuration."""
        return str(self.keys["algorithm.name"])

    @property
    def seed(self) -> int:
        """The experiment's seed."""
        return int(self.keys["seed"])

    @property
    def best(self) -> tuple[float, int] | None:
        """The best value and the rounds after which it was first reached; None where it was never defined."""
        if np.isnan(self.curve.value).all():
            return None
        place = int((np.nanargmax if self.higher else np.nanargmin)(self.curve.value))
        return float(self.curve.value[place]), int(self.curve.axes["round"][place])

    @cached_property
    def last(self) -> Mapping[str, float | None]:
        """All metrics of the same split at the last evaluation; an undefined one is None."""
        rows = pq.read_table(self.folder / "metrics.parquet", columns=["split", "metric", "value"]).to_pylist()
        return {row["metric"]: row["value"] for row in rows if row["split"] == self.split}

    @property
    def epsilon_spent(self) -> float | None:
        """The epsilon that all private uploads of a client have spent together; None where none were private."""
        private = self.summary.get("privacy") or {}
        return max((of["epsilon_spent"] for of in private.values()), default=None)

    @property
    def finished(self) -> bool:
        """True if the run finished."""
        return bool(self.summary)

    @property
    def ended_at_target(self) -> bool:
        """True if it was over because it had reached the target of its configuration."""
        reached = (self.summary.get("target") or {}).get("rounds") is not None
        return reached and bool(self.keys.get("evaluate.stop_at_target"))

    def reached(self, target: float) -> "Cost | None":
        """Returns the run's cost at the first evaluation that was at the target, or None."""
        good = self.curve.value >= target if self.higher else self.curve.value <= target
        return Cost(self.curve.axes, int(np.flatnonzero(good)[0])) if good.any() else None

    def at(self, axis: str, budget: float) -> float | None:
        """Returns the metric at the last evaluation within a budget, in the unit of AXES.

        None where there is none, or the run ended before it without having come as far.
        """
        at = self.curve.axes[axis]
        within = np.flatnonzero(at <= budget * (1 + 1e-9))
        # A run that goes on beyond the budget has used it all; one that ends before it may not have.
        if not len(within) or (within[-1] == len(at) - 1 and at[-1] < budget * (1 - SLACK)):
            return None
        return float(self.curve.value[within[-1]])


def headline(folder: Path) -> str:
    """Returns a run's headline metric. Raises DataError where the folder is no run, or the run must end to tell."""
    try:
        config = yaml12.parse((folder / "config.yaml").read_text(encoding="utf-8"))
        written = folder / "summary.json"
        summary = json.loads(written.read_text(encoding="utf-8")) if written.exists() else {}
    except OSError as error:
        raise DataError(f"{folder} is no folder of a run with results ({error.filename})") from None
    except ValueError as error:
        raise DataError(f"{folder} is no folder of a run with results ({' '.join(str(error).split())})") from None
    return _headline(folder, config, summary)[0]


def _headline(folder: Path, config: Mapping[str, Any], summary: Mapping[str, Any]) -> tuple[str, bool]:
    """Returns the headline metric and whether more of it is better, without importing modules that a folder names."""
    if found := summary.get("headline"):
        return found["metric"], found["higher_is_better"]
    problem = PROBLEMS.entries.get(config["problem"]["name"])
    if problem is None:
        raise DataError(f"{folder} has not finished, and its problem is your own: name one of its metrics (--metric)")
    return problem.headline, problem.higher_is_better  # type: ignore[attr-defined]


# A run has used a budget if its last evaluation falls short of it by less than this share: with devices, runs of
# equal rounds do not upload exactly the same.
SLACK = 0.05


@dataclass(frozen=True)
class Cost:
    """The cost of a run up to an evaluation: the values of a Curve's `axes` at `place`."""

    axes: Mapping[str, NDArray[np.float64]]
    place: int

    def __getitem__(self, axis: str) -> float:
        return float(self.axes[axis][self.place])
