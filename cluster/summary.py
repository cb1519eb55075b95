"""Sums a run up in a few numbers: summary.json of its folder."""

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from cluster.experiment import Experiment
from cluster.progress import size
from raysim.output import write_whole
from raysim.privacy import LocalPrivacy
from server.evaluation import Target

Numbers = dict[str, Any]


def write(folder: Path, experiment: Experiment) -> Numbers:
    """Writes summary.json from the run's tables, and returns what it holds.

    Keys: `headline` (the `metric`, and whether it `higher_is_better`); `rounds` that were played and of them
    `failed_rounds`; `rejected_results` that could not be used, and `rejected_clients` whose they were;
    `bytes_down`, `bytes_up`; `final` (the headline metric by split), `final_beside` (the same of each point that is
    evaluated beside the algorithm's own, where there are some) and `best` (its best `value`, and the `round`
    after which it was first found, null where it was never defined); `participants` and `participation_gini` over
    all clients that have rows (0: all took part equally often; 1: one did everything); `participation_by_tier`,
    `_zone` and `_label`, those that there are: by group its `share_of_clients` (of those that have rows) and its
    `share_of_accepted`; with devices `simulated_hours`, `wait_hours` and the shares `late`, `dropped` (of the
    invited), `bytes_wasted`, `compute_wasted`; where uploads are private `privacy`, by phase: what was asked for, the
    `uploads` of the client with the most, and what is spent on it (see `_spent`); with a target `target`: the rounds,
    bytes_up and, with devices, simulated hours at the first evaluation that reached it, or null.
    """
    rounds, took_part, metrics = (
        pq.read_table(folder / f"{name}.parquet").to_pylist() for name in ("rounds", "participation", "metrics")
    )
    headline = [row for row in metrics if row["metric"] == experiment.headline]
    accepted, rejected = ([row["client"] for row in took_part if row["rejected"] is out] for out in (False, True))
    counts = np.bincount(accepted, minlength=experiment.shards.n_clients)
    summary: Numbers = {
        "headline": {"metric": experiment.headline, "higher_is_better": experiment.higher_is_better},
        "rounds": rounds[-1]["round"] + 1 if rounds else 0,
        "failed_rounds": sum(not row["valid"] for row in rounds),
        "rejected_results": len(rejected),
        "rejected_clients": sorted(set(rejected)),
        "bytes_down": sum(row["bytes_down"] for row in rounds),
        "bytes_up": sum(row["bytes_up"] for row in rounds),
        "final": {row["split"]: row["value"] for row in headline},
        "best": _best(headline, experiment),
        "participants": int(np.count_nonzero(counts)),
        "participation_gini": gini(counts[experiment.shards.rows_N > 0]),
    } | _groups(counts, experiment)
    if experiment.extra_points:
        own = {name: f"{name}_{experiment.headline}" for name in experiment.extra_points}
        summary["final_beside"] = {
            name: {row["split"]: row["value"] for row in metrics if row["metric"] == metric}
            for name, metric in own.items()
        }
    if experiment.config.devices is not None:
        summary |= _devices(rounds) | {"simulated_hours": metrics[-1]["sim_s"] / 3600 if metrics else None}
    private = {phase.name: phase.privacy for phase in experiment.algorithm.phases(0) if phase.privacy is not None}
    if private:
        summary["privacy"] = {name: _spent(name, of, rounds, took_part, experiment) for name, of in private.items()}
    if experiment.target is not None:
        summary["target"] = _reached(headline, experiment.target)
    write_whole(folder / "summary.json", (json.dumps(summary, indent=2) + "\n").encode())
    return summary


def lines(summary: Numbers) -> list[str]:
    """Returns the lines of a summary that are printed at the end of a run."""
    told = [
        f"moved {size(summary['bytes_up'])} up, {size(summary['bytes_down'])} down; {summary['participants']} clients "
        f"took part, Gini {summary['participation_gini']:.2f}"
    ]
    if summary["rejected_results"]:
        n, clients = summary["rejected_results"], summary["rejected_clients"]
        first = ", ".join(map(str, clients[:10]))
        told.append(
            f"left out {n} results that could not be used, of {len(clients)} clients "
            f"({first}{', ...' if len(clients) > 10 else ''}); {summary['failed_rounds']} failed rounds"
        )
    if "simulated_hours" in summary:
        told.append(
            f"simulated {summary['simulated_hours']:.3g} h, of them {summary['wait_hours']:.3g} h waiting; "
            f"{summary['late']:.1%} late, {summary['dropped']:.1%} dropped; wasted {summary['bytes_wasted']:.1%} of "
            f"the bytes, {summary['compute_wasted']:.1%} of the computation; {summary['failed_rounds']} failed rounds"
        )
    if tiers := summary.get("participation_by_tier"):
        accepted, clients = (
            " / ".join(f"{100 * tier[share]:.1f}" for tier in tiers)
            for share in ("share_of_accepted", "share_of_clients")
        )
        told.append(
            f"accepted, from the fastest to the slowest quarter of the devices: {accepted} % (of clients {clients} %)"
        )
    for of in summary.get("privacy", {}).values():
        told.append(
            f"privacy of {of['uploads']} uploads of one client: epsilon {of['epsilon_spent']:.4g} at delta "
            f"{of['delta']:g} that there is one, {of['epsilon_spent_any_two']:.4g} whatever it is; one upload was to "
            f"have {of['epsilon']:g} (sigma {of['sigma']:.4g}, clip {of['clip']:g})"
        )
    if target := summary.get("target"):
        told.append(f"{target['split']} {target['metric']} {target['value']:g} {_when(target)}")
    return told


def _best(headline: list[Numbers], experiment: Experiment) -> dict[str, Numbers | None]:
    sign = 1 if experiment.higher_is_better else -1
    found: dict[str, Numbers | None] = {}
    for row in headline:
        best = found.setdefault(row["split"], None)
        value = row["value"]
        if value is not None and not math.isnan(value) and (best is None or sign * value > sign * best["value"]):
            found[row["split"]] = {"value": value, "round": row["round"]}
    return found


def _when(target: Numbers) -> str:
    if target["rounds"] is None:
        return "was not reached"
    reached = f"was reached after {target['rounds']} rounds, {size(target['bytes_up'])} up"
    hours = target["simulated_hours"]
    return reached if hours is None else f"{reached}, {hours:.3g} simulated hours"


def gini(counts: NDArray[np.integer[Any]]) -> float:
    """Returns the Gini coefficient of non-negative counts; 0 where nothing was counted."""
    ordered = np.sort(counts).astype(np.float64)
    if not ordered.sum():
        return 0.0
    n = len(ordered)
    return float((2 * np.arange(1, n + 1) - n - 1) @ ordered / (n * ordered.sum()))


def _groups(counts: NDArray[np.int64], experiment: Experiment) -> Numbers:
    """Returns each group's share of all participations; client n took part `counts[n]` times, counts of shape (N,)."""
    found = {}
    able = np.flatnonzero(experiment.shards.rows_N > 0)
    for name, grouping in experiment.world.groupings.items():
        accepted = np.bincount(grouping.of_N, counts, minlength=len(grouping.names)).tolist()
        found[f"participation_by_{name}"] = [
            {"group": group, "share_of_clients": clients / len(able), "share_of_accepted": _share(times, counts.sum())}
            for group, clients, times in zip(grouping.names, grouping.counts(able), accepted, strict=True)
        ]
    return found


def _devices(rounds: list[Numbers]) -> Numbers:
    def total(*columns: str) -> float:
        return float(sum(row[column] for row in rounds for column in columns))

    invited = total("invited")
    return {
        "wait_hours": total("wait_s") / 3600,
        "late": _share(total("late", "cancelled"), invited),
        "dropped": _share(total("dropped_offline", "dropped_failed", "dropped_link", "timed_out"), invited),
        "bytes_wasted": _share(total("bytes_down_wasted", "bytes_up_wasted"), total("bytes_down", "bytes_up")),
        "compute_wasted": _share(total("compute_s_wasted"), total("compute_s")),
    }


def _spent(
    phase: str, of: LocalPrivacy, rounds: list[Numbers], took_part: list[Numbers], experiment: Experiment
) -> Numbers:
    """Returns epsilon, delta, clip, sigma, uploads, epsilon_spent, epsilon_spent_any_two and assumes.

    The second is what an observer of all uploads of a client, the server too, is kept from telling apart: any two
    series of uploads (FedReCo, definition 1); the first, any from none.
    """
    played = sum(row["phase"] == phase for row in rounds)
    counts = Counter(row["client"] for row in took_part if row["phase"] == phase)
    assumes = "each upload has noise of its own; what is chosen by looking at the data, as step sizes, is not counted"
    uploads = max(counts.values(), default=0)
    if experiment.config.devices is not None:
        uploads, assumes = played, f"a client may have uploaded in every round, late or not; {assumes}"
    return {
        "epsilon": of.epsilon,
        "delta": of.delta,
        "clip": of.clip,
        "sigma": of.sigma,
        "uploads": uploads,
        "epsilon_spent": of.spent(uploads),
        "epsilon_spent_any_two": of.spent(uploads, 2 * of.clip),
        "assumes": assumes,
    }


def _share(part: float, whole: float) -> float:
    return float(part / whole) if whole else 0.0


def _reached(headline: list[Numbers], target: Target) -> Numbers:
    first = next((r for r in headline if r["split"] == target.split and target.reached(r["value"])), None)
    found = {
        "rounds": first["round"] if first else None,
        "bytes_up": first["bytes_up"] if first else None,
        "simulated_hours": first["sim_s"] / 3600 if first and first["sim_s"] is not None else None,
    }
    return {"metric": target.metric, "split": target.split, "value": target.value} | found
