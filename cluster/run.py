"""One experiment from configuration to plots."""

import contextlib
import json
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import ray
import torch
from ray.exceptions import RayTaskError
from torch import Tensor

from clients.fleet import InProcessFleet
from clients.ray_fleet import RayFleet, original
from cluster import connect, folder, plots, summary
from cluster.config import Config
from cluster.experiment import Experiment
from server.actor import ServerActor
from server.rounds import Progress, Server


@dataclass(frozen=True)
class Result:
    """A finished run.

    Attributes:
        folder: everything it wrote.
        headline: its problem's main metric.
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


def run(
    config: Config,
    watch: Watch | None = None,
    started: Started | None = None,
    notice: Callable[[str], None] = lambda line: None,
) -> Result:
    """Runs an experiment.

    Args:
        config: from load_config, or made in Python.
        watch: called before the first round and after each.
        started: called once, with what is about to run and its folder.
        notice: told a line about what takes long before that.

    Raises:
        ConfigError, DataError, PlacementError: before any round.
        ClientError: with the client, round, phase and traceback of a fault in client code.
    """
    experiment = Experiment.build(config)
    over_ray = config.clients.fleet == "ray"
    if over_ray and connect.starts_here(config.ray.address):
        experiment.placement(connect.machine())  # what cannot fit is refused before Ray starts
    experiment = experiment.prepared(notice)
    where = folder.make(config.output.folder, config.name, experiment.resolved)
    if started:
        started(experiment, where)
    with contextlib.closing((_over_ray if over_ray else _in_process)(experiment, where)) as progress:
        for report in progress:
            if watch:
                watch(report)
    summary.write(where, experiment)
    plots.draw(where, experiment.problem.headline)
    return Result(where, experiment.problem.headline)


def _in_process(experiment: Experiment, where: Path) -> Generator[Progress, None, None]:
    fleet = InProcessFleet(experiment.engine(), experiment.config.clients.threads)
    yield from Server(experiment.job(where), fleet).run()


def _over_ray(experiment: Experiment, where: Path) -> Generator[Progress, None, None]:
    config = experiment.config
    with connect.session(config.ray.address) as has:
        fleet = RayFleet.start(experiment.engine(), config.clients, experiment.placement(has))
        server = ServerActor.remote(experiment.job(where), fleet)  # type: ignore[attr-defined]
        try:
            for ref in server.run.options(num_returns="streaming").remote():
                yield ray.get(ref)
        except RayTaskError as error:
            raise original(error) from None
        finally:
            # In a connection that outlives this run the actors would too.
            for actor in (server, *fleet.actors):
                ray.kill(actor)
