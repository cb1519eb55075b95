"""What a person sees while a run goes on."""

import io
import re

import pytest
from rich.console import Console

from cluster.progress import Watcher, number, size
from server.job import Progress


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [
        (0, "0 B"), (1, "1 B"), (999, "999 B"), (1000, "1 kB"), (1234, "1.23 kB"), (577_560, "578 kB"),
        (999_400, "999 kB"), (999_600, "1 MB"), (700e6, "700 MB"), (23.2e9, "23.2 GB"), (175e9, "175 GB"),
        (4e12, "4 TB"), (2e15, "2 PB"),
    ],
)  # fmt: skip
def test_sizes(n_bytes: float, text: str) -> None:
    assert size(n_bytes) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.98765, "0.9877"), (1.0, "1.0000"), (-1.5, "-1.5000"), (0.0, "0.0000"), (3.14159e-7, "3.142e-07"),
     (None, "undefined"), (float("nan"), "nan"), (2.5e8, "2.500e+08")],
)  # fmt: skip
def test_numbers(value: float | None, text: str) -> None:
    assert number(value) == text


def report(done: int, evaluated: bool = True, **metrics: float | None) -> Progress:
    return Progress(
        done, 10, {split: {"auc": v} for split, v in metrics.items()}, evaluated, done * 3000, done * 2000, None
    )


def test_a_terminal_shows_round_metric_bytes_and_time_left() -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, color_system=None, width=80)
    with Watcher(console, "auc") as watcher:
        for done in range(4):
            watcher(report(done, train=0.5, test=0.9 + done / 100))
    shown = file.getvalue().split("\r")[-1]
    assert re.search(r"round +3/10 .*test auc 0\.9300 +6 kB up, 9 kB down +\d:\d\d:\d\d", shown)


def test_elsewhere_there_is_a_line_for_each_evaluation() -> None:
    file = io.StringIO()
    with Watcher(Console(file=file, width=200), "auc") as watcher:
        watcher(report(0, train=0.5))
        watcher(report(1, evaluated=False, train=0.5))
        watcher(report(5, train=None))
        watcher(report(10))
    first, second, third = file.getvalue().splitlines()
    assert re.fullmatch(r"round 0/10  train auc 0\.5000  0 B up, 0 B down  \d+ s", first)
    assert re.fullmatch(r"round 5/10  train auc undefined  10 kB up, 15 kB down  \d+ s, \d+ s left", second)
    assert re.fullmatch(r"round 10/10  nothing to evaluate  20 kB up, 30 kB down  \d+ s, 0 s left", third)


def test_time_left_is_told_from_the_rounds_played_since_a_run_went_on(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 1.0, 20.0])
    monkeypatch.setattr("time.monotonic", lambda: next(now))
    file = io.StringIO()
    watcher = Watcher(Console(file=file, width=200), "auc")
    watcher(report(6, test=0.5))
    watcher(report(8, test=0.5))
    first, second = file.getvalue().splitlines()
    assert first.endswith("  1 s")
    assert second.endswith("  20 s, 20 s left")
