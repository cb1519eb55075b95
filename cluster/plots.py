"""Plots of finished runs."""

import functools
import io
import itertools
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from cluster import bands, yaml12
from raysim.errors import DataError, OutputError
from raysim.output import write_whole

# For each axis: the column of metrics.parquet, its label, and the number that it is divided by.
AXES = {
    "round": ("round", 1.0),
    "bytes_up": ("uploaded, MB", 1e6),
    "sim_s": ("simulated hours", 3600.0),
}

# The groupings of clients, and their labels.
GROUPS = {"tier": "quarter of the devices by speed", "zone": "time zone", "label": "label score"}

# Keys that do not change a curve: the seed, how long a run is and how often it is evaluated, and where it runs.
SAME_CURVE = ("seed", "rounds", "evaluate", "checkpoint", "clients", "ray", "output")


@dataclass(frozen=True)
class Curve:
    """One metric of one run.

    Attributes:
        folder: the run's folder.
        name: the configuration's name.
        settings: the configuration without the keys of SAME_CURVE; runs that share it are drawn as one line.
        axes: for each name in AXES, its values in its unit, of shape (evaluations,). Without devices there is no sim_s.
        value: the metric, of shape (evaluations,); NaN where it was undefined.
    """

    folder: Path
    name: str
    settings: str
    axes: Mapping[str, NDArray[np.float64]]
    value: NDArray[np.float64]

    @classmethod
    def read(cls, folder: Path, metric: str, split: str) -> "Curve":
        """Reads the curve of a run folder. Raises DataError if it is none or has no such metric."""
        try:
            table = pq.read_table(folder / "metrics.parquet").to_pylist()
            config = yaml12.parse((folder / "config.yaml").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:  # a damaged Parquet file is a ValueError
            raise DataError(f"{folder} is no folder of a run with results ({' '.join(str(error).split())})") from None
        rows = [r for r in table if r["metric"] == metric and r["split"] == split]
        if not rows:
            has = ", ".join(sorted({f"{r['split']} {r['metric']}" for r in table}))
            raise DataError(f"{folder} has no {split} {metric}; it has {has or 'no metric at all'}")
        axes = {
            axis: np.array([r[axis] for r in rows], dtype=float) / unit
            for axis, (_, unit) in AXES.items()
            if rows[0].get(axis) is not None
        }
        value = np.array([np.nan if r["value"] is None else r["value"] for r in rows])
        settings = yaml12.dump({key: section for key, section in config.items() if key not in SAME_CURVE})
        return cls(folder, config["name"], settings, axes, value)


def draw(folder: Path, metric: str) -> list[Path]:
    """A run's own plots, in its folder plots/.

    The metric, also of points evaluated beside, against rounds, uploaded bytes and simulated time; metrics by class, on
    the test rows if there are any; curves of the final point; where clients' own models were evaluated, the metric's
    spread over them after the last round and at its best; with devices also what became of those that were invited, how
    often each client took part, and which groups of clients did so more than others.
    """
    table = pq.read_table(folder / "metrics.parquet").to_pylist()
    splits = sorted({row["split"] for row in table})
    if not splits:
        return []
    told = folder / "summary.json"
    summary = json.loads(told.read_text()) if told.exists() else {}
    curves = {split: Curve.read(folder, metric, split) for split in splits}
    for beside, split in itertools.product(summary.get("final_beside", {}), splits):
        curves[f"{split}, {beside}"] = Curve.read(folder, f"{beside}_{metric}", split)
    figures = {f"{metric}_{axis}": _metric(curves, metric, axis) for axis in next(iter(curves.values())).axes}
    split = "test" if "test" in splits else splits[-1]
    for family, members in _families([row for row in table if row["split"] == split]).items():
        figures[f"{family}_by_class"] = _by_class(members, f"{split} {family}")
    if (folder / "curves.parquet").exists():
        found = pq.read_table(folder / "curves.parquet").sort_by("split").to_pylist()
        for name in sorted({row["curve"] for row in found}):
            figures[name] = _curve([row for row in found if row["curve"] == name])
    if (folder / "clients.parquet").exists():
        figures[f"{metric}_by_client"] = _by_client(folder, metric, split, summary)
    rounds = pq.read_table(folder / "rounds.parquet").to_pylist()
    if rounds and rounds[0]["invited"] is not None:
        figures["fates"] = _fates(rounds)
        useful = [("rejected", "=", False)]
        took_part = pq.read_table(folder / "participation.parquet", filters=useful)["client"].to_numpy()
        groups = {name: summary[f"participation_by_{name}"] for name in GROUPS if f"participation_by_{name}" in summary}
        figures["participation"] = _participation(took_part, groups)
    (folder / "plots").mkdir(exist_ok=True)
    made = []
    for name, figure in figures.items():
        figure.axes[0].set_title(folder.name, fontsize=10)
        made.append(folder / "plots" / f"{name}.png")
        save(figure, made[-1])
    return made


def save(figure: Figure, out: Path) -> None:
    """Writes the figure in the format that the file's name ends in. Raises OutputError."""
    try:
        write_whole(out, saved(figure, out.suffix.removeprefix(".") or "png"))
    except ValueError as error:
        raise OutputError(f"cannot write {out}: {error}") from None


def saved(figure: Figure, kind: str) -> bytes:
    """Returns the figure as the bytes of a file of this kind. Raises ValueError for an unknown kind."""
    file = io.BytesIO()
    figure.savefig(file, dpi=150, format=kind)
    return file.getvalue()


def compare(folders: Sequence[Path], metric: str, split: str, out: Path) -> Figure:
    """Several runs in one figure, also written to `out`: against rounds, uploaded bytes and, if all have it, time.

    Runs that differ in their seed only are one band. It is called by the name in the configuration, or by the folder
    where other runs have that name too.
    """
    groups: dict[str, list[Curve]] = {}
    for folder in folders:
        curve = Curve.read(folder, metric, split)
        groups.setdefault(curve.settings, []).append(curve)
    names = Counter(group[0].name for group in groups.values())
    axes = [axis for axis in AXES if all(axis in curve.axes for group in groups.values() for curve in group)]
    figure = Figure(figsize=(5 * len(axes), 3.8), layout="constrained")
    for ax, axis in zip(figure.subplots(1, len(axes), sharey=True), axes, strict=True):
        _label(ax, f"{split} {metric}" if axis == "round" else "", axis)
        for first, *others in groups.values():
            label = first.name if names[first.name] == 1 else first.folder.resolve().name
            _line(ax, [first, *others], axis, f"{label} ({1 + len(others)} runs)" if others else label)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 3), frameon=False, fontsize=9)
    save(figure, out)
    return figure


def _metric(curves: Mapping[str, Curve], metric: str, axis: str) -> Figure:
    figure = Figure(figsize=(6, 3.8), layout="constrained")
    ax = figure.subplots()
    _label(ax, metric, axis)
    for split, curve in curves.items():
        _line(ax, [curve], axis, split)
    ax.legend(frameon=False)
    return figure


def _families(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[list[Mapping[str, Any]]]]:
    """Returns the rows of one split by metric family and member; a family's names end in _0, _1, ... without a gap."""
    by_metric: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_metric.setdefault(row["metric"], []).append(row)
    sizes = Counter(match[1] for metric in by_metric if (match := re.fullmatch(r"(.+)_\d+", metric)))
    families = {family: [f"{family}_{c}" for c in range(n)] for family, n in sizes.items() if n > 1}
    return {
        family: [by_metric[metric] for metric in members]
        for family, members in families.items()
        if by_metric.keys() >= set(members)
    }


def _by_class(members: Sequence[Sequence[Mapping[str, Any]]], label: str) -> Figure:
    """Draws a family of metrics over rounds, and the last value of each in the same colour."""
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    ax, last = figure.subplots(1, 2)
    n = len(members)
    colours = colormaps["tab10"](range(n)) if n <= 10 else colormaps["viridis"](np.linspace(0, 1, n))
    _label(ax, label, "round")
    for c, (rows, colour) in enumerate(zip(members, colours, strict=True)):
        value = np.array([row["value"] for row in rows], dtype=float)  # NaN where it was undefined
        ax.plot([row["round"] for row in rows], value, color=colour, linewidth=1, label=str(c))
        last.bar(c, value[-1], color=colour)
    ax.legend(
        title="class", ncols=1 + n // 15, loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize=8,
        handlelength=1, columnspacing=0.8,
    )  # fmt: skip
    frame(last, "class", f"{label} after round {members[0][-1]['round']}")
    last.set_axisbelow(True)
    last.xaxis.set_major_locator(MaxNLocator(12, integer=True))
    return figure


def _curve(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draws a curve of the final point, such as the ROC curve, on each split."""
    figure = Figure(figsize=(6, 3.8), layout="constrained")
    ax = figure.subplots()
    frame(ax, rows[0]["x_label"], rows[0]["y_label"])
    for row in rows:
        ax.plot(row["x"], row["y"], label=row["split"], linewidth=1.6)
    ax.legend(frameon=False)
    return figure


def _fates(rounds: Sequence[Mapping[str, Any]]) -> Figure:
    """Draws the fates of each phase's invited devices, in the order in which the phases were played."""
    figure = Figure(figsize=(7, 3.8), layout="constrained")
    ax = figure.subplots()
    late = np.array([row["late"] + row["cancelled"] for row in rounds])
    accepted = np.array([row["accepted"] for row in rounds])
    rejected = np.array([row["rejected"] for row in rounds])
    dropped = np.array([row["invited"] for row in rounds]) - accepted - rejected - late
    bands = {"accepted": accepted, "late": late, "dropped": dropped}
    if rejected.any():
        bands["could not be used"] = rejected
    ax.stackplot(np.arange(len(rounds)), *bands.values(), labels=list(bands), step="post", linewidth=0)
    ax.set(xlabel="phase", ylabel="devices", xlim=(0, max(1, len(rounds) - 1)))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=True, loc="lower right")
    return figure


def _by_client(folder: Path, metric: str, split: str, summary: Mapping[str, Any]) -> Figure:
    """Draws a histogram of the clients' own metric after the last round, and after the best round if it differs."""
    mine = [("metric", "=", metric), ("split", "=", split)]
    table = pq.read_table(folder / "clients.parquet", filters=mine)
    round_R, value_R = (table[column].to_numpy() for column in ("round", "value"))
    last, best = int(round_R.max()), summary.get("best", {}).get(split)
    rounds = {f"last, round {last}": last}
    if best is not None and best["round"] != last:
        rounds[f"best, round {best['round']}"] = best["round"]
    values = [value_R[(round_R == at) & ~np.isnan(value_R)] for at in rounds.values()]
    worst = np.min if summary.get("headline", {}).get("higher_is_better", True) else np.max
    figure = Figure(figsize=(5, 3.4), layout="constrained")
    ax = figure.add_subplot()
    bins = np.histogram_bin_edges(np.concatenate(values), bins=20)
    for (label, of), colour in zip(zip(rounds, values, strict=True), ("C0", "C1"), strict=False):
        ax.hist(
            of, bins=list(bins), alpha=0.6, color=colour, label=f"{label}: mean {of.mean():.3f}, worst {worst(of):.3f}"
        )
    ax.set(xlabel=f"a client's own {split} {metric}", ylabel="clients")
    ax.margins(y=0.15 * len(rounds))  # room for the legend
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize=8, loc="upper left")
    return figure


def _participation(took_part: NDArray[np.int64], groups: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """Draws how often clients took part, how many did at all, and the shares of groups of clients."""
    times = np.unique(took_part, return_counts=True)[1]
    rows = 1 + len(groups) // 2
    figure = Figure(figsize=(10, 3.4 * rows), layout="constrained")
    ax, *others = (figure.add_subplot(rows, 2, place) for place in range(1, 2 + len(groups)))
    ax.hist(times, bins=list(np.arange(0.5, times.max(initial=1) + 1.5)))
    ax.set(xlabel="phases taken part in", ylabel="clients")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    for other, (name, shares) in zip(others, groups.items(), strict=True):
        place = np.arange(len(shares))
        for shift, key, colour in ((-0.2, "share_of_clients", "0.75"), (0.2, "share_of_accepted", "C0")):
            heights = [100 * group[key] for group in shares]
            other.bar(place + shift, heights, width=0.4, color=colour, label=key.replace("_", " "))
        other.set_xticks(place, [group["group"] for group in shares], fontsize=8)
        other.set(xlabel=GROUPS[name], ylabel="%")
        other.legend(frameon=False, fontsize=8)
    for one in figure.axes:
        one.spines[["top", "right"]].set_visible(False)
    return figure


def _label(ax: Axes, metric: str, axis: str) -> None:
    frame(ax, AXES[axis][0], metric)
    ax.xaxis.set_major_locator(MaxNLocator(integer=axis == "round"))


def frame(ax: Axes, x: str, y: str) -> None:
    """Names the axes, and draws a light grid without a box around it."""
    ax.set(xlabel=x, ylabel=y)
    ax.grid(alpha=0.3)
    ax.spines[["top", "right"]].set_visible(False)


def _line(ax: Axes, curves: Sequence[Curve], axis: str, label: str) -> None:
    """Draws runs as a band, at the rounds after which all of them were evaluated.

    With devices, runs are not at the same bytes and times after a round: the mean of those is where it is drawn.
    """
    rounds = functools.reduce(np.intersect1d, (c.axes["round"] for c in curves))
    common = [np.isin(c.axes["round"], rounds) for c in curves]
    at = np.mean([c.axes[axis][there] for c, there in zip(curves, common, strict=True)], axis=0)
    across = np.stack([c.value[there] for c, there in zip(curves, common, strict=True)])
    bands.draw(ax, at, across, label)
