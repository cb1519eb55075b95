"""Handles signals and shows progress in the terminal while a run goes on."""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from cluster.experiment import Experiment
from cluster.progress import Watcher
from server.job import Progress


@contextlib.contextmanager
def signals(note: "Heard") -> Iterator[threading.Event]:
    """Yields an event that Ctrl-C and SIGTERM set the first time; the second time they end the program at once."""
    stop = threading.Event()

    def heard(number: int, frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        note.signal = number
        stop.set()
        print("stopping after this round; once more to stop at once", file=sys.stderr)  # noqa: T201

    before = {number: signal.signal(number, heard) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Heard:
    """Remembers the signal that was heard.

    Attributes:
        signal: the signal's number; 0 before one is heard.
    """

    signal = 0


class Show(Heard):
    """Shows the progress of a run. The bar appears once the run's folder and headline metric are known.

    Attributes:
        folder: the run's folder; None before it is made.
    """

    def __init__(self, console: Console) -> None:
        self.folder: Path | None = None
        self._console = console
        self._watcher: Watcher | None = None

    def __enter__(self) -> "Show":
        return self

    def __exit__(self, *exception: object) -> None:
        if self._watcher:
            self._watcher.__exit__(None, None, None)

    def started(self, experiment: Experiment, folder: Path) -> None:
        """Prints the experiment and its folder, and starts the bar."""
        self.folder = folder
        self._console.print(f"{experiment.config.name}: {experiment.shards.n_clients} clients, results in {folder}")
        for remark in experiment.remarks():
            self._console.print(remark)
        self._watcher = Watcher(self._console, experiment.headline)
        self._watcher.__enter__()

    def report(self, progress: Progress) -> None:
        """Shows a round."""
        assert self._watcher
        self._watcher(progress)
