"""Clients' own models, evaluated on their own tests."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from clients.fleet import InProcessFleet
from cluster import load_config, plots, resume, run
from cluster.experiment import Experiment
from raysim.batch import Batch
from raysim.errors import ConfigError
from raysim.point import Point
from server.rounds import Server
from tests import play
from tests.contracts.table import settings
from tests.play import experiment, server

OWN: dict[str, Any] = play.OWN | {
    "rounds": 3,
    "partition": play.OWN["partition"] | {"clients": 12},
    "model": {"name": "mlp", "hidden": [8]},
    "evaluate": {"every": 2},
}
IN_PROCESS = {"fleet": "in_process"}
ALONE = {"name": "tests.toys:Alone"}


def accuracy(made: Experiment, z: Point, client: int, split: str) -> float:
    """By hand, of the client's rows."""
    shards = made.shards
    offsets = shards.offsets_N1 if split == "train" else shards.test_offsets_N1
    rows = np.arange(*offsets[client : client + 2])  # type: ignore[index]
    inputs, labels = shards.inputs(rows, split, torch.float64), shards.labels(rows, split)  # type: ignore[arg-type]
    logits = made.problem.outputs(z, Batch(inputs, labels, torch.ones(len(rows))))
    return float((logits.argmax(1) == labels).double().mean())


@pytest.mark.parametrize("engine", ["loop", "vectorized"])
def test_each_client_is_evaluated_at_its_own_model_on_its_own_rows(engine: str, tmp_path: Path) -> None:
    made = experiment(OWN, ALONE, clients={"engine": engine}, evaluate={"splits": ["train", "test"]})
    playing = server(made, tmp_path)
    *_, last = playing.run()
    start = made.problem.init(0).to(torch.float64)
    for split in ("train", "test"):
        mine = [accuracy(made, playing.memory.get(i, start), i, split) for i in range(12)]
        found = last.metrics[split]  # type: ignore[index]
        assert found["accuracy"] == pytest.approx(np.mean(mine), rel=1e-12)
        assert found["accuracy_worst"] == pytest.approx(min(mine), rel=1e-12)
        assert found["accuracy_std"] == pytest.approx(np.std(mine), rel=1e-9)
        assert found["never_took_part"] == 12 - len(playing.memory) > 0
        rows = [
            row
            for row in pq.read_table(tmp_path / "clients.parquet").to_pylist()
            if (row["round"], row["split"], row["metric"]) == (3, split, "accuracy")
        ]
        assert [row["client"] for row in rows] == list(range(12))
        assert [row["took_part"] for row in rows] == [i in playing.memory for i in range(12)]
        np.testing.assert_allclose([row["value"] for row in rows], mine, rtol=1e-12)
    assert len({round(value, 6) for value in mine}) > 3, "clients differ"
    assert not any(name.startswith("pooled") for name in last.metrics["test"])


def test_a_common_model_is_evaluated_by_client_and_pooled(tmp_path: Path) -> None:
    made = experiment(
        OWN | {"partition": {"name": "dirichlet", "clients": 9, "alpha": 1.0, "test_fraction": 0.4}}, settings("cd_ma")
    )
    playing = server(made, tmp_path)
    *_, last = playing.run()
    tests_N = np.diff(made.shards.test_offsets_N1)
    assert len(set(tests_N.tolist())) > 1
    mine = np.array([accuracy(made, playing.point, i, "test") for i in range(9)])
    assert last.metrics["test"]["accuracy"] == pytest.approx(mine.mean(), rel=1e-12)
    assert last.metrics["test"]["pooled_accuracy"] == pytest.approx((tests_N * mine).sum() / tests_N.sum(), rel=1e-12)


def test_without_tests_of_their_own_nothing_is_by_client(tmp_path: Path) -> None:
    plain = {key: value for key, value in OWN["partition"].items() if key != "test_fraction"}
    made = experiment(OWN | {"partition": plain}, settings("cd_ma"))
    *_, last = server(made, tmp_path).run()
    assert set(last.metrics["test"]) == {"accuracy", "value"}
    assert not (tmp_path / "clients.parquet").exists()


def test_own_models_need_tests_of_their_own() -> None:
    plain = {key: value for key, value in OWN["partition"].items() if key != "test_fraction"}
    with pytest.raises(ConfigError, match=r"partition\.test_fraction: is needed by tests\.toys:Alone"):
        experiment(OWN | {"partition": plain}, ALONE)
    experiment(OWN | {"partition": plain}, ALONE, evaluate={"splits": ["train"]})


def test_a_client_without_test_rows_counts_for_nothing(tmp_path: Path) -> None:
    made = experiment(
        OWN | {"partition": {"name": "quantity_skew", "clients": 40, "alpha": 0.2, "test_fraction": 0.3}}, ALONE
    )
    tests_N = np.diff(made.shards.test_offsets_N1)
    assert np.any((tests_N == 0) & (made.shards.rows_N > 0))
    playing = Server(made.job(tmp_path), InProcessFleet(made.engine()))
    first = next(playing.run())
    z = playing.point
    mine = [accuracy(made, z, i, "test") for i in np.flatnonzero((tests_N > 0) & (made.shards.rows_N > 0)).tolist()]
    assert first.metrics["test"]["accuracy"] == pytest.approx(np.mean(mine), rel=1e-12)


@pytest.mark.slow
@pytest.mark.ray
def test_actors_find_the_same_and_a_run_goes_on_with_it(ray_cluster: None, tmp_path: Path) -> None:
    tree = OWN | {"algorithm": ALONE, "output": {"folder": str(tmp_path)}, "checkpoint": {"every": 2}}
    here = run(load_config(tree | {"name": "here", "clients": IN_PROCESS}))
    there = run(load_config(tree | {"name": "there", "clients": {"actors": 2, "num_cpus": 0.1}}))
    short = run(load_config(tree | {"name": "short", "rounds": 2, "clients": IN_PROCESS}))
    longer = resume(short.folder, ["rounds=3"])
    for other in (there, longer):
        for name in ("clients", "metrics"):
            ours, theirs = (pq.read_table(at.folder / f"{name}.parquet") for at in (here, other))
            drop = [column for column in ours.column_names if column == "wall_s"]
            assert ours.drop_columns(drop).equals(theirs.drop_columns(drop))


def test_the_spread_over_clients_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: dict[str, Figure] = {}
    monkeypatch.setattr(plots, "save", lambda figure, out: drawn.update({out.stem: figure}))
    made = run(load_config(OWN | {"algorithm": ALONE, "output": {"folder": str(tmp_path)}, "clients": IN_PROCESS}))
    (ax,) = drawn["accuracy_by_client"].axes
    best = json.loads((made.folder / "summary.json").read_text())["best"]["test"]
    labels = [text.get_text() for text in ax.get_legend().get_texts()]  # type: ignore[union-attr]
    assert len(labels) == (1 if best["round"] == 3 else 2)
    assert labels[0].startswith("last, round 3: mean ")
    heights = [patch.get_height() for patch in ax.patches if isinstance(patch, Rectangle)]
    assert sum(heights) == 12 * len(labels), "each client once"
