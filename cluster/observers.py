"""Who else is told of a run: its log, Ray's metrics, TensorBoard, MLflow. None of them can change or end it."""

import contextlib
import datetime
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from ray.util.metrics import Counter, Gauge

from cluster.experiment import Experiment
from cluster.tree import flat
from raysim.errors import ConfigError, OutputError, Stopped
from server.fates import FATES
from server.ledger import TIMES
from server.rounds import Progress

# Of a phase's row, what the log has; rounds.parquet has everything.
LOGGED = ("phase", "valid", *FATES, "rejected", "bytes_down", "bytes_up", *TIMES)

# What MLflow takes at a time.
MLFLOW_PARAMS, MLFLOW_METRICS = 100, 1000

_RUN = ("run",)
_ROUNDS = Counter("raysim_rounds", "Rounds played, since this run was started or went on.", _RUN)
_DONE = Gauge("raysim_rounds_done", "Rounds played in all.", _RUN)
_PLANNED = Gauge("raysim_rounds_planned", "Rounds that the run is to have.", _RUN)
_CLIENTS = Counter("raysim_clients", "Clients by what became of them in a phase.", ("run", "phase", "fate"))
_BYTES = Counter("raysim_bytes", "Bytes that were moved to and from clients.", ("run", "phase", "direction"))
_SECONDS = Counter("raysim_phase_seconds", "Seconds that phases took: plan, clients, server.", ("run", "phase", "part"))
_METRIC = Gauge("raysim_metric", "The last evaluation.", ("run", "split", "metric"))


class Observer(Protocol):
    """Is told of each round once, in order, and of the end."""

    def __call__(self, report: Progress) -> None: ...

    def end(self, outcome: str) -> None:
        """`outcome` is finished, stopped or failed."""


class Log:
    """log.jsonl of a run folder: a JSON object a line, with at least `time` (UTC) and `event`.

    Attributes:
        rounds: that it tells of.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "log.jsonl"
        self.rounds = 0
        if self._path.exists():  # a run that goes on; it may have been broken off, or the disk full, within a line
            written = self._path.read_bytes()
            os.truncate(self._path, written.rfind(b"\n") + 1)
            events = map(json.loads, written[: written.rfind(b"\n") + 1].splitlines())
            self.rounds = max((event["round"] for event in events if event["event"] == "round"), default=0)

    def say(self, event: str, **fields: Any) -> None:
        """Appends a line. Raises OutputError."""
        line = {"time": datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"), "event": event}
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(_plain(line | fields), allow_nan=False) + "\n")
        except OSError as error:
            raise OutputError(
                f"cannot write {self._path} ({error.strerror}); free space or choose another folder"
            ) from error

    def __call__(self, report: Progress) -> None:
        if report.phases:
            phases = [{key: row[key] for key in LOGGED if row.get(key) is not None} for row in report.phases]
            sums = {"bytes_down": report.bytes_down, "bytes_up": report.bytes_up, "sim_s": report.sim_s}
            self.say("round", round=report.round, phases=phases, **sums)
            self.rounds = report.round
        if report.evaluated:
            self.say("evaluation", round=report.round, metrics=report.metrics)
        for warning in report.warnings:
            self.say("warning", round=report.round, warning=warning)


@dataclass
class RayMetrics:
    """Ray's application metrics, named ray_raysim_* in Prometheus and in the dashboard.

    Attributes:
        run: their label of that name.
    """

    run: str

    def __call__(self, report: Progress) -> None:
        _PLANNED.set(report.rounds, {"run": self.run})
        _DONE.set(report.round, {"run": self.run})
        if report.phases:
            _ROUNDS.inc(1, {"run": self.run})
        for row in report.phases:
            tags = {"run": self.run, "phase": row["phase"]}
            # A run that was begun by an older raysim goes on with rows that do not know them.
            parts = {"plan": row["plan_s"] or 0.0, "clients": row["clients_s"] or 0.0}
            parts["server"] = row["wall_s"] - sum(parts.values())
            _add(_SECONDS, tags, "part", parts)
            _add(_BYTES, tags, "direction", {"down": row["bytes_down"], "up": row["bytes_up"]})
            _add(_CLIENTS, tags, "fate", {fate: row.get(fate) or 0 for fate in (*FATES, "rejected")})
        for split, name, value in _values(report):
            _METRIC.set(value, {"run": self.run, "split": split, "metric": name})

    def end(self, outcome: str) -> None:
        pass


class TensorBoard:
    """Event files in the run folder's tensorboard/; what a run that goes on plays again is not shown twice."""

    def __init__(self, folder: Path, done: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=done + 1)

    def __call__(self, report: Progress) -> None:
        for name, value in _scalars(report).items():
            self._writer.add_scalar(name, value, report.round)

    def end(self, outcome: str) -> None:
        self._writer.close()


class MLflow:
    """A run of the MLflow experiment `raysim`; one that goes on is the same run.

    It is told of rounds when there is an evaluation: each call may be one over a network.
    """

    def __init__(self, folder: Path, resolved: Mapping[str, Any]) -> None:
        import mlflow
        from mlflow import entities

        self._entities, self._waiting = entities, list[Any]()
        self._client = mlflow.MlflowClient()
        known = self._client.get_experiment_by_name("raysim")
        experiment = known.experiment_id if known else self._client.create_experiment("raysim")
        mine = self._client.search_runs([experiment], f'tags.`raysim.folder` = "{folder}"')
        if mine:
            self._run = mine[0].info.run_id
            self._client.set_terminated(self._run, "RUNNING")
            return
        made = self._client.create_run(experiment, tags={"raysim.folder": str(folder)}, run_name=folder.name)
        self._run = made.info.run_id
        params = [(re.sub(r"[^\w./ -]", "_", key), str(value)) for key, value in flat(resolved).items()]
        for i in range(0, len(params), MLFLOW_PARAMS):
            batch = [entities.Param(*pair) for pair in params[i : i + MLFLOW_PARAMS]]
            self._client.log_batch(self._run, params=batch)

    def __call__(self, report: Progress) -> None:
        now_ms = int(1000 * time.time())
        scalars = _scalars(report).items()
        self._waiting += [self._entities.Metric(name, value, now_ms, report.round) for name, value in scalars]
        if report.evaluated:
            self._send()

    def _send(self) -> None:
        while self._waiting:
            self._client.log_batch(self._run, metrics=self._waiting[:MLFLOW_METRICS])
            del self._waiting[:MLFLOW_METRICS]

    def end(self, outcome: str) -> None:
        self._send()
        self._client.set_terminated(self._run, {"finished": "FINISHED", "stopped": "KILLED"}.get(outcome, "FAILED"))


@dataclass
class Observers:
    """All of a run's. One that fails is told of once and then left alone, but for the log, which is a result.

    Attributes:
        log: of the run.
        others: by name.
        tell: a person a line.
    """

    log: Log
    others: dict[str, Observer]
    tell: Callable[[str], object]
    _round: int = field(default=-1)

    def __call__(self, report: Progress) -> None:
        if report.round <= self._round:
            return  # a server that was started anew plays some rounds again
        self._round = report.round
        if report.round <= self.log.rounds:  # that with which a run goes on may have been told of, or not yet
            report = replace(report, phases=())
        self.log(report)
        self._each(lambda observer: observer(report))

    def notice(self, line: str) -> None:
        """Tells a person and the log of something that is not a round."""
        self.log.say("notice", notice=line)
        self.tell(line)

    def end(self, outcome: str, **fields: Any) -> None:
        self.log.say("end", outcome=outcome, **fields)
        self._each(lambda observer: observer.end(outcome))

    def _each(self, tell: Callable[[Observer], object]) -> None:
        for name, observer in list(self.others.items()):
            try:
                tell(observer)
            except Exception as error:  # noqa: BLE001 -- of somebody else's package, and no reason to end a run
                del self.others[name]
                self.notice(f"warning: {name} failed and is told no more: {type(error).__name__}: {error}")


@contextlib.contextmanager
def observed(experiment: Experiment, folder: Path, done: int, tell: Callable[[str], object]) -> Iterator[Observers]:
    """The observers of a run in this folder, of which `done` rounds are played. How the block ends is the outcome.

    Raises ConfigError where one of output.loggers cannot be had.
    """
    config = experiment.config
    made = Observers(Log(folder), {}, tell)
    made.log.say("start", run=folder.name, rounds=config.rounds, done=done, clients=experiment.shards.n_clients)
    try:
        for name in config.output.loggers:
            made.others[name] = _logger(name, experiment, folder, done)
        if config.clients.fleet == "ray":
            made.others["Ray's metrics"] = RayMetrics(folder.name)
        yield made
    except BaseException as error:
        stopped = isinstance(error, Stopped | KeyboardInterrupt)
        why = (str(error) or "at once") if stopped else f"{type(error).__name__}: {error}"
        with contextlib.suppress(OutputError):  # what is being raised is the cause of it, or says more
            made.end("stopped" if stopped else "failed", why=why)
        raise
    made.end("finished")


def _logger(name: str, experiment: Experiment, folder: Path, done: int) -> Observer:
    try:
        if name == "tensorboard":
            return TensorBoard(folder, done)
        return MLflow(folder, experiment.resolved)
    except ImportError:
        package = {"mlflow": "mlflow-skinny"}.get(name, name)
        raise ConfigError("output.loggers", f"{name} is not installed: pip install {package}") from None
    except Exception as error:  # whatever the package raises where it cannot be reached
        raise ConfigError("output.loggers", f"{name} cannot be used: {error}") from error


def _plain(value: Any) -> Any:
    """For JSON, which knows no infinity: what is not finite is null."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def _add(counter: Counter, tags: Mapping[str, str], name: str, amounts: Mapping[str, float]) -> None:
    for value, amount in amounts.items():
        if amount > 0:  # Ray refuses to add nothing
            counter.inc(amount, {**tags, name: value})


def _scalars(report: Progress) -> dict[str, float]:
    """What is drawn over rounds, by name."""
    found = {f"{name}/{split}": value for split, name, value in _values(report)}
    for row in report.phases:
        found |= {f"{key}/{row['phase']}": float(row[key]) for key in ("accepted", "wall_s")}
    if report.phases:
        found |= {"bytes_up": float(report.bytes_up), "bytes_down": float(report.bytes_down)}
        found |= {} if report.sim_s is None else {"sim_s": report.sim_s}
    return found


def _values(report: Progress) -> Sequence[tuple[str, str, float]]:
    """Split, metric and value of an evaluation, of those that are defined."""
    splits = report.metrics.items() if report.evaluated else ()
    return [(split, name, value) for split, of in splits for name, value in of.items() if value is not None]
