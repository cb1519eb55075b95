"""Plots of finished runs."""

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from cluster import yaml12
from raysim.errors import DataError

AXES = {"round": "round", "bytes_up": "uploaded, MB"}


# What does not make another curve of a run: its seed, how far and how often it was looked at, and where it ran.
_SAME_CURVE = ("seed", "rounds", "evaluate", "clients", "ray", "output")


@dataclass(frozen=True)
class Curve:
    """One metric of one run.

    Attributes:
        folder: of the run.
        name: of its configuration.
        settings: its configuration without what _SAME_CURVE lists; runs that share it are drawn as one band.
        round, bytes_up, value: shape (evaluations,); value is NaN where the metric was undefined.
    """

    folder: Path
    name: str
    settings: str
    round: NDArray[np.float64]
    bytes_up: NDArray[np.float64]
    value: NDArray[np.float64]

    @classmethod
    def read(cls, folder: Path, metric: str, split: str) -> "Curve":
        """From a run folder. Raises DataError if it is none or has no such metric."""
        try:
            table = pq.read_table(folder / "metrics.parquet").to_pylist()
            config = yaml12.parse((folder / "config.yaml").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:  # a damaged Parquet file is a ValueError
            raise DataError(f"{folder} is no folder of a run with results ({' '.join(str(error).split())})") from None
        rows = [r for r in table if r["metric"] == metric and r["split"] == split]
        if not rows:
            has = ", ".join(sorted({f"{r['split']} {r['metric']}" for r in table}))
            raise DataError(f"{folder} has no {split} {metric}; it has {has or 'no metric at all'}")
        value = [np.nan if r["value"] is None else r["value"] for r in rows]
        columns = [np.array(c, dtype=float) for c in ([r["round"] for r in rows], [r["bytes_up"] for r in rows], value)]
        settings = yaml12.dump({key: section for key, section in config.items() if key not in _SAME_CURVE})
        return cls(folder, config["name"], settings, *columns)


def draw(folder: Path, metric: str) -> list[Path]:
    """A run's own plots, metric against rounds and against uploaded bytes, in its folder plots/."""
    splits = sorted(set(pq.read_table(folder / "metrics.parquet")["split"].to_pylist()))
    if not splits:
        return []
    (folder / "plots").mkdir(exist_ok=True)
    curves = {split: Curve.read(folder, metric, split) for split in splits}
    made = []
    for axis in AXES:
        figure = Figure(figsize=(6, 3.8), layout="constrained")
        ax = figure.subplots()
        _label(ax, metric, axis)
        for split, curve in curves.items():
            _line(ax, [curve], axis, split)
        ax.set_title(folder.name, fontsize=10)
        ax.legend(frameon=False)
        made.append(folder / "plots" / f"{metric}_{axis}.png")
        figure.savefig(made[-1], dpi=150)
    return made


def compare(folders: Sequence[Path], metric: str, split: str, out: Path) -> Figure:
    """Several runs in one figure, which is also written to `out`: against rounds and against uploaded bytes.

    Runs that differ in their seed only are one line, their mean, in a band from the lowest to the highest. A line is
    called by the name in the configuration, or by the folder where other runs have that name too.
    """
    groups: dict[str, list[Curve]] = {}
    for folder in folders:
        curve = Curve.read(folder, metric, split)
        groups.setdefault(curve.settings, []).append(curve)
    names = Counter(group[0].name for group in groups.values())
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    for ax, axis in zip(figure.subplots(1, 2, sharey=True), AXES, strict=True):
        _label(ax, f"{split} {metric}" if axis == "round" else "", axis)
        for first, *others in groups.values():
            label = first.name if names[first.name] == 1 else first.folder.resolve().name
            _line(ax, [first, *others], axis, f"{label} ({1 + len(others)} runs)" if others else label)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 3), frameon=False, fontsize=9)
    try:
        figure.savefig(out, dpi=150)
    except (OSError, ValueError) as error:  # no such folder, or no such format
        raise DataError(f"cannot write {out}: {error}") from None
    return figure


def _label(ax: Axes, metric: str, axis: str) -> None:
    ax.set_xlabel(AXES[axis])
    ax.xaxis.set_major_locator(MaxNLocator(integer=axis == "round"))
    ax.set_ylabel(metric)
    ax.grid(alpha=0.3)
    ax.spines[["top", "right"]].set_visible(False)


def _line(ax: Axes, curves: Sequence[Curve], axis: str, label: str) -> None:
    """The mean of runs in their range, at the rounds at which all of them were evaluated."""
    rounds = functools.reduce(np.intersect1d, (c.round for c in curves))
    across: Any = np.stack([c.value[np.isin(c.round, rounds)] for c in curves])
    at = getattr(curves[0], axis)[np.isin(curves[0].round, rounds)] / (1e6 if axis.startswith("bytes") else 1)
    (line,) = ax.plot(at, across.mean(0), label=label, linewidth=1.6)
    if len(curves) > 1:
        ax.fill_between(at, across.min(0), across.max(0), color=line.get_color(), alpha=0.2, linewidth=0)
