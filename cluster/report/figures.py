"""The figures of a report."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator
from numpy.typing import NDArray

from cluster import bands
from cluster.plots import AXES, frame
from cluster.report.fits import CONFIDENCE, Fit, families
from cluster.report.run import Run
from cluster.report.runs import Runs, Setting, word
from cluster.report.tables import Table

# A figure with more lines than this is split into panels.
LINES = 8
COLUMNS = 4
# The number of points of an axis at which runs are compared.
GRID = 200
S, K = "algorithm.S", "algorithm.K"

COSTS = {"round": "rounds", "bytes_up": "upload, MB", "sim_s": "simulated hours"}


@dataclass(frozen=True)
class ReportFigure:
    """A figure of a report.

    Attributes:
        name: the name of its file.
        title, caption: the texts above and below it.
        figure: the drawing.
        runs: the runs that it shows.
    """

    name: str
    title: str
    caption: str
    figure: Figure
    runs: tuple[Run, ...]


def all_figures(runs: Runs, target: float | None, fits: Sequence[Fit], devices: Table) -> list[ReportFigure]:
    """Returns the figures for which the runs have data."""
    found = curves(runs, target)
    if len(algorithms(runs)) > 1 and any(run.curve.axes["bytes_up"][-1] > 0 for run in runs.all):
        found.append(at_equal_upload(runs))
    if target is not None:
        crossed = [s for s in runs.settings if s.number(S) is not None and s.number(K) is not None]
        if len(runs.levels(S)) > 1 and len(runs.levels(K)) > 1 and _reached(crossed, target):
            found.append(heat_maps(runs, crossed, target))
        if _reached([setting for _, group in families(runs, S) for setting in group], target):
            found.append(speed_up(runs, target))
    if any(fit.points for fit in fits):
        found.append(exponents(runs, [fit for fit in fits if fit.points]))
    if devices:
        found.append(fates(runs, devices))
    return found


def algorithms(runs: Runs) -> list[str]:
    """Returns the names of the algorithms, in the order of the settings."""
    return list(dict.fromkeys(setting.algorithm for setting in runs.settings))


def curves(runs: Runs, target: float | None) -> list[ReportFigure]:
    """Draws the metric against rounds, upload and time: in one figure, or in one each with panels for many settings."""
    shown = f"{runs.split} {runs.metric}"
    said = (
        "Lines are medians over seeds, bands reach from the least to the greatest. At each point of the axis the last "
        "evaluation of each run counts; a run that ended at its target is held there until the last run of its "
        "setting ends, and one that was broken off is the worst from there on."
    )
    if len(runs.settings) <= LINES:
        figure = Figure(figsize=(4.6 * len(runs.axes), 3.8), layout="constrained")
        colours = colormaps["tab10"].colors  # type: ignore[attr-defined]
        axes = _panels(figure, 1, len(runs.axes))
        for ax, axis in zip(axes, runs.axes, strict=True):
            frame(ax, AXES[axis][0], shown if axis == "round" else "")
            for setting, colour in zip(runs.settings, colours, strict=False):
                many = f" ({setting.count} runs)" if setting.count > 1 else ""
                _band(ax, setting, axis, setting.label + many, colour)
            _target(ax, target)
        _legend(figure, axes[0], 2)
        return [ReportFigure("curves", f"{shown} against what it cost", said, figure, tuple(runs.all))]
    colour_of = next((key for key in (S, K, *runs.varied) if 1 < len(_values(runs, key)) <= LINES), None)
    return [_parted(runs, axis, colour_of, shown, said, target) for axis in runs.axes]


def _parted(runs: Runs, axis: str, colour_of: str | None, shown: str, said: str, target: float | None) -> ReportFigure:
    """Draws a panel for each group of settings that differ only in `colour_of`."""
    panels: dict[str, list[Setting]] = {}
    for setting in runs.settings:
        panels.setdefault(setting.without(colour_of), []).append(setting)
    values = _values(runs, colour_of) if colour_of else [None]
    colours = dict(zip(map(repr, values), colormaps["viridis"](np.linspace(0, 0.9, len(values))), strict=True))
    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(3.1 * columns, 2.5 * rows + 0.6), layout="constrained")
    axes = _panels(figure, rows, columns, sharey=True, sharex=False)
    seen: dict[str, Any] = {}
    for i, (label, group) in enumerate(panels.items()):
        last_row = i + columns >= len(panels)
        frame(axes[i], AXES[axis][0] if last_row else "", shown if i % columns == 0 else "")
        axes[i].set_title(label, fontsize=9)
        for setting in group:
            value = setting.values.get(colour_of) if colour_of else None
            name = word(colour_of, value) if colour_of else "each run"
            line = _band(axes[i], setting, axis, name, colours[repr(value)])
            seen.setdefault(name, line)
        _target(axes[i], target)
        axes[i].xaxis.set_major_locator(MaxNLocator(4))
    for ax in axes[len(panels) :]:
        ax.set_axis_off()
    figure.legend(seen.values(), seen.keys(), loc="outside lower center", ncols=len(seen), frameon=False, fontsize=9)
    by = f" by {colour_of.rpartition('.')[2]}" if colour_of else ""
    return ReportFigure(f"curves_{axis}", f"{shown} against {AXES[axis][0]}{by}", said, figure, tuple(runs.all))


def at_equal_upload(runs: Runs) -> ReportFigure:
    """Draws each algorithm's best setting at every upload, and all its settings behind that."""
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    ax = figure.subplots()
    frame(ax, "uploaded, MB", f"{runs.split} {runs.metric}")
    uploads = np.concatenate([run.curve.axes["bytes_up"] for run in runs.all])
    first = uploads[uploads > 0].min()
    last = max(run.curve.axes["bytes_up"][-1] for run in runs.all)
    grid = np.geomspace(first, last, GRID)
    best = np.fmax if runs.higher else np.fmin
    colours = itertools.cycle(colormaps["tab10"].colors)  # type: ignore[attr-defined]
    for name, colour in zip(algorithms(runs), colours, strict=False):
        own = [setting for setting in runs.settings if setting.algorithm == name]
        medians = np.stack([bands.median(_held(setting, "bytes_up", grid)) for setting in own])
        ax.step(grid, medians.T, where="post", color=colour, linewidth=0.5, alpha=0.35)
        label = f"{name}, best of {len(own)}"
        ax.step(grid, best.reduce(medians, axis=0), where="post", color=colour, linewidth=2, label=label)
    ax.set_xscale("log")
    ax.legend(frameon=False, fontsize=9, loc="lower right" if runs.higher else "upper right")
    said = (
        "Thick: of each algorithm, at every upload, the best of its settings; thin: each of them. Medians over seeds. "
        "Upload counts all devices, those whose results came too late too."
    )
    return ReportFigure("equal_upload", "Algorithms at equal upload", said, figure, tuple(runs.all))


def _reached(settings: Sequence[Setting], target: float) -> bool:
    """Returns True if one of the settings reached the target, and not at once."""
    return any(0 < setting.cost(target, "round") < np.inf for setting in settings)


def heat_maps(runs: Runs, settings: Sequence[Setting], target: float) -> ReportFigure:
    """Draws the cost of the target by S and K: a row of panels for what else differs, a column for each cost."""
    groups: dict[str, list[Setting]] = {}
    for setting in settings:
        groups.setdefault(setting.without(S, K), []).append(setting)
    few, many = runs.levels(S), runs.levels(K)
    figure = Figure(figsize=(4.4 * len(runs.axes), 0.5 + (0.9 + 0.42 * len(few)) * len(groups)), layout="constrained")
    axes = _panels(figure, len(groups), len(runs.axes))
    for column, axis in enumerate(runs.axes):
        costs = {label: _map(group, few, many, target, axis) for label, group in groups.items()}
        whole = np.concatenate([table[(table > 0) & np.isfinite(table)] for table in costs.values()])
        norm = LogNorm(whole.min(), max(whole.max(), whole.min() * 1.01))
        for row, (label, group) in enumerate(groups.items()):
            _heat(axes[row * len(runs.axes) + column], costs[label], group, (few, many), norm, target)
            axes[row * len(runs.axes) + column].set_title(f"{label}  {COSTS[axis]}".strip(), fontsize=9)
    said = (
        f"What {_named(runs, target)} cost, medians over seeds; dark is cheap. Grey: half of the runs or more did not "
        "reach it. In brackets how many runs reached it, where not all did."
    )
    return ReportFigure("cost_S_K", "Cost to the target by S and K", said, figure, _runs_of(settings))


def _map(group: Sequence[Setting], few: Sequence[float], many: Sequence[float], target: float, axis: str) -> Any:
    table = np.full((len(few), len(many)), np.nan)
    for setting in group:
        i, j = few.index(setting.number(S) or 0.0), many.index(setting.number(K) or 0.0)
        table[i, j] = setting.cost(target, axis)
    return table


def _heat(
    ax: Axes,
    table: NDArray[np.float64],
    group: Sequence[Setting],
    levels: tuple[Sequence[float], Sequence[float]],
    norm: LogNorm,
    target: float,
) -> None:
    few, many = levels
    ax.set_facecolor("0.85")
    ax.imshow(np.where(np.isfinite(table), table, np.nan), cmap="viridis", norm=norm, aspect="auto")
    for setting in group:
        i, j = few.index(setting.number(S) or 0.0), many.index(setting.number(K) or 0.0)
        costs, value = setting.costs(target, "round"), table[i, j]
        got = int(np.isfinite(costs).sum())
        said = (f"{value:,.0f}" if value >= 1000 else f"{value:.3g}") if np.isfinite(value) else "not reached"
        said += f"\n({got} of {len(costs)})" if got < len(costs) else ""
        dark = np.isfinite(value) and norm(value) < 0.6
        ax.text(j, i, said, ha="center", va="center", fontsize=8, color="white" if dark else "black")
    ax.set_xticks(range(len(many)), [f"{value:g}" for value in many])
    ax.set_yticks(range(len(few)), [f"{value:g}" for value in few])
    ax.set(xlabel="K", ylabel="S")


def speed_up(runs: Runs, target: float) -> ReportFigure:
    """Draws how many times fewer rounds more clients need, a panel for each algorithm."""
    by_algorithm: dict[str, list[tuple[str, list[Setting]]]] = {}
    for label, group in families(runs, S):
        by_algorithm.setdefault(group[0].algorithm, []).append((label, group))
    figure = Figure(figsize=(4.4 * len(by_algorithm), 3.9), layout="constrained")
    axes = _panels(figure, 1, len(by_algorithm), sharey=True)
    for ax, (algorithm, lines) in zip(axes, by_algorithm.items(), strict=True):
        frame(ax, "times the clients", "times fewer rounds" if ax is axes[0] else "")
        most = 1.0
        colours = colormaps["viridis"](np.linspace(0, 0.85, len(lines)))
        for (label, group), colour in zip(lines, colours, strict=True):
            there = [s for s in group if 0 < s.cost(target, "round") < np.inf]
            if not there:
                continue
            times = np.array([(s.number(S) or 0.0) / (there[0].number(S) or 1.0) for s in there])
            rounds = np.array([s.cost(target, "round") for s in there])
            name = label.removeprefix(algorithm).strip() or algorithm
            begins = f", from S = {there[0].number(S):g}" if there[0] is not group[0] else ""
            ax.plot(times, rounds[0] / rounds, "o-", color=colour, label=f"{name}{begins}", markersize=4)
            for x, setting in zip(times, there, strict=True):
                costs = setting.costs(target, "round")
                each = rounds[0] / costs[np.isfinite(costs)]
                ax.plot(np.full(len(each), x), each, "_", color=colour, alpha=0.5)
            most = max(most, times[-1])
        ax.plot([1, most], [1, most], "--", color="0.3", label="linear")
        ax.set_xscale("log")
        ax.set_yscale("log")
        _plain_ticks(ax)
        ax.set_title(algorithm, fontsize=10)
        ax.legend(frameon=False, fontsize=8)
    said = (
        f"Rounds until {_named(runs, target)} with the fewest clients that reached it, over those with more: medians "
        "over seeds, and a dash for each run. Settings of which half or more did not reach it have no point."
    )
    shown = [setting for lines in by_algorithm.values() for _, group in lines for setting in group]
    return ReportFigure("speed_up", "Speed-up in S", said, figure, _runs_of(shown))


def exponents(runs: Runs, fits: Sequence[Fit]) -> ReportFigure:
    """Draws the fitted exponents with their intervals, and those of the theorems."""
    figure = Figure(figsize=(8, 0.9 + 0.3 * len(fits)), layout="constrained")
    ax = figure.subplots()
    for place, fit in enumerate(fits):
        error = [[fit.exponent - fit.low], [fit.high - fit.exponent]] if np.isfinite(fit.low) else None
        ax.errorbar(fit.exponent, -place, xerr=error, fmt="o", color="C0", capsize=3, markersize=4)
        if fit.theory is not None:
            ax.plot(float(fit.theory), -place, "|", color="C3", markersize=14, markeredgewidth=2)
    ax.plot([], [], "o", color="C0", label=f"fitted, {CONFIDENCE:.0%} interval")
    ax.plot([], [], "|", color="C3", markersize=12, markeredgewidth=2, label="theorem")
    ax.set_yticks([-place for place in range(len(fits))], [f"{fit.of}: {fit.where}" for fit in fits], fontsize=8)
    ax.axvline(0, color="0.6", linewidth=0.8)
    frame(ax, "exponent", "")
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    said = (
        "Straight lines through the logarithms; settings of which a run did not reach the target are left out. "
        "Theorems bound the mean squared gradient of Phi with steps that are scaled with S and T; where a study keeps "
        "its steps, or its target is of another metric, they are what to compare with and not what to expect."
    )
    return ReportFigure("exponents", "Fitted exponents", said, figure, tuple(runs.all))


def fates(runs: Runs, devices: Table) -> ReportFigure:
    """Draws the fates of invited devices, and participation, by setting."""
    figure = Figure(figsize=(11, 1.4 + 0.2 * len(devices)), layout="constrained")
    axes = _panels(figure, 1, 3, sharey=True, width_ratios=[2, 1, 1])
    place = -np.arange(len(devices))
    left = np.zeros(len(devices))
    for name, colour in (("accepted", "C0"), ("late", "C1"), ("dropped", "C3")):
        share = 100 * np.array([row[name] for row in devices])
        axes[0].barh(place, share, left=left, color=colour, label=name)
        left += share
    for ax, name in zip(axes[1:], ("clients that took part", "Gini of participation"), strict=True):
        ax.barh(place, [row[name] for row in devices], color="0.6")
        ax.set(xlabel=name)
    axes[0].set_yticks(place, [row["setting"] for row in devices], fontsize=7)
    axes[0].set(xlabel="% of the invited devices", xlim=(0, 100))
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.set_ylim(place[-1] - 0.6, 0.6)
    figure.legend(loc="outside lower left", ncols=3, frameon=False, fontsize=9)
    said = (
        "Means over seeds. Gini of participation: 0 where all clients took part equally often, 1 where one did "
        "everything; it falls with the number of rounds."
    )
    return ReportFigure("devices", "Devices", said, figure, tuple(runs.all))


def _values(runs: Runs, key: str) -> list[Any]:
    found = {repr(s.values.get(key)): s.values.get(key) for s in runs.settings}
    return sorted(
        found.values(), key=lambda v: (not isinstance(v, int | float), v if isinstance(v, int | float) else 0)
    )


def _held(setting: Setting, axis: str, grid: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the last evaluation within each point of an axis, (count, grid); NaN before the first and past the end.

    A run that ended at its target is held there; one that was broken off is infinitely bad from there on.
    """
    worst = -np.inf if setting.runs[0].higher else np.inf
    held = np.full((setting.count, len(grid)), worst)
    for row, run in zip(held, setting.runs, strict=False):  # lost runs are the last rows
        at, value = run.curve.axes[axis], run.curve.value
        last = np.searchsorted(at, grid * (1 + 1e-9), side="right") - 1
        there = (last >= 0) & ((grid <= at[-1] * (1 + 1e-9)) | run.ended_at_target)
        row[~there if run.finished else last < 0] = np.nan
        row[there] = value[last[there]]
    return held


def _band(ax: Axes, setting: Setting, axis: str, label: str, colour: Any) -> Any:
    ends = [run.curve.axes[axis][-1] for run in setting.runs]
    exact = np.unique(np.concatenate([run.curve.axes[axis] for run in setting.runs]))
    held = _held(setting, axis, exact[exact <= max(ends)])
    there = ~np.isnan(held).any(axis=0)
    grid, held = exact[exact <= max(ends)][there], held[:, there]
    return bands.draw(ax, grid, held, label, colour, step="post")


def _runs_of(settings: Sequence[Setting]) -> tuple[Run, ...]:
    return tuple(run for setting in settings for run in setting.runs)


def _panels(figure: Figure, rows: int, columns: int, **settings: Any) -> list[Axes]:
    made: list[Axes] = list(np.ravel(figure.subplots(rows, columns, squeeze=False, **settings)))
    return made


def _legend(figure: Figure, ax: Axes, columns: int) -> None:
    handles, labels = ax.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)


def _target(ax: Axes, target: float | None) -> None:
    if target is not None:
        ax.axhline(target, color="0.4", linewidth=0.8, linestyle=":")


def _named(runs: Runs, target: float) -> str:
    return f"a {runs.split} {runs.metric} of {target:g}"


def _plain_ticks(ax: Axes) -> None:
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(FixedLocator([0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100]))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
