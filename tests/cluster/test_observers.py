"""A run's log, and the loggers that are told of it."""

import math
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cluster import load_config, resume, run
from cluster.observers import Log
from raysim.errors import ClientError, ConfigError, Stopped
from server.job import Progress
from server.rounds import Server
from tests.contracts.table import settings
from tests.play import QUADRATIC
from tests.same import differences, log

OTHERS_WARNINGS = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning"
)
PHONES = {"availability": {"name": "markov", "share": 0.6, "mean_on_s": 300}, "failure": {"p_start": 0.3}}


def tree(tmp_path: Path, **sections: Any) -> dict[str, Any]:
    here = {"clients": {"fleet": "in_process"}, "output": {"folder": str(tmp_path / "runs")}, "evaluate": {"every": 3}}
    return QUADRATIC | here | {"algorithm": settings("cd_mage", S=4), "rounds": 7} | sections


def stopped_after(rounds: int, made: dict[str, Any]) -> Path:
    """The folder of a run that was stopped."""
    stop, found = threading.Event(), []

    def watch(report: Any) -> None:
        if report.round >= rounds:
            stop.set()

    with pytest.raises(Stopped):
        run(load_config(made), watch=watch, started=lambda _, folder: found.append(folder), stop=stop)
    return found[0]


def test_the_log_tells_what_the_tables_hold(tmp_path: Path) -> None:
    result = run(load_config(tree(tmp_path, devices=PHONES)))
    first, *events, last = log(result.folder)
    assert (first["event"], first["rounds"], first["done"]) == ("start", 7, 0)
    assert (last["event"], last["outcome"]) == ("end", "finished")
    rows = result.rounds.to_pylist()
    logged = [(event["round"], phase) for event in events if event["event"] == "round" for phase in event["phases"]]
    assert len(logged) == len(rows)
    for row, (done, phase) in zip(rows, logged, strict=True):
        assert done == row["round"] + 1
        assert {key: row[key] for key in phase} == phase
        assert {"phase", "accepted", "late", "dropped_failed", "bytes_up", "wall_s", "plan_s", "clients_s"} <= set(
            phase
        )
        assert 0 < row["plan_s"] + row["clients_s"] < row["wall_s"]
    evaluated = {
        (event["round"], split, name): value
        for event in events if event["event"] == "evaluation"
        for split, values in event["metrics"].items() for name, value in values.items()
    }  # fmt: skip
    assert evaluated == {
        (row["round"], row["split"], row["metric"]): row["value"] for row in result.metrics.to_pylist()
    }
    assert [event["round"] for event in events if event["event"] == "evaluation"] == [0, 3, 6, 7]


def test_the_log_goes_on_where_the_run_does_and_says_how_it_ended(tmp_path: Path) -> None:
    folder = stopped_after(2, tree(tmp_path))
    assert log(folder)[-1]["outcome"] == "stopped"
    done = max(event.get("round", 0) for event in log(folder))
    resume(folder)
    events = log(folder)
    assert [event["done"] for event in events if event["event"] == "start"] == [0, done]
    assert [event["round"] for event in events if event["event"] == "round"] == list(range(1, 8))

    broken = tree(tmp_path, name="broken", problem={"name": "tests.toys:Faulty", "limit": 0.0})
    with pytest.raises(ClientError):
        run(load_config(broken))
    (folder,) = (tmp_path / "runs").glob("broken-*")
    assert log(folder)[-1]["outcome"] == "failed"
    assert log(folder)[-1]["why"].startswith("ClientError: client ")


def scalars(folder: Path) -> dict[str, dict[int, float]]:
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return {tag: {event.step: event.value for event in events.Scalars(tag)} for tag in events.Tags()["scalars"]}


def test_tensorboard_shows_metrics_and_rounds_also_of_a_run_that_went_on(tmp_path: Path) -> None:
    output = {"folder": str(tmp_path / "runs"), "loggers": ["tensorboard"]}
    folder = stopped_after(4, tree(tmp_path, output=output, checkpoint={"every": 1}))
    result = resume(folder)
    shown = scalars(folder)
    for row in result.metrics.to_pylist():
        assert shown[f"{row['metric']}/{row['split']}"][row["round"]] == pytest.approx(row["value"], rel=1e-6)
    assert shown["accepted/update"] == dict.fromkeys(range(1, 8), 4.0)
    assert set(shown["bytes_up"]) == set(range(1, 8))
    assert not differences(folder, run(load_config(tree(tmp_path))).folder), "it changes nothing"


@pytest.fixture
def mlflow_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where MLflow keeps its runs: a server's client and a folder's have one interface, and this needs no server."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path}/mlruns")
    return tmp_path / "mlruns"


@OTHERS_WARNINGS
def test_mlflow_has_settings_metrics_and_the_outcome(tmp_path: Path, mlflow_folder: Path) -> None:
    output = {"folder": str(tmp_path / "runs"), "loggers": ["mlflow"]}
    folder = stopped_after(4, tree(tmp_path, output=output))
    client = MlflowClient(f"file://{mlflow_folder}")
    experiment = client.get_experiment_by_name("raysim")
    (kept,) = client.search_runs([experiment.experiment_id])
    assert (kept.info.run_name, kept.info.status) == (folder.name, "KILLED")
    assert kept.data.params["algorithm.S"] == "4"
    result = resume(folder)
    (kept,) = client.search_runs([experiment.experiment_id])
    assert kept.info.status == "FINISHED"
    for row in result.metrics.to_pylist():
        history = client.get_metric_history(kept.info.run_id, f"{row['metric']}/{row['split']}")
        assert {point.step: point.value for point in history}[row["round"]] == row["value"]


@OTHERS_WARNINGS
def test_a_logger_that_fails_ends_nothing(tmp_path: Path, mlflow_folder: Path) -> None:
    told: list[str] = []

    def watch(report: Any) -> None:
        if report.round == 2:
            shutil.rmtree(mlflow_folder)
            mlflow_folder.touch()

    output = {"folder": str(tmp_path / "runs"), "loggers": ["mlflow"]}
    result = run(load_config(tree(tmp_path, output=output)), watch=watch, notice=told.append)
    (warning,) = told
    assert warning.startswith("warning: mlflow failed and is told no more: ")
    assert [event["notice"] for event in log(result.folder) if event["event"] == "notice"] == told
    assert len(result.rounds) == 14


@OTHERS_WARNINGS
def test_a_logger_that_is_not_there_is_an_error_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    output = {"folder": str(tmp_path / "runs"), "loggers": ["mlflow"]}
    with pytest.raises(ConfigError, match=r"output.loggers: mlflow is not installed: pip install mlflow-skinny"):
        run(load_config(tree(tmp_path, output=output)))
    monkeypatch.undo()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(ConfigError, match=r"output.loggers: mlflow cannot be used: .*127.0.0.1"):
        run(load_config(tree(tmp_path, output=output)))


def test_the_log_has_each_round_once_however_a_run_was_broken_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An evaluated round is told of when the next one is played; if that fails, the checkpoint may be of that round."""
    play = Server.play

    def failing(server: Server, t: int) -> None:
        if t == 3:
            raise OSError("somebody pulled a plug")
        play(server, t)

    made = tree(tmp_path, checkpoint={"every": 3})
    with monkeypatch.context() as patch:
        patch.setattr(Server, "play", failing)
        with pytest.raises(OSError, match="plug"):
            run(load_config(made))
    (folder,) = (tmp_path / "runs").iterdir()
    with (folder / "log.jsonl").open("a") as file:
        file.write('{"time": "2026-01-02T03:04:05.678+00:00", "event": "rou')  # as a process that is killed leaves it
    resume(folder)
    assert [event["round"] for event in log(folder) if event["event"] == "round"] == list(range(1, 8))
    assert [event["round"] for event in log(folder) if event["event"] == "evaluation"] == [0, 3, 6, 7]


def test_the_log_is_json_whatever_metrics_there_are(tmp_path: Path) -> None:
    report = Progress(3, 5, {"test": {"auc": math.inf, "loss": math.nan, "value": 0.5}}, True, 0, 0, None)
    Log(tmp_path)(report)
    (event,) = log(tmp_path)
    assert event["metrics"] == {"test": {"auc": None, "loss": None, "value": 0.5}}
    made = tree(tmp_path, problem={"name": "tests.toys:Measured"})
    result = run(load_config(made))
    assert {row["value"] for row in result.metrics.to_pylist() if row["metric"] == "half"} == {0.5}
