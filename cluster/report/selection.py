"""The choice of the best values by the rule of a study's section `select`."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from cluster.report.run import Run
from cluster.report.runs import Runs, Setting, word
from cluster.report.tables import UNITS, Table
from cluster.study import Select

BEST, MEDIAN, RUNS = "best", "median", "runs"


def ranked(runs: Runs, select: Select) -> Table:
    """Returns a row per setting, grouped by the values of `select.by`, the best of each group first.

    The best has the highest median over seeds (the lowest, where less is better); of equal ones the one whose worst run
    is better, then the first. Settings of which a run failed, was ended early or ended before the budget come last, and
    are never best, whatever the others of their runs are.
    """
    groups: dict[str, list[dict[str, Any]]] = {}
    for setting in runs.settings:
        of = " ".join(word(key, setting.runs[0].keys.get(key, "-")) for key in select.by)
        values = [_value(run, select) for run in setting.runs]
        groups.setdefault(of, []).append(_row(of, setting, [v for v in values if v is not None], runs.higher))
    found: Table = []
    for rows in groups.values():
        rows.sort(key=lambda row: row.pop("order"))
        whole, count = rows[0][RUNS].split("/")
        rows[0][BEST] = "yes" if whole == count else ""
        found += rows
    return found


def rule(runs: Runs, select: Select) -> str:
    """Returns the rule of the ranking in words."""
    axis, budget = _budget(select)
    when = "after the last round" if axis is None else f"at {budget:g} {UNITS[axis]}"
    return f"{runs.split} {runs.metric} {when}: the best median over seeds, for each {', '.join(select.by)}."


def lines(table: Table) -> list[str]:
    """Returns a printed line for the best setting of each group."""
    told = []
    for of in dict.fromkeys(row["of"] for row in table):
        best = next((row for row in table if row["of"] == of and row[BEST]), None)
        if best is None:
            told.append(f"best for {of}: none has all its runs")
        else:
            told.append(f"best for {of}: {best['setting']}, median {best[MEDIAN]:.4g} of {best[RUNS]} runs")
    return told


def _row(of: str, setting: Setting, values: Sequence[float], higher: bool) -> dict[str, Any]:
    sign = -1 if higher else 1
    worst = (min if higher else max)(values, default=np.nan)
    median = float(np.median(values)) if values else np.nan
    order = (len(values) < setting.count, *(sign * v if np.isfinite(v) else np.inf for v in (median, worst)))
    numbers = {MEDIAN: median, "worst": worst}
    shown = {name: value if np.isfinite(value) else None for name, value in numbers.items()}
    return {
        "of": of,
        "setting": setting.label,
        **shown,
        RUNS: f"{len(values)}/{setting.count}",
        BEST: "",
        "order": order,
    }


def _budget(select: Select) -> tuple[str | None, float]:
    """Returns the budget's axis of AXES, and the budget in its unit."""
    if select.rounds is not None:
        return "round", select.rounds
    if select.bytes_up is not None:
        return "bytes_up", select.bytes_up / 1e6
    if select.simulated_hours is not None:
        return "sim_s", select.simulated_hours
    return None, np.inf


def _value(run: Run, select: Select) -> float | None:
    """Returns the metric at the budget; None where the run ended before it, was broken off, or had no value."""
    if not run.finished:
        return None
    axis, budget = _budget(select)
    last = float(run.curve.value[-1])
    if axis is None:
        value: float | None = last
    elif axis not in run.curve.axes:
        value = None
    else:
        value = run.at(axis, budget)
        if value is None and run.ended_at_target:
            value = last
    return value if value is not None and np.isfinite(value) else None
