"""The console script `raysim`."""

import functools
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from cluster import catalogue, jobs, plots
from cluster import check as checks
from cluster import report as reports
from cluster import summary as summaries
from cluster import survey as surveys
from cluster.config import load_config
from cluster.experiment import Experiment
from cluster.progress import number, size
from cluster.report.run import headline
from cluster.run import resume as resume_experiment
from cluster.run import run as run_experiment
from cluster.study import STUDY, Study, is_study
from cluster.study import rows as study_rows
from cluster.terminal import Heard, Show, signals
from raysim.errors import ConfigError, DataError, RaysimError, Stopped

app = typer.Typer(
    help="Simulate cross-device federated min-max learning.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
)
# Markup is switched off, since a folder may be called [a].
console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)

ConfigPath = Annotated[Path, typer.Argument(help="The experiment's YAML file, or a variant's name.", metavar="CONFIG")]
Overrides = Annotated[
    list[str] | None, typer.Option("-o", "--override", help="key.sub=value in place of the file's; repeatable.")
]


@app.command()
def run(
    config: Annotated[
        Path | None, typer.Argument(help="The experiment's YAML file, or a variant's name.", metavar="CONFIG")
    ] = None,
    override: Overrides = None,
    resume: Annotated[
        Path | None, typer.Option(help="Go on with the run (or the study) of this folder instead.", metavar="RUN")
    ] = None,
    from_: Annotated[
        int | None,
        typer.Option("--from", help="The checkpoint to go on from; the latest if none is given.", metavar="ROUND"),
    ] = None,
) -> None:
    """Run an experiment and print where its results lie. Ctrl-C ends it after the round, a second one at once."""
    if (config is None) == (resume is None):
        raise ConfigError("", "give either a configuration, or --resume with the folder of a run")
    if from_ is not None and resume is None:
        raise ConfigError("--from", "is the checkpoint of a run to go on from, and needs --resume")
    if _is_study(config, resume):
        if from_ is not None:
            raise ConfigError("--from", "is for a run; the trials of a study go on from their latest checkpoints")
        study(config, override, resume)
        return
    show = Show(console)
    try:
        with show, signals(show) as stop:
            if resume is not None:
                play = functools.partial(resume_experiment, resume, override or [], from_)
            else:
                assert config is not None
                play = functools.partial(run_experiment, load_config(config, override or []))
            result = play(watch=show.report, started=show.started, notice=console.print, stop=stop)
    except KeyboardInterrupt:
        if show.folder:
            console.print(f"stopped in a round; go on from the last checkpoint with: raysim run --resume {show.folder}")
        raise typer.Exit(130) from None
    except Stopped as stopped:
        console.print(str(stopped))
        raise typer.Exit(128 + show.signal) from None
    for split in result.splits:
        console.print(f"final {split} {result.headline}: {number(result.final(split=split))}")
        for name, final in result.summary.get("final_beside", {}).items():
            console.print(f"final {split} {name}_{result.headline}: {number(final[split])}")
    for line in summaries.lines(result.summary):
        console.print(line)
    console.print(f"results in {result.folder}")
    for path in sorted(result.folder.rglob("*")):
        inside = path.relative_to(result.folder)
        if path.is_file() and inside.parts[0] != "checkpoints":
            console.print(f"  {inside}")


@app.command()
def check(config: ConfigPath, override: Overrides = None) -> None:
    """Print what an experiment would do, without running it."""
    checks.show(Experiment.build(load_config(config, override or [])), console)


@app.command()
def devices(
    config: ConfigPath,
    override: Overrides = None,
    out: Annotated[Path, typer.Option(help="The PNG to write.")] = Path("devices.png"),
) -> None:
    """Show what an experiment's devices look like, and how its rounds would go, without training."""
    experiment = Experiment.build(load_config(config, override or []))
    found = surveys.survey(experiment)
    surveys.show(experiment, found, console)
    surveys.draw(experiment, found, out)
    console.print(f"wrote {out}")


@app.command("list")
def list_() -> None:
    """Show the names that a configuration can use, and the experiments that come with raysim."""
    catalogue.show(console)


@app.command()
def plot(
    runs: Annotated[
        list[Path], typer.Argument(help="Run folders; those that differ in their seed only are drawn as one line.")
    ],
    out: Annotated[Path, typer.Option(help="The PNG to write.")],
    metric: Annotated[
        str | None, typer.Option(help="A metric of the runs; without, the one that the first is judged by.")
    ] = None,
    split: Annotated[str, typer.Option(help="train or test.")] = "train",
) -> None:
    """Draw several finished runs in one figure."""
    plots.compare(runs, metric or headline(runs[0]), split, out)
    console.print(f"wrote {out}")


Address = Annotated[
    str | None, typer.Option(help=f"Of the cluster's job server; RAY_API_SERVER_ADDRESS, or {jobs.ADDRESS}.")
]


@app.command()
def submit(
    config: Annotated[
        Path | None, typer.Argument(help="The experiment's YAML file, or a variant's name.", metavar="CONFIG")
    ] = None,
    override: Overrides = None,
    resume: Annotated[
        str | None, typer.Option(help="Go on with this run of the cluster instead.", metavar="RUN")
    ] = None,
    address: Address = None,
    storage: Annotated[
        str | None, typer.Option(help="A folder of the cluster, for what the configuration has relative paths for.")
    ] = None,
    include: Annotated[
        list[Path] | None,
        typer.Option(help="A file or folder that your modules need as well, with --resume those modules; repeatable."),
    ] = None,
    wait: Annotated[bool, typer.Option(help="Follow the job to its end.")] = True,
) -> None:
    """Run an experiment or a study as a job of a Ray cluster. Ctrl-C leaves the job running."""
    if (config is None) == (resume is None):
        raise ConfigError("", "give either a configuration, or --resume with the folder of a run")
    if _is_study(config, None):
        assert config is not None
        made = jobs.parcel_of_study(Study.load(config, override or []), storage, include or [])
    elif config is not None:
        made = jobs.parcel(load_config(config, override or []), storage, include or [])
    else:
        if storage is not None:
            raise ConfigError("--storage", "is for a new run; one that goes on does so in its own folder")
        made = jobs.parcel_to_resume(str(resume), override or [], include or [])
    with made as parcel:
        n_files, n_bytes = parcel.sizes
        console.print(f"sending {n_files} files, {size(n_bytes)}")
        job = jobs.submit(parcel, address)
        console.print(f"job {job}, results in {parcel.output} on the cluster")
    if not wait:
        return
    try:
        ended = jobs.follow(job, address, lambda text: print(text, end="", flush=True))  # noqa: T201
    except KeyboardInterrupt:
        console.print(f"\nthe job goes on; end it with: raysim stop {job}")
        raise typer.Exit(130) from None
    console.print(jobs.line(ended))
    if ended.status is not jobs.JobStatus.SUCCEEDED:
        raise typer.Exit(143 if ended.status is jobs.JobStatus.STOPPED else 1)


@app.command("jobs")
def jobs_(address: Address = None) -> None:
    """Show the experiments that were sent to a cluster, the latest first."""
    found = jobs.listed(address)
    for job in found:
        console.print(jobs.line(job))
    if not found:
        console.print("none")


@app.command()
def stop(
    job: Annotated[str, typer.Argument(help="As `raysim jobs` shows it.", metavar="JOB")],
    address: Address = None,
    wait: Annotated[bool, typer.Option(help="Wait until it has ended.")] = True,
) -> None:
    """Have a job end after the round that it plays, with a checkpoint. `raysim submit --resume` goes on with it."""
    console.print(jobs.line(jobs.stop(job, address, wait)))


@app.command()
def study(
    config: Annotated[Path | None, typer.Argument(help="The study's YAML file.", metavar="STUDY")] = None,
    override: Annotated[
        list[str] | None,
        typer.Option("-o", "--override", help="A key of the study, set.KEY or grid.KEY =value; repeatable."),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Go on with the study of this folder instead.", metavar="FOLDER")
    ] = None,
) -> None:
    """Run many trials of configurations, and report on them. Ctrl-C ends it after the trials' rounds, twice at once."""
    if (config is None) == (resume is None):
        raise ConfigError("", "give either a study, or --resume with the folder of one")
    trials = _trials()
    heard = Heard()
    try:
        with signals(heard) as stop:
            if resume is not None:
                where = trials.go_on(resume, override or [], console.print, stop)
            else:
                assert config is not None
                if not is_study(config):
                    raise ConfigError(str(config), "is no study: it has no base, grid or parts; see `raysim run`")
                where = trials.begin(Study.load(config, override or []), console.print, stop)
    except KeyboardInterrupt:
        console.print("stopped at once; go on from the trials' last checkpoints with: raysim study --resume")
        raise typer.Exit(130) from None
    except Stopped as stopped:
        console.print(str(stopped))
        raise typer.Exit(128 + heard.signal) from None
    rows = study_rows(where)
    for row in rows:
        if row.status != "finished":
            console.print(f"{row.trial} {row.status}: {row.said}")
    console.print(f"{sum(row.status == 'finished' for row in rows)} of {len(rows)} trials finished, in {where}")
    if any(row.status == "finished" for row in rows):
        _report(where)
    if any(row.status == "failed" for row in rows):
        raise typer.Exit(1)


def _report(where: Path) -> None:
    """Writes a study's report beside its trials, and prints the best settings by its `select` section."""
    out = where / "report"
    try:
        html = reports.make([where], out, shlex.join(["raysim", "report", str(where), "--out", str(out)]))
        if Study.load(where / STUDY).config.select is not None:
            for line in reports.selection.lines(reports.best(where)[0]):
                console.print(line)
    except (ConfigError, DataError) as error:  # for example, trials that share no metric
        console.print(f"no report: {error}")
    else:
        console.print(f"report in {html}")


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs, or of studies.")],
    out: Annotated[Path, typer.Option(help="The folder to write into.")] = Path("report"),
    target: Annotated[float | None, typer.Option(help="Of the metric; that of the configurations, if none.")] = None,
    metric: Annotated[str | None, typer.Option(help="A metric of the runs; the headline metric, if none.")] = None,
    split: Annotated[str | None, typer.Option(help="train or test; the last that was evaluated, if none.")] = None,
    higher_is_better: Annotated[
        bool | None,
        typer.Option(
            "--higher-is-better/--lower-is-better", help="Of --metric, if it is another than the headline metric."
        ),
    ] = None,
) -> None:
    """Write a report on finished runs: figures and tables in one HTML file, and beside it as PNG, CSV and Parquet."""
    command = shlex.join(["raysim", *sys.argv[1:]])
    console.print(f"wrote {reports.make(runs, out, command, target, metric, split, higher_is_better)}")


def _is_study(config: Path | None, resume: Path | None) -> bool:
    """Returns True if a study is given, by its file or its folder."""
    if resume is not None:
        return (resume / STUDY).is_file()
    return config is not None and is_study(config)


def _trials() -> Any:
    """Returns the module that plays studies. Ray Tune is an extra, and takes a second to be imported."""
    try:
        from cluster import trials
    except ImportError as error:
        raise ConfigError("", f"studies need Ray Tune: pip install 'raysim[tune]' ({error})") from None
    return trials


def main() -> None:
    """Runs the command; an error of the user's is one line and exit status 2, Ctrl-C is status 130."""
    try:
        app()
    except RaysimError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(2)
