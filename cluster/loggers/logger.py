"""The interface of loggers, which are told of every round and evaluation of a run."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from server.job import Progress

Outcome = Literal["finished", "stopped", "failed"]


@dataclass(frozen=True)
class LoggedRun:
    """The run that a logger is told of.

    Attributes:
        folder: the run's folder.
        resolved: the configuration with every default filled in.
        done: the number of rounds that were played before, where a run is resumed.
    """

    folder: Path
    resolved: Mapping[str, Any]
    done: int


class Logger(ABC):
    """Is told of each round once, in order, and of the end. A logger of your own derives from this.

    It cannot change or end the run: one that raises an exception is told no more.

    Attributes:
        package: the package that has to be installed for it; None if there is none.
    """

    package: ClassVar[str | None] = None

    @abstractmethod
    def __init__(self, run: LoggedRun) -> None:
        """Gets ready for a run that begins or goes on."""

    @abstractmethod
    def __call__(self, report: Progress) -> None:
        """Takes note of a round, or of an evaluation."""

    def end(self, outcome: Outcome) -> None:  # noqa: B027 - most need not know
        """Takes note of how the run ended."""


def scalars(report: Progress) -> dict[str, float]:
    """Returns the numbers of a round that are drawn over rounds, by name."""
    found = {f"{name}/{split}": value for split, name, value in values(report)}
    for row in report.phases:
        found |= {f"{key}/{row['phase']}": float(row[key]) for key in ("accepted", "wall_s")}
    if report.phases:
        found |= {"bytes_up": float(report.bytes_up), "bytes_down": float(report.bytes_down)}
        found |= {} if report.sim_s is None else {"sim_s": report.sim_s}
    return found


def values(report: Progress) -> Sequence[tuple[str, str, float]]:
    """Returns split, metric and value of an evaluation, of the metrics that are defined."""
    splits = report.metrics.items() if report.evaluated else ()
    return [(split, name, value) for split, of in splits for name, value in of.items() if value is not None]
