"""Plays the trials of a study on Ray Tune: each is a run in one process, and several share one Ray and one data cache.

A process plays trial after trial, so that it starts only once. A node that does not share the study's folder is sent
the data, and sends back the files of its trials.
"""

import csv
import io
import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_args

import ray
from ray import cloudpickle, tune
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from clients.actors.fleet import own_namespace
from clients.delivery import Delivery
from clients.placement import Node, Placement, place
from cluster import connect, folder, yaml12
from cluster.experiment import Experiment
from cluster.halving import Halving, Judged
from cluster.run import heard
from cluster.study import STUDY, TABLE, Status, Study, Trial, TrialRow, rows
from cluster.trial import Keeper, Task, play
from raysim.errors import ConfigError, PlacementError, Stopped
from raysim.output import write_whole

Say = Callable[[str], None]

# Settings of Ray Tune: it writes no files of its own, keeps the working directory, and leaves Ctrl-C to us.
SETTINGS = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "RAY_AIR_NEW_OUTPUT": "0",
}


@dataclass(frozen=True)
class _Made:
    """The parts of a built trial that are needed here: the networks of thousands would not fit into memory.

    Attributes:
        experiment: the prepared experiment, pickled.
        files: the files that it reads.
        clients: the number of its clients.
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
        # A copy drops the values that were cached while it was checked.
        packed = cloudpickle.dumps(replace(experiment))
        return cls(trial, packed, files, experiment.shards.n_clients, headline, higher)

    @property
    def bundle(self) -> dict[str, float]:
        """The resources that the trial's process reserves: those of a client actor."""
        return self.trial.config.clients.bundle

    def placed(self, nodes: Sequence[Node]) -> Placement:
        """Raises PlacementError where no node has room for the trial's process."""
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
        notice: told a line about each slow step and about every trial.
        stop: once it is set, trials end after their present rounds.

    Raises:
        ConfigError, DataError, PlacementError: before any trial is played, where one of them is wrong.
        Stopped: after `stop`, where trials were left.
    """
    made = _built(study.trials, notice)
    _fit_here(study, made)
    where = folder.fresh(study.config.folder, study.config.name)
    write_whole(where / STUDY, yaml12.dump(study.tree).encode())
    _play(study, _Book(where, [TrialRow(trial.name) for trial in study.trials], notice), made, stop)
    return where


def go_on(where: Path, overrides: Sequence[str], notice: Say, stop: threading.Event) -> Path:
    """Plays the unfinished trials of a study's folder: interrupted ones go on, those that failed are tried again.

    Trials that were ended early stay so. New trials are played where the study has grown.

    Args:
        overrides: as in Study.load.

    Raises CheckpointError where a trial's configuration has changed since it began, and all errors of `begin`.
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
    book = _Book(where, [_again(before.get(trial.name, TrialRow(trial.name))) for trial in study.trials], notice)
    made = _built([trial for trial in study.trials if trial.name in book.left], notice)
    _fit_here(study, made)
    write_whole(where / STUDY, yaml12.dump(study.tree).encode())
    _play(study, book, made, stop)
    return where


def _again(row: TrialRow) -> TrialRow:
    return row if row.status in ("finished", "ended early") else TrialRow(row.trial)


def _built(trials: Sequence[Trial], notice: Say) -> list[_Made]:
    """Builds all trials, and prepares their data and evaluations."""
    made = []
    for trial in trials:
        try:
            made.append(_Made.of(trial, Experiment.build(trial.config).prepared(notice)))
        except ConfigError as error:
            raise ConfigError(error.key, f"{error.message} (in trial {trial.name})") from None
    return made


def _fit_here(study: Study, made: Sequence[_Made]) -> None:
    """Raises PlacementError where trials would be played on this machine and one is larger than it."""
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
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # this module reports on trials itself
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
        judged = [Judged(one.trial.name, one.headline, one.higher_is_better) for one in made]
        try:
            tuner = tune.Tuner(
                tune.with_resources(
                    tune.with_parameters(play, tasks=tasks),
                    lambda given: tune.PlacementGroupFactory([bundles[given["place"]]]),
                ),
                param_space={"place": tune.grid_search(list(range(len(tasks))))},
                tune_config=tune.TuneConfig(
                    reuse_actors=True,
                    scheduler=Halving(config.early, study, where, judged) if config.early else None,
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


@dataclass
class _Book:
    """Records the fates of trials in trials.csv, and reports them.

    Attributes:
        where: the study's folder.
        rows: the rows of all trials, in order.
    """

    where: Path
    rows: list[TrialRow]
    notice: Say
    _begun: float = field(default_factory=time.monotonic)
    _done: int = 0  # trials that ended since then

    @property
    def left(self) -> list[str]:
        """The trials that have not been played yet."""
        return [row.trial for row in self.rows if row.status in ("waiting", "stopped")]

    def note(self, row: TrialRow) -> None:
        """Records a trial's fate, and reports it."""
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
        writer.writerow([one.name for one in fields(TrialRow)])
        writer.writerows([row.trial, row.status, f"{row.wall_s:.3f}", row.said] for row in self.rows)
        write_whole(self.where / TABLE, table.getvalue().encode())


class _Told(tune.Callback):
    """Hears from Tune how trials end, and records it."""

    def __init__(self, book: _Book, names: Sequence[str]) -> None:
        self._book, self._names = book, names

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune would save it for its own kind of resuming, which is not used

    def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        last = trial.last_result or {}
        name = self._names[trial.config["place"]]
        if last.get("status") in get_args(Status):
            self._book.note(TrialRow(name, last["status"], last["wall_s"], last["said"]))
        else:
            said = f"behind others after {last.get('rounds')} rounds"
            self._book.note(TrialRow(name, "ended early", last.get("time_total_s", 0.0), said))

    def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        name, last = self._names[trial.config["place"]], trial.last_result or {}
        said = "its process ended, for which a lack of memory may be the cause, or could not tell what became of it"
        self._book.note(TrialRow(name, "failed", last.get("time_total_s", 0.0), said))
