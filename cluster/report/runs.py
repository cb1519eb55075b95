"""Finished runs for comparison in a report, grouped by setting: their costs until a target, and how they differ."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cluster.plots import AXES, SAME_CURVE
from cluster.report.run import Run
from raysim.errors import DataError

# The keys that label lines first. Others are added only where these do not tell all lines apart.
FIRST = ("algorithm.name", "algorithm.S", "algorithm.K")


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
            metric, split, higher: as in Run.read.
            broken: folders of runs that were broken off, which count up to their last evaluation; each maps to the
                folder of a run that differs from it only in its seed.

        Raises DataError where the runs share no metric, or two are the same, and all errors of Run.read.
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
