"""One experiment from configuration to plots."""

import contextlib
import json
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import ray
import torch
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from torch import Tensor

from clients.actors.fleet import RayFleet, own_namespace
from clients.actors.store import lost, original
from clients.actors.tasks import START_S
from clients.fleet import InProcessFleet
from cluster import connect, folder, forecast, observers, plots, summary
from cluster.config import Config, load_config
from cluster.experiment import Experiment
from cluster.tree import flat
from raysim.errors import CheckpointError, ConfigError, ResultLost, Stopped, WorkerLost
from server.actor import ServerActor
from server.job import Progress
from server.rounds import Server


@dataclass(frozen=True)
class Result:
    """A finished run.

    Attributes:
        folder: the folder of everything that it wrote.
        headline: the problem's main metric.
    """

    folder: Path
    headline: str

    @property
    def metrics(self) -> pa.Table:
        """A row per evaluation, split and metric; columns as in server.ledger.METRICS."""
        return pq.read_table(self.folder / "metrics.parquet")

    @property
    def rounds(self) -> pa.Table:
        """A row per phase; columns as in server.ledger.ROUNDS."""
        return pq.read_table(self.folder / "rounds.parquet")

    @property
    def model(self) -> dict[str, Tensor]:
        """The final point by part: network parameters under their own names, then the dual and other variables."""
        parts: dict[str, Tensor] = torch.load(self.folder / "model.pt", weights_only=True)
        return parts

    @property
    def splits(self) -> list[str]:
        """The splits that were evaluated: those asked for that have rows."""
        return list(dict.fromkeys(self.metrics["split"].to_pylist()))

    @property
    def summary(self) -> dict[str, Any]:
        """The run in a few numbers; keys as in cluster.summary.write."""
        found: dict[str, Any] = json.loads((self.folder / "summary.json").read_text())
        return found

    def final(self, metric: str | None = None, split: str = "test") -> float | None:
        """The last value of a metric (the headline, if none is named); None where it is undefined."""
        rows = [r for r in self.metrics.to_pylist() if r["metric"] == (metric or self.headline) and r["split"] == split]
        if not rows:
            raise KeyError(f"no metric {metric or self.headline!r} on split {split!r}")
        value: float | None = rows[-1]["value"]
        return value


Watch = Callable[[Progress], None]
Started = Callable[[Experiment, Path], None]

# Keys of a configuration that change none of a run's numbers, so that it may go on with others.
FREE = (
    "server.bad_results",  # it decides whether a run stops, and changes no number before that
    "clients.fleet", "clients.per_actor", "clients.actors", "clients.num_cpus", "clients.resources",
    "clients.timeout_s", "clients.retries",
    "ray", "output", "checkpoint", "evaluate.target", "evaluate.stop_at_target", "evaluate.pictures", "rounds",
)  # fmt: skip


def run(
    config: Config,
    watch: Watch | None = None,
    started: Started | None = None,
    notice: Callable[[str], None] = lambda line: None,
    stop: threading.Event | None = None,
) -> Result:
    """Runs an experiment.

    Args:
        config: from load_config, or made in Python.
        watch: called before the first round and after each.
        started: called once, with the experiment and the run's folder, before the first round.
        notice: told a line about each slow step before that.
        stop: once it is set, the run ends after the round that is being played.

    Raises:
        ConfigError, DataError, PlacementError: before any round.
        ClientError: with the client, round, phase and traceback of a fault in client code.
        Stopped: after `stop`, where rounds were left.
    """
    experiment = _fitting(Experiment.build(config)).prepared(notice)
    where = folder.fresh(config.output.folder, config.name)
    folder.describe(where, experiment.resolved)
    return played(experiment, where, None, watch, started, notice, stop)


def resume(
    where: Path,
    overrides: Sequence[str] = (),
    rounds: int | None = None,
    watch: Watch | None = None,
    started: Started | None = None,
    notice: Callable[[str], None] = lambda line: None,
    stop: threading.Event | None = None,
) -> Result:
    """Goes on with a run that was broken off, to the numbers that it would have given, or lets it have more rounds.

    Args:
        where: the run's folder.
        overrides: as in load_config, for keys that change none of the run's numbers.
        rounds: the rounds of the checkpoint to go on from; None is the latest.

    Raises:
        CheckpointError: there is no checkpoint, it is damaged, or its run had another configuration.
        All errors that `run` raises.
    """
    where = where.expanduser().absolute()
    experiment = _fitting(Experiment.build(load_config(where / "config.yaml", overrides)))
    done = standing(experiment, where, rounds)
    folder.write_config(where, experiment.resolved)
    return played(experiment.prepared(notice), where, done, watch, started, notice, stop)


def standing(experiment: Experiment, where: Path, rounds: int | None = None) -> int:
    """Returns the rounds after which a broken-off run goes on: those of its latest checkpoint, or `rounds`.

    Raises CheckpointError where there is no such checkpoint, or it is of another run, and ConfigError where the
    configuration has fewer rounds.
    """
    found, config = experiment.checkpoints(where).load(rounds)
    _require_same(config, experiment.identity)
    if found.rounds > experiment.config.rounds:
        raise ConfigError("rounds", f"is {experiment.config.rounds}, and {found.rounds} are done")
    return found.rounds


def _fitting(experiment: Experiment) -> Experiment:
    """Returns the experiment. Raises PlacementError where Ray is to be started here and the machine has no room."""
    if experiment.config.clients.fleet == "ray" and connect.starts_here(experiment.config.ray.address):
        forecast.placement(experiment, [connect.machine()])  # refuses before Ray starts
    return experiment


def played(
    experiment: Experiment,
    where: Path,
    resume_from: int | None = None,
    watch: Watch | None = None,
    started: Started | None = None,
    notice: Callable[[str], None] = lambda line: None,
    stop: threading.Event | None = None,
) -> Result:
    """Plays a prepared experiment, from its beginning or a checkpoint, in a folder that has its configuration.

    Args:
        resume_from: the rounds of the checkpoint to go on from; None begins with round 0.
    """
    if started:
        started(experiment, where)
    stop = stop or threading.Event()
    done, over = resume_from or 0, False
    with observers.observed(experiment, where, done, notice) as observed:
        if experiment.config.clients.fleet == "ray":
            played = _over_ray(experiment, where, resume_from, observed.notice, stop)
        else:
            played = _in_process(experiment, where, resume_from, stop)
        with contextlib.closing(played) as progress:
            for report in progress:
                done, over = report.round, experiment.over(report)
                observed(report)
                if watch:
                    watch(report)
        if not over:
            raise Stopped(
                f"stopped after {done} of {experiment.config.rounds} rounds; go on with: raysim run --resume {where}"
            )
    summary.write(where, experiment)
    plots.draw(where, experiment.headline)
    return Result(where, experiment.headline)


def _require_same(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises CheckpointError naming the keys in which two configurations differ; those of FREE may differ."""
    # Equal shards are the same rows at the same clients, so that data files may have been moved or copied.
    may = (*FREE, "data", "partition") if before["shards"] == now["shards"] else FREE
    old, new = flat(before), flat(now)
    differ = [
        f"{key} was {old.get(key)!r} and is {new.get(key)!r}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key) and not any(key == free or key.startswith(f"{free}.") for free in may)
    ]
    if differ:
        raise CheckpointError(f"the checkpoint is of another run: {'; '.join(differ)}")


@contextlib.contextmanager
def heard(stop: threading.Event, tell: Callable[[], object]) -> Iterator[None]:
    """Calls `tell` as soon as `stop` is set, while the block lasts."""
    over = threading.Event()

    def wait() -> None:
        while not over.is_set():
            if stop.wait(timeout=0.2):
                tell()
                return

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _in_process(
    experiment: Experiment, where: Path, resume_from: int | None, stop: threading.Event
) -> Generator[Progress, None, None]:
    job, fleet = experiment.job(where), InProcessFleet(experiment.engine(), experiment.config.clients.threads)
    server = Server(job, fleet)
    if resume_from is not None:
        server.restore(job.checkpoints.load(resume_from)[0])
    with heard(stop, server.stop):
        yield from server.run()


def _over_ray(
    experiment: Experiment,
    where: Path,
    resume_from: int | None,
    notice: Callable[[str], None],
    stop: threading.Event,
) -> Generator[Progress, None, None]:
    """Plays a run over Ray, which repeats tasks of dead client actors. A dead server restarts from a checkpoint."""
    config, job = experiment.config, experiment.job(where)
    reached, losses, starts = -1, 0, 0
    with connect.session(config.ray.address):
        place = partial(forecast.placement, experiment)
        placement = connect.placed(place, config.clients.bundle, config.ray.wait_s, notice, stop)
        notice(f"client actors: {placement.words}")
        if stored := forecast.stored(experiment, placement, connect.nodes()):
            notice(stored)
        within_s = max(START_S, config.ray.wait_s)
        fleet = RayFleet.start(experiment.engine(), config.clients, placement, where.name, notice, stop, within_s)
        # The server runs on this node, so that its files land here and nodes need not share storage.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        try:
            while True:
                server = ServerActor.options(  # type: ignore[attr-defined]
                    name=f"{where.name}:server-{starts}", namespace=own_namespace(), scheduling_strategy=here
                ).remote(job, fleet, resume_from)
                try:
                    with heard(stop, server.stop.remote):
                        for ref in server.run.options(num_returns="streaming").remote():
                            report = ray.get(ref)
                            if report.round > reached:
                                reached, losses = report.round, 0
                            yield report
                    return
                except RayTaskError as error:
                    loss = original(error)
                    if not isinstance(loss, ResultLost):
                        raise loss from None
                except RayError as error:  # the server's own process has died
                    loss = WorkerLost(f"the server ended {losses + 1} times; the last time {lost(error)}")
                finally:
                    ray.kill(server)
                starts, losses = starts + 1, losses + 1
                if losses > config.clients.retries:
                    raise loss from None
                resume_from = job.checkpoints.latest()
                notice(f"{loss}; going on after {resume_from or 0} rounds")
        finally:
            fleet.end()
