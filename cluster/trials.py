"""The trials of a study on Ray Tune: each a run in one process, several at a time, with one Ray and one cache of data.

A process plays trial after trial, so that what it takes to start one is paid for once. A node that does not share the
study's folder is sent the data, and sends back what its trials wrote.
"""

import contextlib
import csv
import io
import logging
import math
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import ray
from ray import cloudpickle, tune
from ray.tune.schedulers import FIFOScheduler
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from clients.actors.fleet import own_namespace
from clients.delivery import Delivery
from clients.placement import Node, Placement, place
from cluster import connect, folder, yaml12
from cluster.experiment import Experiment
from cluster.plots import Curve
from cluster.progress import number
from cluster.run import Result, heard, played, standing
from cluster.study import STUDY, TABLE, TRIALS, Early, Row, Status, Study, Trial, rows
from raysim.errors import ConfigError, DataError, PlacementError, RaysimError, Stopped
from raysim.output import write_whole
from server.job import Progress

Say = Callable[[str], None]

# Seconds between two questions of a trial's whether it is to stop.
LOOK_S = 1.0
# In the place of a metric that is undefined, or its negative; finite, since quantiles are taken of it.
WORST = sys.float_info.max / 4
# Of Ray Tune: no files of its own beside a run's, no change of the working directory, and Ctrl-C is heard here.
SETTINGS = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "RAY_AIR_NEW_OUTPUT": "0",
}


@dataclass(frozen=True)
class Task:
    """What the process of a trial is given.

    Attributes:
        experiment: prepared, pickled, since its shards can only be opened once they are on its node.
        data: brings them there.
        keeper: name and namespace of the study's own actor.
        study: the study's folder.
        reports: whether every evaluation is reported, for `early`.
    """

    trial: str
    experiment: bytes
    data: Delivery
    keeper: tuple[str, str]
    study: Path
    reports: bool

    @property
    def where(self) -> Path:
        """The run's folder."""
        return self.study / TRIALS / self.trial


@ray.remote(num_cpus=0, max_concurrency=4)  # type: ignore[call-overload]
class Keeper:
    """On the node of the study's folder: knows whether trials are to stop, and takes what they bring."""

    def __init__(self, study: Path) -> None:
        self._study, self._stopping = study, False

    def stop(self) -> None:
        self._stopping = True

    def stopping(self) -> bool:
        return self._stopping

    def take(self, trial: str, files: Mapping[str, bytes]) -> None:
        """Writes files, by their path in the trial's folder, into it."""
        for name, content in files.items():
            path = self._study / TRIALS / trial / name
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, content)


@dataclass(frozen=True)
class _Made:
    """A trial that was built, as far as it is needed here: of thousands the networks would not fit into memory.

    Attributes:
        experiment: prepared, pickled.
        files: that it reads.
        clients: how many it has.
    """

    trial: Trial
    experiment: bytes
    files: tuple[Path, ...]
    clients: int
    headline: str
    higher_is_better: bool

    @classmethod
    def of(cls, trial: Trial, experiment: Experiment) -> "_Made":
        files = experiment.files
        headline, higher = experiment.headline, experiment.higher_is_better
        # A copy has none of what was cached to check it.
        packed = cloudpickle.dumps(replace(experiment))
        return cls(trial, packed, files, experiment.shards.n_clients, headline, higher)

    @property
    def bundle(self) -> dict[str, float]:
        """What its process reserves: as much as a client actor."""
        return self.trial.config.clients.bundle

    def placed(self, nodes: Sequence[Node]) -> Placement:
        """Raises PlacementError where no node has room for its process."""
        alone = self.trial.config.clients.model_copy(update={"per_actor": "auto", "actors": 1})
        try:
            return place(alone, self.clients, 1, nodes)
        except PlacementError as error:
            raise PlacementError(
                f"trial {self.trial.name}, which is one process and reserves what a client actor does: {error}",
                error.actors,
            ) from None


def begin(study: Study, notice: Say, stop: threading.Event) -> Path:
    """Plays a study's trials. Returns its folder, with trials.csv and a folder of each trial.

    Args:
        notice: is told a line of every trial, and what takes long before.
        stop: once it is set, trials end after the round that they play.

    Raises:
        ConfigError, DataError, PlacementError: before any trial, of whichever is wrong.
        Stopped: after `stop`, where trials were left.
    """
    made = _built(study.trials, notice)
    _fit_here(study, made)
    where = folder.fresh(study.config.folder, study.config.name)
    write_whole(where / STUDY, yaml12.dump(study.tree).encode())
    _play(study, _Book(where, [Row(trial.name) for trial in study.trials], notice), made, stop)
    return where


def go_on(where: Path, overrides: Sequence[str], notice: Say, stop: threading.Event) -> Path:
    """Plays the trials of a study's folder that did not finish: broken ones go on, those that failed are tried again.

    Those that ended early stay so, and what a later look at the study finds new is played too.

    Args:
        overrides: as of Study.load.

    Raises CheckpointError where a trial's configuration is no longer that with which it began, and what `begin` raises.
    """
    where = where.expanduser().absolute()
    if not (where / STUDY).is_file():
        raise ConfigError("--resume", f"{where} is no folder of a study: it has no {STUDY}")
    study, began = Study.load(where / STUDY, overrides), Study.load(where / STUDY)
    for key in ("name", "base", "set", "parts"):
        if study.tree[key] != began.tree[key]:
            raise ConfigError(key, "cannot be another where a study goes on, whose finished trials stay; begin anew")
    before = {row.trial: row for row in rows(where)}
    if gone := before.keys() - {trial.name for trial in study.trials}:
        raise ConfigError(
            "grid",
            f"has no trial {min(gone)} any more; a grid may grow where a study goes on, and not lose what it had",
        )
    book = _Book(where, [_again(before.get(trial.name, Row(trial.name))) for trial in study.trials], notice)
    made = _built([trial for trial in study.trials if trial.name in book.left], notice)
    _fit_here(study, made)
    write_whole(where / STUDY, yaml12.dump(study.tree).encode())
    _play(study, book, made, stop)
    return where


def _again(row: Row) -> Row:
    return row if row.status in ("finished", "ended early") else Row(row.trial)


def _built(trials: Sequence[Trial], notice: Say) -> list[_Made]:
    """Of all trials, the data in the cache, and what evaluations need."""
    made = []
    for trial in trials:
        try:
            made.append(_Made.of(trial, Experiment.build(trial.config).prepared(notice)))
        except ConfigError as error:
            raise ConfigError(error.key, f"{error.message} (in trial {trial.name})") from None
    return made


def _fit_here(study: Study, made: Sequence[_Made]) -> None:
    """Raises PlacementError where a trial is larger than this machine, if that is where it would be played."""
    if connect.starts_here(study.config.ray.address):
        machine = [connect.machine()]
        for one in made:
            one.placed(machine)


def _play(study: Study, book: "_Book", made: Sequence[_Made], stop: threading.Event) -> None:
    config, where = study.config, book.where
    book.write()
    if not made:
        return
    book.notice(f"{len(made)} of {len(book.rows)} trials to be played, in {where}")
    os.environ.update(SETTINGS)
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # what is to be said of trials is said here
    alone = connect.starts_here(config.ray.address)
    with connect.session(config.ray.address), tempfile.TemporaryDirectory() as scratch:
        for one in made:
            connect.placed(one.placed, one.bundle, config.ray.wait_s, book.notice, stop)
        here, name, namespace = ray.get_runtime_context().get_node_id(), f"{where.name}:keeper", own_namespace()
        keeper = Keeper.options(  # type: ignore[attr-defined]
            name=name, namespace=namespace, scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=False)
        ).remote(where)
        files = list({file: None for one in made for file in one.files})
        data, source = Delivery(files), None
        if not alone:
            data, source = Delivery.of(files, here, f"{where.name}:data", namespace)
        tasks = [
            Task(one.trial.name, one.experiment, data, (name, namespace), where, config.early is not None)
            for one in made
        ]
        bundles = [one.bundle for one in made]
        try:
            tuner = tune.Tuner(
                tune.with_resources(
                    tune.with_parameters(_trial, tasks=tasks),
                    lambda given: tune.PlacementGroupFactory([bundles[given["place"]]]),
                ),
                param_space={"place": tune.grid_search(list(range(len(tasks))))},
                tune_config=tune.TuneConfig(
                    reuse_actors=True,
                    scheduler=_Halving(config.early, study, where, made) if config.early else None,
                    max_concurrent_trials=None if config.concurrency == "auto" else config.concurrency,
                ),
                run_config=tune.RunConfig(
                    name="tune", storage_path=scratch, verbose=0, callbacks=[_Told(book, [t.trial for t in tasks])]
                ),
            )
            with heard(stop, keeper.stop.remote):
                tuner.fit()
        finally:
            ray.kill(keeper)
            if source is not None:
                ray.kill(source)
    if book.left:
        raise Stopped(
            f"stopped with {len(book.left)} of {len(book.rows)} trials left; go on with: raysim study --resume {where}"
        )


def _trial(config: Mapping[str, int], tasks: Sequence[Task]) -> None:
    """A trial, in its own process. Its last report is what became of it; a fault of its own is no fault of Tune's."""
    task, started = tasks[config["place"]], time.monotonic()
    # How long Tune lets a trial wind up that it has ended, before it ends the process and with it the next trial.
    os.environ["TUNE_FUNCTION_THREAD_TIMEOUT_S"] = "600"
    keeper = ray.get_actor(*task.keeper)
    status, said = "failed", ""
    with _asked(keeper) as stop:
        if stop.is_set():
            status = "stopped"
        else:
            try:
                result = _run(task, stop)
                status, said = "finished", _words(result)
            except Stopped as stopped:
                if isinstance(stopped, _Behind):
                    sys.exit()  # as Tune would have it of a trial that it has ended; it hears no report any more
                status = "stopped"
            except RaysimError as error:
                said = str(error)
            except Exception as error:  # noqa: BLE001 -- of the user's code
                said = f"{type(error).__name__}: {error}"
            finally:
                _bring(task, keeper)
    tune.report({"status": status, "said": said, "wall_s": time.monotonic() - started})


class _Behind(Stopped):
    """The trial was ended early."""


def _run(task: Task, stop: threading.Event) -> Result:
    task.data.arrive()
    experiment = _within(task.study, cloudpickle.loads(task.experiment))
    where, done = task.where, None
    if experiment.checkpoints(where).latest() is None:
        shutil.rmtree(where, ignore_errors=True)  # what is left of a trial that did not come far
        where.mkdir(parents=True)
        folder.describe(where, experiment.resolved)
    else:
        done = standing(experiment, where)
        if not (where / "config.yaml").exists():  # its checkpoints are elsewhere, and its folder is on another node
            where.mkdir(parents=True, exist_ok=True)
            folder.describe(where, experiment.resolved)

    def watch(report: Progress) -> None:
        if report.evaluated and report.round and not experiment.over(report):
            _report(experiment, report)

    return played(experiment, where, done, watch=watch if task.reports else None, stop=stop)


def _within(study: Path, experiment: Experiment) -> Experiment:
    """It with its output in the study's folder, and checkpoints, if they are elsewhere, in one of the study's name."""
    config = experiment.config
    output = config.output.model_copy(update={"folder": str(study / TRIALS)})
    checkpoint = config.checkpoint
    if checkpoint.folder is not None:
        checkpoint = checkpoint.model_copy(update={"folder": f"{checkpoint.folder.rstrip('/')}/{study.name}"})
    return replace(experiment, config=config.model_copy(update={"output": output, "checkpoint": checkpoint}))


def _report(experiment: Experiment, report: Progress) -> None:
    """Reports an evaluation to Tune. Raises _Behind where Tune has ended the trial."""
    value = report.metrics.get(experiment.config.evaluate.splits[-1], {}).get(experiment.headline)
    try:
        tune.report({"rounds": report.round, "value": _defined(value, experiment.higher_is_better)})
    except SystemExit:  # Tune's way to end a trial
        raise _Behind("ended early: it is behind the others of its kind") from None


def _defined(value: float | None, higher_is_better: bool) -> float:
    """A metric, of which an undefined one is the worst."""
    if value is not None and math.isfinite(value):
        return value
    return -WORST if higher_is_better else WORST


@contextlib.contextmanager
def _asked(keeper: Any) -> Any:
    """An event that is set once the study is to stop."""
    stop, over = threading.Event(), threading.Event()

    def ask() -> None:
        while not over.wait(LOOK_S) and not stop.is_set():
            if ray.get(keeper.stopping.remote()):
                stop.set()

    if ray.get(keeper.stopping.remote()):
        stop.set()
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    try:
        yield stop
    finally:
        over.set()
        thread.join()


def _bring(task: Task, keeper: Any) -> None:
    """Brings what the trial wrote to the study's folder from a node that does not share it, but for checkpoints."""
    if (task.study / STUDY).exists():
        return
    inside = [path.relative_to(task.where) for path in task.where.rglob("*") if path.is_file()]
    files = {str(name): (task.where / name).read_bytes() for name in inside if name.parts[0] != "checkpoints"}
    ray.get(keeper.take.remote(task.trial, files))


def _words(result: Result) -> str:
    summary, split = result.summary, result.splits[-1]
    told = f"{split} {result.headline} {number(result.final(split=split))} after {summary['rounds']} rounds"
    target = summary.get("target")
    if target and target["rounds"] is None:
        return f"{told}, {target['value']:g} not reached"
    return f"{told}, {target['value']:g} reached after {target['rounds']}" if target else told


@dataclass
class _Book:
    """What becomes of trials, in trials.csv and told of.

    Attributes:
        where: the study's folder.
        rows: of every trial, in order.
    """

    where: Path
    rows: list[Row]
    notice: Say
    _begun: float = field(default_factory=time.monotonic)
    _done: int = 0  # since then

    @property
    def left(self) -> list[str]:
        """Trials that are to be played yet."""
        return [row.trial for row in self.rows if row.status in ("waiting", "stopped")]

    def note(self, row: Row) -> None:
        """Books a trial, and tells of it."""
        place = next(i for i, one in enumerate(self.rows) if one.trial == row.trial)
        self.rows[place] = row
        self.write()
        self._done += 1
        if row.status == "stopped":
            return
        over = len(self.rows) - len(self.left)
        left_s = (time.monotonic() - self._begun) / self._done * len(self.left)
        said = f": {row.said}" if row.said else ""
        self.notice(
            f"{over}/{len(self.rows)}  {row.trial}  {row.status}{said}  {row.wall_s:.0f} s, {left_s:.0f} s left"
        )

    def write(self) -> None:
        table = io.StringIO()
        writer = csv.writer(table, lineterminator="\n")
        writer.writerow([one.name for one in fields(Row)])
        writer.writerows([row.trial, row.status, f"{row.wall_s:.3f}", row.said] for row in self.rows)
        write_whole(self.where / TABLE, table.getvalue().encode())


class _Told(tune.Callback):
    """Hands on what Tune knows of trials."""

    def __init__(self, book: _Book, names: Sequence[str]) -> None:
        self._book, self._names = book, names

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune keeps a copy, for a way to go on of its own that is not used here

    def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        last = trial.last_result or {}
        name = self._names[trial.config["place"]]
        if last.get("status") in get_args(Status):
            self._book.note(Row(name, last["status"], last["wall_s"], last["said"]))
        else:
            said = f"behind others after {last.get('rounds')} rounds"
            self._book.note(Row(name, "ended early", last.get("time_total_s", 0.0), said))

    def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        name, last = self._names[trial.config["place"]], trial.last_result or {}
        said = "its process ended, for which a lack of memory may be the cause, or could not tell what became of it"
        self._book.note(Row(name, "failed", last.get("time_total_s", 0.0), said))


class _Halving(FIFOScheduler):
    """ASHA among trials that differ in the keys of `early.over` only (Li et al. 2020, arXiv 1810.05934, algorithm 2).

    A trial that comes to a rung, `grace` times a power of `reduction` rounds, goes on if it is among the best
    1/`reduction` of those that have come there. Where a study goes on, the scheduler is told of the evaluations that
    there are, in their order.
    """

    def __init__(self, early: Early, study: Study, where: Path, made: Sequence[_Made]) -> None:
        super().__init__()
        self._early, self._names = early, [one.trial.name for one in made]
        self._groups = {trial.name: trial.without(early.over) for trial in study.trials}
        judged = {self._groups[one.trial.name]: one for one in made}
        self._sign = {group: 1 if one.higher_is_better else -1 for group, one in judged.items()}
        self._rungs: dict[tuple[str, int], dict[str, float]] = {}
        for trial in study.trials:
            if like := judged.get(self._groups[trial.name]):
                with contextlib.suppress(DataError):  # it has not come to an evaluation
                    curve = Curve.read(where / TRIALS / trial.name, like.headline, trial.config.evaluate.splits[-1])
                    for rounds, value in zip(curve.axes["round"].tolist(), curve.value.tolist(), strict=True):
                        self._goes_on(trial.name, rounds, _defined(value, like.higher_is_better))

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        if "rounds" not in result:  # the last report says what became of the trial
            return str(self.CONTINUE)
        goes_on = self._goes_on(self._names[trial.config["place"]], result["rounds"], result["value"])
        return str(self.CONTINUE if goes_on else self.STOP)

    def _goes_on(self, trial: str, rounds: float, value: float) -> bool:
        group, rung = self._groups[trial], self._early.grace
        if rounds < rung:
            return True
        while rung * self._early.reduction <= rounds:
            rung *= self._early.reduction
        values = self._rungs.setdefault((group, rung), {})
        if trial in values:
            return True
        values_so_far = [*values.values()]
        values[trial] = self._sign[group] * value
        cutoff = np.percentile(values_so_far, 100 * (1 - 1 / self._early.reduction)) if values_so_far else -np.inf
        return bool(values[trial] >= cutoff)
