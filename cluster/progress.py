"""Shows the progress of a run: a live bar in a terminal, plain lines elsewhere."""

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from server.job import Progress


def size(n_bytes: float) -> str:
    """Formats bytes in decimal units, with three digits."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if n_bytes < 999.5:  # 999.5 and more would be rounded to 1000
            return f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.3g} PB"


def number(value: float | None) -> str:
    """Formats a metric with four digits."""
    if value is None:
        return "undefined"
    return f"{value:.4f}" if value == 0 or 1e-2 <= abs(value) < 1e6 else f"{value:.3e}"


class Watcher:
    """Shows each Progress: round, headline metric, bytes, time left."""

    def __init__(self, console: Console, headline: str) -> None:
        self._console = console
        self._headline = headline
        self._started = time.monotonic()
        self._first: int | None = None  # the number of rounds done at the first report
        self._bar = Bar(
            TextColumn("round"), MofNCompleteColumn(), BarColumn(), TextColumn("{task.fields[metric]}"),
            TextColumn("{task.fields[moved]}"), TimeRemainingColumn(), console=console, disable=not console.is_terminal,
        )  # fmt: skip
        self._task = self._bar.add_task("", total=None, metric="", moved="")

    def __enter__(self) -> "Watcher":
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def __call__(self, report: Progress) -> None:
        if self._first is None:
            self._first = report.round
        for warning in report.warnings:
            self._console.print(f"warning: after round {report.round}: {warning}")
        metric, moved = self._metric(report), f"{size(report.bytes_up)} up, {size(report.bytes_down)} down"
        if self._console.is_terminal:
            self._bar.update(self._task, completed=report.round, total=report.rounds, metric=metric, moved=moved)
        elif report.evaluated:
            self._console.print(f"round {report.round}/{report.rounds}  {metric}  {moved}  {self._left(report)}")

    def _metric(self, report: Progress) -> str:
        if not report.metrics:
            return "nothing to evaluate"
        split = "test" if "test" in report.metrics else next(iter(report.metrics))
        return f"{split} {self._headline} {number(report.metrics[split].get(self._headline))}"

    def _left(self, report: Progress) -> str:
        spent = time.monotonic() - self._started
        played = report.round - (self._first or 0)
        if not played:
            return f"{spent:.0f} s"
        return f"{spent:.0f} s, {spent / played * (report.rounds - report.round):.0f} s left"
