"""What a person sees while a run goes on: a live bar in a terminal, plain lines elsewhere."""

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from server.rounds import Progress


def size(n_bytes: float) -> str:
    """Bytes for a person, decimal units."""
    for unit in ("B", "kB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:.3g} {unit}" if unit != "B" else f"{n_bytes:.0f} B"
        n_bytes /= 1000
    return f"{n_bytes:.3g} TB"


class Watcher:
    """Shows each Progress: round, headline metric, bytes, time left."""

    def __init__(self, console: Console, headline: str) -> None:
        self._console = console
        self._headline = headline
        self._started = time.monotonic()
        self._bar = Bar(
            TextColumn("round"), MofNCompleteColumn(), BarColumn(), TextColumn("{task.fields[metric]}"),
            TextColumn("{task.fields[moved]}"), TimeRemainingColumn(), console=console, disable=not console.is_terminal,
        )  # fmt: skip
        self._task = self._bar.add_task("", total=None, metric="", moved="")

    def __enter__(self) -> "Watcher":
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.stop()

    def __call__(self, report: Progress) -> None:
        metric, moved = self._metric(report), f"{size(report.bytes_up)} up, {size(report.bytes_down)} down"
        if self._console.is_terminal:
            self._bar.update(self._task, completed=report.round, total=report.rounds, metric=metric, moved=moved)
        elif report.evaluated:
            self._console.print(f"round {report.round}/{report.rounds}  {metric}  {moved}  {self._left(report)}")

    def _metric(self, report: Progress) -> str:
        split = "test" if "test" in report.metrics else next(iter(report.metrics))
        value = report.metrics[split].get(self._headline)
        return f"{split} {self._headline} {'undefined' if value is None else format(value, '.4f')}"

    def _left(self, report: Progress) -> str:
        spent = time.monotonic() - self._started
        if not report.round:
            return f"{spent:.0f} s"
        return f"{spent:.0f} s, {spent / report.round * (report.rounds - report.round):.0f} s left"
