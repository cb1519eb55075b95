"""One trial of a study, as its process plays it: data may come from another node, and results go back there."""

import contextlib
import math
import os
import shutil
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray import cloudpickle, tune

from clients.delivery import Delivery
from cluster import folder
from cluster.experiment import Experiment
from cluster.progress import number
from cluster.run import Result, played, standing
from cluster.study import STUDY, TRIALS
from raysim.errors import RaysimError, Stopped
from raysim.output import write_whole
from server.job import Progress

# Seconds between two checks of a trial whether it should stop.
LOOK_S = 1.0
# Stands for an undefined metric, with either sign. It is finite, since quantiles are taken of it.
WORST = sys.float_info.max / 4


@dataclass(frozen=True)
class Task:
    """The task that the process of a trial is given.

    Attributes:
        experiment: the prepared experiment, pickled, since its shards can only be opened once they are on its node.
        data: the delivery that brings the shards there.
        keeper: the name and namespace of the study's Keeper.
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
    """Runs on the node of the study's folder, knows whether trials should stop, and takes the files that they send."""

    def __init__(self, study: Path) -> None:
        self._study, self._stopping = study, False

    def stop(self) -> None:
        """Makes all trials stop after their present rounds."""
        self._stopping = True

    def stopping(self) -> bool:
        """Returns whether trials should stop."""
        return self._stopping

    def take(self, trial: str, files: Mapping[str, bytes]) -> None:
        """Writes files, by their path in the trial's folder, into it."""
        for name, content in files.items():
            path = self._study / TRIALS / trial / name
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, content)


def play(config: Mapping[str, int], tasks: Sequence[Task]) -> None:
    """Plays a trial in its own process. Its last report gives its fate; Tune never sees the trial's own errors."""
    task, started = tasks[config["place"]], time.monotonic()
    # Tune gives an ended trial this long to finish, then kills its process and with it the next trial.
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
                    sys.exit()  # Tune expects this of a trial that it has ended
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
        shutil.rmtree(where, ignore_errors=True)  # removes the rest of a trial that hardly began
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
    """Returns an experiment that writes into the study's folder; checkpoints elsewhere get a folder of its name."""
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
        tune.report({"rounds": report.round, "value": defined(value, experiment.higher_is_better)})
    except SystemExit:  # this is how Tune ends a trial
        raise _Behind("ended early: it is behind the others of its kind") from None


def defined(value: float | None, higher_is_better: bool) -> float:
    """Returns a metric's value; an undefined one counts as the worst."""
    if value is not None and math.isfinite(value):
        return value
    return -WORST if higher_is_better else WORST


@contextlib.contextmanager
def _asked(keeper: Any) -> Any:
    """Yields an event that is set once the study should stop."""
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
    """Copies a trial's files, without checkpoints, into the study's folder from a node that does not share it."""
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
