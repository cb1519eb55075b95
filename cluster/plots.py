"""Plots of finished runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from cluster import yaml12
from raysim.errors import DataError

AXES = {"round": "round", "bytes_up": "uploaded, MB"}


@dataclass(frozen=True)
class Curve:
    """One metric of one run.

    Attributes:
        label: of the run's configuration, without its seed: runs that share it are drawn as one band.
        round, bytes_up, value: shape (evaluations,); value is NaN where the metric was undefined.
    """

    label: str
    round: NDArray[np.float64]
    bytes_up: NDArray[np.float64]
    value: NDArray[np.float64]

    @classmethod
    def read(cls, folder: Path, metric: str, split: str) -> "Curve":
        """From a run folder. Raises DataError if it is none or has no such metric."""
        try:
            rows = pq.read_table(folder / "metrics.parquet").to_pylist()
            config = yaml12.parse((folder / "config.yaml").read_text())
        except OSError as error:
            raise DataError(f"{folder} is no run folder ({error})") from None
        rows = [r for r in rows if r["metric"] == metric and r["split"] == split]
        if not rows:
            raise DataError(f"{folder} has no metric {metric!r} on split {split!r}")
        value = [np.nan if r["value"] is None else r["value"] for r in rows]
        columns = [np.array(c, dtype=float) for c in ([r["round"] for r in rows], [r["bytes_up"] for r in rows], value)]
        return cls(config["name"], *columns)


def draw(folder: Path, metric: str) -> list[Path]:
    """A run's own plots, metric against rounds and against uploaded bytes, in its folder plots/."""
    (folder / "plots").mkdir(exist_ok=True)
    splits = sorted(set(pq.read_table(folder / "metrics.parquet")["split"].to_pylist()))
    made = []
    for axis in AXES:
        figure, ax = _axes(metric, axis)
        for split in splits:
            _line(ax, [Curve.read(folder, metric, split)], axis, split)
        ax.set_title(folder.name, fontsize=10)
        ax.legend(frameon=False)
        made.append(folder / "plots" / f"{metric}_{axis}.png")
        figure.savefig(made[-1], dpi=150)
    return made


def compare(folders: Sequence[Path], metric: str, split: str, out: Path) -> None:
    """Several runs in one figure, against rounds and against uploaded bytes.

    Runs that differ in their seed only (the same name) are one line, their mean, in a band from the lowest to the
    highest.
    """
    groups: dict[str, list[Curve]] = {}
    for folder in folders:
        curve = Curve.read(folder, metric, split)
        groups.setdefault(curve.label, []).append(curve)
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    for ax, axis in zip(figure.subplots(1, 2, sharey=True), AXES, strict=True):
        _label(ax, f"{split} {metric}", axis)
        for label, curves in groups.items():
            seeds = f" ({len(curves)} seeds)" if len(curves) > 1 else ""
            _line(ax, curves, axis, label + seeds)
    figure.axes[0].legend(frameon=False, fontsize=9)
    figure.savefig(out, dpi=150)


def _axes(metric: str, axis: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(6, 3.8), layout="constrained")
    ax = figure.subplots()
    _label(ax, metric, axis)
    return figure, ax


def _label(ax: Axes, metric: str, axis: str) -> None:
    ax.set_xlabel(AXES[axis])
    ax.set_ylabel(metric)
    ax.grid(alpha=0.3)
    ax.spines[["top", "right"]].set_visible(False)


def _line(ax: Axes, curves: Sequence[Curve], axis: str, label: str) -> None:
    """The mean of runs evaluated at the same rounds, in their range."""
    shortest = min(len(c.value) for c in curves)
    across: Any = np.stack([c.value[:shortest] for c in curves])
    at = getattr(curves[0], axis)[:shortest] / (1e6 if axis.startswith("bytes") else 1)
    (line,) = ax.plot(at, across.mean(0), label=label, linewidth=1.6)
    if len(curves) > 1:
        ax.fill_between(at, across.min(0), across.max(0), color=line.get_color(), alpha=0.2, linewidth=0)
