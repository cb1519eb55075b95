"""Observers of a run: its log and its loggers. None of them can change or end it."""

import contextlib
import datetime
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cluster.experiment import Experiment
from cluster.loggers import LOGGERS, LoggedRun, Logger, Outcome
from cluster.loggers.ray_metrics import RayMetrics
from raysim.errors import ConfigError, OutputError, Stopped
from server.fates import FATES
from server.job import Progress
from server.ledger import TIMES

# The columns of a phase's row that the log holds; rounds.parquet has them all.
LOGGED = ("phase", "valid", *FATES, "rejected", "bytes_down", "bytes_up", *TIMES)


class Log:
    """Writes log.jsonl of a run folder: a JSON object a line, with at least `time` (UTC) and `event`.

    Attributes:
        rounds: the last round that the log holds.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "log.jsonl"
        self.rounds = 0
        if self._path.exists():  # of a resumed run, whose last line may be cut off
            written = self._path.read_bytes()
            os.truncate(self._path, written.rfind(b"\n") + 1)
            events = map(json.loads, written[: written.rfind(b"\n") + 1].splitlines())
            self.rounds = max((event["round"] for event in events if event["event"] == "round"), default=0)

    def say(self, event: str, **fields: Any) -> None:
        """Appends a line to the log. Raises OutputError."""
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
class Observers:
    """The observers of a run. A logger that fails is reported once and dropped; an error of the log ends the run.

    Attributes:
        log: the run's log.
        others: the loggers, by name.
        tell: shows a line to the user.
    """

    log: Log
    others: dict[str, Logger]
    tell: Callable[[str], object]
    _round: int = field(default=-1)

    def __call__(self, report: Progress) -> None:
        if report.round <= self._round:
            return  # a restarted server plays some rounds again
        self._round = report.round
        if report.round <= self.log.rounds:  # the round of the checkpoint may be logged or not
            report = replace(report, phases=())
        self.log(report)
        self._each(lambda observer: observer(report))

    def notice(self, line: str) -> None:
        """Tells the user and the log of an event that is not a round."""
        self.log.say("notice", notice=line)
        self.tell(line)

    def end(self, outcome: Outcome, **fields: Any) -> None:
        """Tells the log and the loggers how the run ended."""
        self.log.say("end", outcome=outcome, **fields)
        self._each(lambda observer: observer.end(outcome))

    def _each(self, tell: Callable[[Logger], object]) -> None:
        for name, observer in list(self.others.items()):
            try:
                tell(observer)
            except Exception as error:  # noqa: BLE001 -- a logger's fault is no reason to end a run
                del self.others[name]
                self.notice(f"warning: {name} failed and is told no more: {type(error).__name__}: {error}")


@contextlib.contextmanager
def observed(experiment: Experiment, folder: Path, done: int, tell: Callable[[str], object]) -> Iterator[Observers]:
    """Yields the observers of a run of which `done` rounds are played, and tells them how the block ended.

    Raises ConfigError where one of output.loggers cannot be had.
    """
    config = experiment.config
    made = Observers(Log(folder), {}, tell)
    made.log.say("start", run=folder.name, rounds=config.rounds, done=done, clients=experiment.shards.n_clients)
    run = LoggedRun(folder, experiment.resolved, done)
    try:
        for name in config.output.loggers:
            made.others[name] = _logger(name, run)
        if config.clients.fleet == "ray":
            made.others["Ray's metrics"] = RayMetrics(run)
        yield made
    except BaseException as error:
        stopped = isinstance(error, Stopped | KeyboardInterrupt)
        why = (str(error) or "at once") if stopped else f"{type(error).__name__}: {error}"
        with contextlib.suppress(OutputError):  # the exception under way says more
            made.end("stopped" if stopped else "failed", why=why)
        raise
    made.end("finished")


def _logger(name: str, run: LoggedRun) -> Logger:
    kind = LOGGERS.find(name, "output.loggers")
    try:
        made: Logger = kind(run)
    except ImportError as error:
        package = getattr(kind, "package", None)
        why = f"is not installed: pip install {package}" if package else f"cannot be used: {error}"
        raise ConfigError("output.loggers", f"{name} {why}") from None
    except Exception as error:  # packages raise many kinds where a server is away
        raise ConfigError("output.loggers", f"{name} cannot be used: {error}") from error
    return made


def _plain(value: Any) -> Any:
    """Returns the value for JSON, which knows no infinity: a number that is not finite becomes null."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
