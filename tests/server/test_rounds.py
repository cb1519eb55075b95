"""The round loop and its ledger."""

import json
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.metrics import roc_auc_score

from raysim.algorithms.cd_ma import CDMA, Update
from raysim.batch import Batch
from raysim.errors import ConfigError
from raysim.phase import LocalSteps, Reply, Uniform
from raysim.problems import Problem
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
    measured = tables["metrics"].to_pylist()
    assert [row["round"] for row in measured if (row["split"], row["metric"]) == ("test", "auc")] == [0, 2, 4, 5]
    for row in measured:  # although the next round is played meanwhile
        before = [r for r in rounds if r["round"] < row["round"]]
        assert row["bytes_up"] == reports[row["round"]].bytes_up == sum(r["bytes_up"] for r in before)
        assert row["wall_s"] == pytest.approx(sum(r["wall_s"] for r in before))


def test_rows_and_device_time_are_those_of_all_passes(tmp_path: Path) -> None:
    devices = {"availability": {"name": "always"}, "compute": {"sigma": 0, "jitter_cv": 0}}
    ideal = {"over_select": 1.0, "close": "wait_all", "deadline_s": 1e8}
    made = experiment(QUADRATIC, {"name": "tests.toys:SeveralPasses"}, devices=devices, server=ideal)
    playing = server(made, tmp_path)
    playing.play(0)
    (row,) = playing.ledger.tables()["rounds"].to_pylist()
    assert row["rows"] == 4 * (3 * 2 + 2 * 3 + 6), "clients, minibatches of 2 and of 3, the shard of 6"
    gradients = 4 * (3 * 2 + 2 * (2 * 3) + 6)  # the second pass computes two for each row
    assert row["compute_s"] == pytest.approx(gradients * made.world.population.sec_per_sample_N[0])


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


def test_what_was_evaluated_before_a_round_failed_is_written(tmp_path: Path) -> None:
    algorithm = settings("cd_ma") | {"name": "tests.server.test_rounds:Ending"}
    with pytest.raises(ZeroDivisionError):
        list(server(experiment(QUADRATIC, algorithm, rounds=9), tmp_path).run())
    measured = pq.read_table(tmp_path / "metrics.parquet").to_pylist()
    assert {row["round"] for row in measured} == {0, 1, 2, 3}
    assert not (tmp_path / "model.pt").exists()


@dataclass(frozen=True, kw_only=True)
class Ending(CDMA):
    """CD-MA that has no more than three rounds."""

    def phases(self, t: int) -> tuple[Update]:
        if t == 3:
            raise ZeroDivisionError
        return super().phases(t)


def test_state_memory_and_clock_are_all_that_a_run_goes_on_from(tmp_path: Path) -> None:
    devices = {"availability": {"name": "markov", "share": 0.6, "mean_on_s": 300}}
    made = experiment(
        QUADRATIC, {"name": "tests.toys:Remembering", "S": 3}, devices=devices, data={"clients": 40}, rounds=6
    )
    whole, first, second = (server(made, tmp_path) for _ in range(3))
    for t in range(3):
        whole.play(t)
        first.play(t)
    second.state, second.memory, second.clock = pickle.loads(pickle.dumps((first.state, first.memory, first.clock)))
    assert second.memory
    for t in range(3, 6):
        whole.play(t)
        second.play(t)
    assert torch.equal(second.point.x, whole.point.x)
    assert torch.equal(second.point.y, whole.point.y)
    assert second.clock.now_s == whole.clock.now_s > first.clock.now_s > 0


class Growing(Update):
    """Uploads a number for each row that it has seen: of a shape that only the work can tell."""

    def start(self, sent: Any, memory: None) -> Any:
        return sent, sent.x[:0]

    def step(self, problem: Problem, sent: Any, carry: Any, batch: Batch) -> Any:
        return carry[0], torch.cat([carry[1], batch.weights])

    def finish(self, sent: Any, carry: Any) -> Reply[Any]:
        return Reply(carry)

    def absorb(self, state: Any, mean: Any, accepted: int) -> Any:
        return mean[0]


@dataclass(frozen=True, kw_only=True)
class Grown(CDMA):
    """CD-MA whose uploads grow with the rows that a client steps through; a dry run has one row a step."""

    def phases(self, t: int) -> tuple[Update]:
        return (Growing(Uniform(self.S), LocalSteps(self.K, self.batch), eta=self.eta, gamma=self.gamma),)


def test_an_upload_of_another_size_than_was_booked_stops_the_run(tmp_path: Path) -> None:
    algorithm = settings("cd_ma") | {"name": "tests.server.test_rounds:Grown"}
    playing = server(experiment(QUADRATIC, algorithm), tmp_path)
    before = playing.state
    with pytest.raises(ConfigError) as caught:
        playing.play(0)
    assert str(caught.value).startswith(
        f"algorithm.name: in round 0, phase 'update', the accepted clients uploaded {4 * (7 + 8) * 8} bytes together, "
        f"and {4 * (7 + 4) * 8} are booked; Growing.finish must return tensors whose shapes"
    )
    assert playing.state is before


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


def test_a_network_that_saturates_is_told_of_when_it_happens_and_once(tmp_path: Path) -> None:
    made = experiment(DIGITS, settings("cd_ma", eta=300.0, gamma=0.1), rounds=2, server={"max_norm": 1e18})
    told = [(report.round, text) for report in server(made, tmp_path).run() for text in report.warnings]
    assert len(told) == 1
    (first, warning), metrics = told[0], pq.read_table(tmp_path / "metrics.parquet").to_pylist()
    spread = {r["round"]: r["value"] for r in metrics if (r["split"], r["metric"]) == ("train", "score_std")}
    assert "all scores are the same" in warning
    assert spread[first - 1] > 1e-6 > spread[first]


class Broken(Update):
    """Its server half fails in some round, as a bug would."""

    def absorb(self, state: Any, mean: Any, accepted: int) -> Any:
        raise ZeroDivisionError("a mistake")


@dataclass(frozen=True, kw_only=True)
class BrokenLater(CDMA):
    """CD-MA whose server fails in round 2."""

    def phases(self, t: int) -> tuple[Update]:
        kind, steps = Broken if t == 2 else Update, LocalSteps(self.K, self.batch)
        return (kind(Uniform(self.S), steps, eta=self.eta, gamma=self.gamma),)


def test_a_fault_in_a_users_server_half_says_where_it_was(tmp_path: Path) -> None:
    algorithm = settings("cd_ma") | {"name": "tests.server.test_rounds:BrokenLater"}
    with pytest.raises(ZeroDivisionError, match="a mistake") as caught:
        list(server(experiment(QUADRATIC, algorithm, rounds=5), tmp_path).run())
    assert caught.value.__notes__ == ["in round 2, phase 'update', on the server"]
