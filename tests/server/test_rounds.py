"""The round loop and its ledger."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.metrics import roc_auc_score

from server import ledger
from tests.contracts.table import settings
from tests.play import DIGITS, QUADRATIC, experiment, server


def test_tables_have_their_schemas_and_agree_with_each_other(tmp_path: Path) -> None:
    made = experiment(DIGITS, settings("cd_mage", S=3), rounds=5, evaluate={"every": 2})
    playing = server(made, tmp_path)
    reports = list(playing.run())
    tables = {name: pq.read_table(tmp_path / f"{name}.parquet") for name in ("rounds", "participation", "metrics")}
    assert tables["rounds"].schema.equals(ledger.ROUNDS)
    assert tables["participation"].schema.equals(ledger.PARTICIPATION)
    assert tables["metrics"].schema.equals(ledger.METRICS)

    rounds, took_part = tables["rounds"].to_pylist(), tables["participation"].to_pylist()
    assert [(r["round"], r["phase"]) for r in rounds] == [(t, p) for t in range(5) for p in ("collect", "update")]
    for row in rounds:
        mine = [p for p in took_part if (p["round"], p["phase"]) == (row["round"], row["phase"])]
        assert len(mine) == row["accepted"] == 3
        assert sum(p["rows"] for p in mine) == row["rows"]
        if row["phase"] == "collect":
            assert [p["rows"] for p in mine] == [int(made.shards.rows_N[p["client"]]) for p in mine]
        else:
            assert row["rows"] == 3 * 4 * 2  # clients, steps, rows of a batch
    assert [r.round for r in reports] == [0, 1, 2, 3, 4, 5]
    assert [r.evaluated for r in reports] == [True, False, True, False, True, True]
    assert reports[-1].bytes_up == sum(r["bytes_up"] for r in rounds)
    last = tables["metrics"].to_pylist()[-1]
    assert last["bytes_up"] == reports[-1].bytes_up


@pytest.mark.parametrize("every", [1, 3, 100])
def test_bytes_do_not_depend_on_how_often_is_evaluated(every: int, tmp_path: Path) -> None:
    playing = server(experiment(QUADRATIC, settings("cd_ma"), rounds=7, evaluate={"every": every}), tmp_path)
    *_, last = playing.run()
    assert (last.bytes_up, last.bytes_down) == (7 * 4 * 7 * 8, 7 * 4 * 7 * 8)


def test_reported_auc_is_that_of_the_pooled_scores_of_the_saved_model(tmp_path: Path) -> None:
    made = experiment(DIGITS, settings("cd_mage"), rounds=2)
    playing = server(made, tmp_path)
    *_, last = playing.run()
    parts = torch.load(tmp_path / "model.pt", weights_only=True)
    hidden = torch.nn.functional.relu
    for split, part in (("train", made.shards.train), ("test", made.shards.test)):
        x = torch.tensor(part.features, dtype=torch.float64).flatten(1) * made.shards.mul + made.shards.add
        logits = hidden(x @ parts["1.weight"].T + parts["1.bias"]) @ parts["3.weight"].T + parts["3.bias"]
        expected = roc_auc_score(part.labels == 0, torch.softmax(logits, 1)[:, 1].numpy())
        assert last.metrics[split]["auc"] == pytest.approx(expected, abs=1e-12)


def test_empty_clients_and_shards_smaller_than_a_batch_run(tmp_path: Path) -> None:
    """The report behind it: 60 rows over 100 clients, Dirichlet 0.1, batch 10, a tenth sampled."""
    sections = {"data": {"test_fraction": 0.965}, "partition": {"name": "dirichlet", "clients": 100, "alpha": 0.1}}
    made = experiment(DIGITS, settings("cd_mage", S=10, batch=10), **sections)
    assert (made.shards.rows_N == 0).any()
    assert 0 < made.shards.rows_N.sum() < 70
    *_, last = server(made, tmp_path).run()
    assert last.metrics["test"]["auc"] is not None


def test_a_run_without_a_test_split_reports_the_pool_alone(tmp_path: Path) -> None:
    made = experiment(QUADRATIC, settings("cd_ma"), evaluate={"every": 1, "splits": ["train", "test"]})
    *_, last = server(made, tmp_path).run()
    assert set(last.metrics) == {"train"}


def test_the_gold_is_kept(tmp_path: Path) -> None:
    """Short exact trajectories: they change only where streams or mathematics do, and then on purpose.

    Rewrite them with: python -m tests.golden.write
    """
    gold = json.loads((Path(__file__).parent.parent / "golden" / "quadratic.json").read_text())
    for name, expected in gold.items():
        playing = server(experiment(QUADRATIC, settings(name)), tmp_path)
        for t in range(3):
            playing.play(t)
        z = torch.cat((playing.point.x, playing.point.y)).tolist()
        np.testing.assert_allclose(z, expected, rtol=1e-9, err_msg=name)
