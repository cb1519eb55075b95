"""Finished runs for comparison in a report: their curves, their costs until a target, and how they differ."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from cluster import yaml12
from cluster.plots import AXES, SAME_CURVE, Curve
from cluster.study import TRIALS
from cluster.tree import flat
from raysim.errors import ConfigError, DataError
from raysim.problems import PROBLEMS

# The keys that label lines first. Others are added only where these do not tell all lines apart.
FIRST = ("algorithm.name", "algorithm.S", "algorithm.K")


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        curve: of one metric.
        metric, split: what the curve is of.
        higher: whether more of the metric is better.
        keys: its configuration's values by dotted key.
        target: of its configuration, if the curve is of what that is for.
        summary: summary.json; empty of a run that was broken off.
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
            metric, split: None are the headline metric and the last of the splits that it evaluated.
            higher: whether more of the metric is better, which is known of the headline metric alone.

        Raises:
            DataError: the run did not finish, or has no such metric.
            ConfigError: `higher` is not given, and is not known.
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


@dataclass(frozen=True)
class Setting:
    """A group of runs that differ only in their seed.

    Attributes:
        label: how the setting differs from the others, in words.
        values: the values in which it differs, by dotted key.
        lost: the number of runs that failed before their first evaluation.
    """

    label: str
    values: Mapping[str, Any]
    runs: tuple[Run, ...]
    lost: int = 0

    @property
    def count(self) -> int:
        """The number of the setting's runs, lost ones included."""
        return len(self.runs) + self.lost

    @property
    def algorithm(self) -> str:
        """The algorithm's name in the configuration."""
        return self.runs[0].algorithm

    def without(self, *keys: str | None) -> str:
        """Returns the label without these keys and without the configuration's name."""
        return " ".join(word(key, value) for key, value in self.values.items() if key not in (*keys, "name"))

    def number(self, key: str) -> float | None:
        """Returns the value of a key if it is a number, and None otherwise."""
        value = self.runs[0].keys.get(key)
        return None if isinstance(value, bool) or not isinstance(value, int | float) else value

    def costs(self, target: float, axis: str) -> NDArray[np.float64]:
        """Returns the costs until the target, (count,); infinite where it was not reached."""
        found = [run.reached(target) for run in self.runs]
        return np.array([np.inf if cost is None else cost[axis] for cost in found] + [np.inf] * self.lost)

    def cost(self, target: float, axis: str) -> float:
        """Returns the median cost; it is infinite where half of the runs or more missed the target."""
        return middle(self.costs(target, axis))


@dataclass(frozen=True)
class Runs:
    """Several runs of one metric, grouped by setting."""

    settings: tuple[Setting, ...]

    @classmethod
    def read(
        cls,
        folders: Sequence[Path],
        metric: str | None = None,
        split: str | None = None,
        higher: bool | None = None,
        broken: Mapping[Path, Path] = MappingProxyType({}),
    ) -> "Runs":
        """Reads the runs of some folders.

        Args:
            metric, split, higher: as of Run.read.
            broken: folders of runs that were broken off, which count as far as they came, and of each the folder of
                one that differs from it in its seed only.

        Raises DataError where they have no metric in common, or are the same, and what Run.read raises.
        """
        if not folders:
            raise DataError("there is no finished run to report on")
        runs = [Run.read(folder, metric, split, higher) for folder in dict.fromkeys(f.resolve() for f in folders)]
        if len(kinds := {(run.metric, run.split) for run in runs}) > 1:
            some = ", ".join(f"{split} {metric}" for metric, split in sorted(kinds))
            raise DataError(f"the runs are of {some}; give --metric and --split, or report on them apart")
        lost: Counter[Path] = Counter()
        for folder, sibling in broken.items():
            try:
                runs.append(Run.read_broken(folder, runs[0]))
            except DataError:  # it has no evaluation
                lost[sibling.resolve()] += 1
        groups: dict[str, list[Run]] = {}
        for run in runs:
            groups.setdefault(run.curve.settings, []).append(run)
        for group in groups.values():
            _require_seeds(group)
        named = _named([group[0].keys for group in groups.values()])
        return cls(
            tuple(
                Setting(
                    label, values, tuple(sorted(group, key=lambda run: run.seed)), sum(lost[r.folder] for r in group)
                )
                for group, (label, values) in zip(groups.values(), named, strict=True)
            )
        )

    @property
    def all(self) -> list[Run]:
        """All runs, setting by setting."""
        return [run for setting in self.settings for run in setting.runs]

    @property
    def metric(self) -> str:
        """The metric that all runs share."""
        return self.all[0].metric

    @property
    def split(self) -> str:
        """The split that all runs share."""
        return self.all[0].split

    @property
    def higher(self) -> bool:
        """True if more of the metric is better."""
        return self.all[0].higher

    @cached_property
    def axes(self) -> list[str]:
        """The axes of AXES that all runs have."""
        return [axis for axis in AXES if all(axis in run.curve.axes for run in self.all)]

    @cached_property
    def varied(self) -> list[str]:
        """The keys that label the settings."""
        return list(dict.fromkeys(key for setting in self.settings for key in setting.values))

    @cached_property
    def target(self) -> float | None:
        """The target of their configurations, if all have the same; otherwise None."""
        targets = {run.target for run in self.all}
        only = targets.pop() if len(targets) == 1 else None
        return None if only is None else float(only)

    def levels(self, key: str) -> list[float]:
        """The numbers that a key has among settings, ascending."""
        return sorted({value for setting in self.settings if (value := setting.number(key)) is not None})


def _require_seeds(group: Sequence[Run]) -> None:
    """Raises DataError where two runs of a setting have the same seed."""
    seen: dict[int, Run] = {}
    for run in group:
        if (other := seen.setdefault(run.seed, run)) is not run:
            raise DataError(
                f"{other.folder} and {run.folder} are the same experiment with the same seed, which would count twice; "
                "leave one out"
            )


def middle(costs: NDArray[np.float64]) -> float:
    """Returns the median; it is infinite where it lies between a number and infinity."""
    ordered = np.sort(costs)
    n = len(ordered)
    low, high = ordered[(n - 1) // 2], ordered[n // 2]
    return float(high if np.isinf(high) else (low + high) / 2)


def _named(configs: Sequence[Mapping[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """Returns a label for each configuration and its values, with as few keys as tell the configurations apart."""
    keys = dict.fromkeys(key for config in configs for key in config)
    of_run = {key for key in keys if key.split(".")[0] in SAME_CURVE}
    varied = [k for k in keys if k not in of_run and len({repr(config.get(k)) for config in configs}) > 1]
    order = [*(k for k in FIRST if k in varied), *(k for k in varied if k not in (*FIRST, "name")), "name"]
    taken: list[str] = []
    kinds = 1
    for key in order:
        found = len({tuple(repr(config.get(k)) for k in (*taken, key)) for config in configs})
        if found > kinds:
            taken, kinds = [*taken, key], found
    values = [{key: config[key] for key in taken if key in config} for config in configs]
    return [(" ".join(word(k, v) for k, v in value.items()) or str(configs[0]["name"]), value) for value in values]


def word(key: str, value: Any) -> str:
    """Formats a value for a label."""
    short = key.rpartition(".")[2]
    return str(value) if short in ("name", "preset") else f"{short} = {value}"
