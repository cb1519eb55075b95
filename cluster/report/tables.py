"""Makes the tables of a report: rows of plain values, whose numbers keep all their digits."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from cluster.report.fits import CONFIDENCE, Fit, families
from cluster.report.runs import Runs, Setting

Table = list[dict[str, Any]]

# The column names of AXES.
UNITS = {"round": "rounds", "bytes_up": "MB up", "sim_s": "hours"}
# Runs are compared at these shares of the upload that all of them reached.
PARTS = (1 / 8, 1 / 4, 1 / 2, 1.0)


def each_run(runs: Runs, target: float | None) -> Table:
    """Returns a row per run: how it ended, and its cost until the target, empty where it missed the target."""
    rows = []
    for setting in runs.settings:
        for run in setting.runs:
            cost = None if target is None else run.reached(target)
            rows.append(
                {
                    "setting": setting.label,
                    "seed": run.seed,
                    "rounds": int(run.curve.axes["round"][-1]),
                    "finished": "yes" if run.finished else "no",
                    f"final {runs.split} {runs.metric}": _plain(run.curve.value[-1]),
                    **(
                        {f"{UNITS[axis]} to target": cost and cost[axis] for axis in runs.axes}
                        if target is not None
                        else {}
                    ),
                    "run": run.name,
                }
            )
    return rows


def by_client(runs: Runs) -> Table:
    """Returns a row per run whose clients have tests of their own: the metric's mean and spread over clients.

    A column on privacy is there if one of the runs is private.
    """
    rows = []
    for setting in runs.settings:
        for run in setting.runs:
            if f"{run.metric}_worst" not in run.last:
                continue
            value, after = run.best or (None, None)
            rows.append(
                {
                    "setting": setting.label,
                    "seed": run.seed,
                    "last": _plain(run.curve.value[-1]),
                    "best": value,
                    "after rounds": after,
                    "worst client": run.last[f"{run.metric}_worst"],
                    "deviation": run.last.get(f"{run.metric}_std"),
                    "never took part": run.last.get("never_took_part"),
                    "epsilon spent": run.epsilon_spent,
                }
            )
    if all(row["epsilon spent"] is None for row in rows):
        return [{name: cell for name, cell in row.items() if name != "epsilon spent"} for row in rows]
    return rows


def to_target(runs: Runs, target: float) -> Table:
    """Returns a row per setting: medians and ranges over seeds of the cost of the target, and how many runs reached it.

    A median is nothing where half of the runs or more did not reach it.
    """
    rows = []
    for setting in runs.settings:
        row: dict[str, Any] = {"setting": setting.label, "reached": _reached(setting, target)}
        for axis in runs.axes:
            costs = setting.costs(target, axis)
            there = costs[np.isfinite(costs)]
            row[UNITS[axis]] = _plain(setting.cost(target, axis))
            row[f"{UNITS[axis]}, range"] = f"{there.min():.4g} - {there.max():.4g}" if len(there) else ""
        rows.append(row)
    return rows


def speed_up(runs: Runs, target: float) -> Table:
    """Returns a row per setting: how many times fewer rounds the target took than with the fewest clients."""
    rows = []
    for label, group in families(runs, "algorithm.S"):
        base = next((s for s in group if 0 < s.cost(target, "round") < np.inf), None)
        if base is None:
            continue
        for setting in group:
            few, many = (s.number("algorithm.S") or np.nan for s in (base, setting))
            cost = setting.cost(target, "round")
            rows.append(
                {
                    "setting": label,
                    "S": many,
                    "times the clients": many / few,
                    "times fewer rounds": base.cost(target, "round") / cost if 0 < cost < np.inf else None,
                    "reached": _reached(setting, target),
                }
            )
    return rows


def exponents(fits: Sequence[Fit]) -> Table:
    """Returns a row per fit."""
    return [
        {
            "exponent of": fit.of,
            "setting": fit.where,
            "fitted": _plain(fit.exponent),
            f"{CONFIDENCE:.0%} interval": f"{fit.low:.2f} to {fit.high:.2f}" if np.isfinite(fit.low) else "",
            "theory": "" if fit.theory is None else str(fit.theory),
            "points": fit.points,
            "source": fit.source,
        }
        for fit in fits
    ]


def equal_upload(runs: Runs) -> Table:
    """Returns a row per setting: the median over seeds of the metric after equal uploaded bytes.

    Nothing where a run had ended before; the target where the median run had ended at it.
    """
    budgets = budgets_MB(runs)
    return [
        {"setting": s.label} | {f"{budget:.4g} MB": at_upload(s, budget) for budget in budgets} for s in runs.settings
    ]


def budgets_MB(runs: Runs) -> list[float]:
    """Returns the uploads at which runs are compared: shares of the least upload of all runs.

    Runs that ended at their target do not count, unless all did: of those the most counts. Nor do those that were
    broken off.
    """
    whole = [run for run in runs.all if run.finished]
    to_the_end = [run for run in whole if not run.ended_at_target]
    totals = [run.curve.axes["bytes_up"][-1] for run in to_the_end or whole]
    most = min(totals) if to_the_end else max(totals)
    return [float(part * most) for part in PARTS]


def at_upload(setting: Setting, budget: float) -> float | str | None:
    """Returns the median over seeds. If one of the two middle values is not finite, the worse of them counts.

    A run that had ended at its target is at least there; one that was broken off is worst.
    """
    first = setting.runs[0]
    sign = 1.0 if first.higher else -1.0
    held = [-np.inf] * setting.lost
    for run in setting.runs:
        value = run.at("bytes_up", budget)
        if value is not None:
            held.append(sign * value)
        elif run.ended_at_target:
            held.append(np.inf)
        else:
            held.append(np.nan if run.finished else -np.inf)
    if np.isnan(held).any():
        return None
    ordered = np.sort(held)
    worse, better = ordered[(len(held) - 1) // 2], ordered[len(held) // 2]
    if worse == np.inf:
        return None if first.target is None else f"{'≥' if first.higher else '≤'} {first.target:g}"
    return _plain(sign * (worse if np.isinf(better) else (worse + better) / 2))


def devices(runs: Runs) -> Table:
    """Returns a row per setting: means over finished runs of the fates of invited devices and of participation."""
    rows = []
    for setting in runs.settings:
        finished = [run for run in setting.runs if run.finished]
        if not finished or not all("late" in run.summary for run in finished):
            continue
        fates = [_fates(run.folder) for run in finished]
        rows.append(
            {"setting": setting.label}
            | {name: float(np.mean([fate[name] for fate in fates])) for name in fates[0]}
            | {
                name: float(np.mean([run.summary[key] for run in finished]))
                for name, key in {
                    "wasted bytes": "bytes_wasted",
                    "wasted computation": "compute_wasted",
                    "clients that took part": "participants",
                    "Gini of participation": "participation_gini",
                }.items()
            }
        )
    return rows


def _fates(folder: Any) -> dict[str, float]:
    columns = ("invited", "accepted", "late", "cancelled", "rejected")
    table = pq.read_table(folder / "rounds.parquet", columns=list(columns))
    invited, accepted, late, cancelled, rejected = (float(np.sum(table[name].to_numpy())) for name in columns)
    shares = {
        "accepted": accepted,
        "late": late + cancelled,
        "dropped": invited - accepted - rejected - late - cancelled,
    }
    return {name: count / invited if invited else 0.0 for name, count in shares.items()}


def _reached(setting: Setting, target: float) -> str:
    return f"{np.isfinite(setting.costs(target, 'round')).sum()}/{setting.count}"


def _plain(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
