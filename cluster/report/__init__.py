"""Reports on finished runs: figures and tables in one HTML file, and beside it as PNG, CSV and Parquet."""

import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv

from cluster import plots
from cluster.folder import origin
from cluster.report import figures, fits, selection, tables
from cluster.report.page import ReportSection, page
from cluster.report.runs import Runs
from cluster.report.tables import Table
from cluster.study import STUDY, TRIALS, Study, rows
from raysim.errors import ConfigError, OutputError
from raysim.output import write_whole
from server.archive import parquet


def make(
    given: Sequence[Path],
    out: Path,
    command: str,
    target: float | None = None,
    metric: str | None = None,
    split: str | None = None,
    higher: bool | None = None,
) -> Path:
    """Writes a report and returns its HTML file.

    Args:
        given: folders of finished runs and of studies, whose finished trials count.
        out: the folder to write into.
        command: the command that makes the report, which the page shows.
        target: a value of the metric; None takes that of the runs' configurations, if all have the same.
        metric, split: None takes the headline metric, and the last of the splits that the runs evaluated.
        higher: whether more of the metric is better, if it is another than the headline metric.

    Raises:
        DataError: a folder holds no finished run, the runs share no metric, or two of them are the same.
        ConfigError: the runs have several targets, or some ended at a target of their own before the given one.
    """
    runs = Runs.read(_finished(given), metric, split, higher, _broken(given))
    goal = target if target is not None else runs.target
    if goal is None and any(run.target is not None for run in runs.all):
        raise ConfigError("--target", "the runs have different targets; give the one that is to be looked at")
    if short := next((r for r in runs.all if goal is not None and r.ended_at_target and not r.reached(goal)), None):
        raise ConfigError("--target", f"is {goal:g}, and {short.folder} ended at its own, {short.target:g}")
    finished = sum(run.finished for run in runs.all)
    about = [
        f"{finished} finished runs of {len(runs.settings)} settings: {', '.join(figures.algorithms(runs))}",
        f"{runs.split} {runs.metric}, " + ("without a target" if goal is None else f"to a target of {goal:g}"),
        f"raysim {origin()['raysim']}, commit {origin()['commit'] or 'unknown'}",
    ]
    parts = []
    studies = {folder: Study.load(folder / STUDY) for folder in given if (folder / STUDY).exists()}
    for part in (*_parts(runs, goal, given), *_selected(studies)):
        parts.append(part)
        _write(out, part)
    html = out / "report.html"
    titles = ", ".join(study.config.name for study in studies.values())
    write_whole(html, page(titles or "Report", about, command, parts).encode())
    return html


def best(folder: Path) -> tuple[Table, str]:
    """Returns the ranking of a study's settings by its section `select`, and the rule in words.

    Raises DataError where none of its trials finished, or has the metric.
    """
    select = Study.load(folder / STUDY).config.select
    assert select is not None
    higher = select.higher_is_better
    runs = Runs.read(_finished([folder]), select.metric, select.split, higher, _broken([folder]))
    return selection.ranked(runs, select), selection.rule(runs, select)


def _selected(studies: Mapping[Path, Study]) -> Iterator[ReportSection]:
    for folder, study in studies.items():
        if study.config.select is not None:
            table, rule = best(folder)
            yield ReportSection(
                f"best_of_{folder.resolve().name}", f"Best values of {study.config.name}", rule, table=table
            )


def _finished(given: Sequence[Path]) -> list[Path]:
    found = []
    for folder in given:
        if (folder / STUDY).exists():
            found += [folder / TRIALS / row.trial for row in rows(folder) if row.status == "finished"]
        else:
            found.append(folder)
    return found


def _broken(given: Sequence[Path]) -> dict[Path, Path]:
    """Returns the folders of trials that failed or were ended early, each with one of another seed that has metrics."""
    found = {}
    for folder in given:
        status = {row.trial: row.status for row in rows(folder)}
        if not {"failed", "ended early"}.isdisjoint(status.values()):
            trials = Study.load(folder / STUDY).trials
            there = [t for t in trials if (folder / TRIALS / t.name / "metrics.parquet").exists()]
            others = {trial.without(["seed"]): folder / TRIALS / trial.name for trial in there}
            for trial in trials:
                if status.get(trial.name) in ("failed", "ended early"):
                    where = folder / TRIALS / trial.name
                    found[where] = others.get(trial.without(["seed"]), where)
    return found


def _parts(runs: Runs, target: float | None, given: Sequence[Path]) -> Iterator[ReportSection]:
    exponents, devices = fits.fitted(runs, target), tables.devices(runs)
    beside: dict[str, tuple[Table, str]] = {
        "equal_upload": (tables.equal_upload(runs), "Medians over seeds after as much upload."),
        "exponents": (tables.exponents(exponents), ""),
        "devices": (devices, ""),
        "by_client": (tables.by_client(runs), _BY_CLIENT),
    }
    if target is not None:
        beside["speed_up"] = tables.speed_up(runs, target), ""
        yield ReportSection("to_target", "Cost to the target", _TO_TARGET, table=tables.to_target(runs, target))
    for one in figures.all_figures(runs, target, exponents, devices):
        table, _ = beside.pop(one.name, ([], ""))
        picture = plots.saved(one.figure, "png")
        yield ReportSection(one.name, one.title, one.caption, picture, table, [run.name for run in one.runs])
    for name, (table, caption) in beside.items():
        if table:
            yield ReportSection(name, name.replace("_", " ").capitalize(), caption, table=table)
    if left := [row for folder in given for row in rows(folder) if row.status != "finished"]:
        table = [{"trial": row.trial, "status": row.status, "why": row.said} for row in left]
        yield ReportSection("not_finished", "Trials that did not finish", _LEFT, table=table)
    yield ReportSection("runs", "Runs", "Every run that is reported on.", table=tables.each_run(runs, target))


_BY_CLIENT = (
    "Means over clients, each on test rows of its own; of the last evaluation also the worst client and the standard "
    "deviation over clients. Epsilon is that of all uploads of one client together, where they are private."
)
_LEFT = (
    "Those that failed or were ended early count as far as they came: the target as not reached, unless it was by then."
)
_TO_TARGET = (
    "Medians over seeds, and from the least to the greatest of the runs that reached it. A dash: half of the runs or "
    "more did not."
)


def _write(out: Path, part: ReportSection) -> None:
    """Writes a figure's picture and its table, as files of its name."""
    try:
        (out / "figures").mkdir(parents=True, exist_ok=True)
        (out / "tables").mkdir(exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot make {out} ({error.strerror})") from None
    if part.png:
        write_whole(out / "figures" / f"{part.name}.png", part.png)
    if part.table:
        table = pa.Table.from_pylist(
            [{name: _uniform(part.table, name, cell) for name, cell in row.items()} for row in part.table]
        )
        csv = io.BytesIO()
        pyarrow.csv.write_csv(table, csv)
        write_whole(out / "tables" / f"{part.name}.csv", csv.getvalue())
        write_whole(out / "tables" / f"{part.name}.parquet", parquet(table))


def _uniform(table: Table, name: str, cell: Any) -> Any:
    """Returns a cell for a file; if one cell of a column is text, all of them are written as text."""
    words = any(isinstance(row[name], str) for row in table)
    return str(cell) if words and cell is not None else cell
