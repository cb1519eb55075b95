"""Ray's own metrics as a logger of every run over Ray."""

from collections.abc import Mapping

from ray.util.metrics import Counter, Gauge

from cluster.loggers.logger import LoggedRun, Logger, values
from server.fates import FATES
from server.job import Progress

_RUN = ("run",)
_ROUNDS = Counter("raysim_rounds", "Rounds played, since this run was started or went on.", _RUN)
_DONE = Gauge("raysim_rounds_done", "Rounds played in all.", _RUN)
_PLANNED = Gauge("raysim_rounds_planned", "Rounds that the run is to have.", _RUN)
_CLIENTS = Counter("raysim_clients", "Clients by what became of them in a phase.", ("run", "phase", "fate"))
_BYTES = Counter("raysim_bytes", "Bytes that were moved to and from clients.", ("run", "phase", "direction"))
_SECONDS = Counter("raysim_phase_seconds", "Seconds that phases took: plan, clients, server.", ("run", "phase", "part"))
_METRIC = Gauge("raysim_metric", "The last evaluation.", ("run", "split", "metric"))


class RayMetrics(Logger):
    """Sets Ray's application metrics, named ray_raysim_* in Prometheus and in the dashboard."""

    def __init__(self, run: LoggedRun) -> None:
        self.run = run.folder.name

    def __call__(self, report: Progress) -> None:
        _PLANNED.set(report.rounds, {"run": self.run})
        _DONE.set(report.round, {"run": self.run})
        if report.phases:
            _ROUNDS.inc(1, {"run": self.run})
        for row in report.phases:
            tags = {"run": self.run, "phase": row["phase"]}
            parts = {"plan": row["plan_s"], "clients": row["clients_s"]}
            parts["server"] = row["wall_s"] - sum(parts.values())
            _add(_SECONDS, tags, "part", parts)
            _add(_BYTES, tags, "direction", {"down": row["bytes_down"], "up": row["bytes_up"]})
            _add(_CLIENTS, tags, "fate", {fate: row.get(fate) or 0 for fate in (*FATES, "rejected")})
        for split, name, value in values(report):
            _METRIC.set(value, {"run": self.run, "split": split, "metric": name})


def _add(counter: Counter, tags: Mapping[str, str], name: str, amounts: Mapping[str, float]) -> None:
    for value, amount in amounts.items():
        if amount > 0:  # Ray refuses to add nothing
            counter.inc(amount, {**tags, name: value})
