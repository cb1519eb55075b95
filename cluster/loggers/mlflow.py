"""MLflow as a logger."""

import re
import time
from typing import Any

from cluster.loggers.logger import LoggedRun, Logger, Outcome, scalars
from cluster.tree import flat
from server.job import Progress

# The most parameters and metrics that MLflow takes in one call.
MLFLOW_PARAMS, MLFLOW_METRICS = 100, 1000


class MLflow(Logger):
    """A run of the MLflow experiment `raysim`; one that goes on is the same run.

    It is told of rounds when there is an evaluation: each call may be one over a network.
    """

    package = "mlflow-skinny"

    def __init__(self, run: LoggedRun) -> None:
        import mlflow
        from mlflow import entities

        self._entities, self._waiting = entities, list[Any]()
        self._client = mlflow.MlflowClient()
        known = self._client.get_experiment_by_name("raysim")
        experiment = known.experiment_id if known else self._client.create_experiment("raysim")
        mine = self._client.search_runs([experiment], f'tags.`raysim.folder` = "{run.folder}"')
        if mine:
            self._run = mine[0].info.run_id
            self._client.set_terminated(self._run, "RUNNING")
            return
        made = self._client.create_run(experiment, tags={"raysim.folder": str(run.folder)}, run_name=run.folder.name)
        self._run = made.info.run_id
        params = [(re.sub(r"[^\w./ -]", "_", key), str(value)) for key, value in flat(run.resolved).items()]
        for i in range(0, len(params), MLFLOW_PARAMS):
            batch = [entities.Param(*pair) for pair in params[i : i + MLFLOW_PARAMS]]
            self._client.log_batch(self._run, params=batch)

    def __call__(self, report: Progress) -> None:
        now_ms = int(1000 * time.time())
        told = scalars(report).items()
        self._waiting += [self._entities.Metric(name, value, now_ms, report.round) for name, value in told]
        if report.evaluated:
            self._send()

    def _send(self) -> None:
        while self._waiting:
            self._client.log_batch(self._run, metrics=self._waiting[:MLFLOW_METRICS])
            del self._waiting[:MLFLOW_METRICS]

    def end(self, outcome: Outcome) -> None:
        self._send()
        self._client.set_terminated(self._run, {"finished": "FINISHED", "stopped": "KILLED"}.get(outcome, "FAILED"))
