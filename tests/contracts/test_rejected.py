"""Results that cannot be used: the run stops by name, or goes on without them, in both engines and every algorithm."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from clients.fleet import InProcessFleet
from cluster import summary
from raysim.algorithms.cd_ma import CDMA, Update
from raysim.errors import ClientError, Diverged, RoundsFailed
from raysim.exchange import Order
from raysim.phase import LocalSteps, Reply, Uniform
from server.watch import STILL_ROUNDS
from tests.clients.test_engine import poisoned
from tests.contracts.table import ALL_ROWS, PERSONAL, base_of, settings
from tests.contracts.test_resume import same_ends
from tests.play import DIGITS, QUADRATIC, experiment, server

ENGINES = ["loop", "vectorized"]
FLOAT_ROWS = {"data": {"name": "tests.toys:FloatDigits"}}  # of which some may be spoilt
REJECT = {"bad_results": "reject"}
# All of which something is sent that can be looked at.
NAMES = [*(name for name in ALL_ROWS if name != "local_only"), "tests.toys:Remembering"]


def own(name: str) -> dict[str, Any]:
    return settings(name) if name in ALL_ROWS else {"name": name}


@pytest.mark.parametrize("engine", ["loop", pytest.param("vectorized", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", NAMES)
def test_a_bad_client_is_left_out_and_counted(name: str, engine: str, tmp_path: Path) -> None:
    base = base_of(name, QUADRATIC) | (FLOAT_ROWS if name in PERSONAL else {})
    made = poisoned(experiment(base, own(name), rounds=6, server=REJECT, clients={"engine": engine}), 3, np.nan)
    playing = server(made, tmp_path)
    reports = list(playing.run())
    assert np.isfinite(playing.point.norm())
    assert playing.memory.get(3) is None
    rounds, took_part = (pq.read_table(tmp_path / f"{n}.parquet").to_pylist() for n in ("rounds", "participation"))
    assert sum(row["rejected"] for row in rounds) > 0
    looked = [row for row in took_part if row["phase"] != "dual"]  # where the quadratic gives y back, whatever the rows
    assert [row["rejected"] for row in looked] == [row["client"] == 3 for row in looked]
    for row in rounds:
        mine = [p for p in took_part if (p["round"], p["phase"]) == (row["round"], row["phase"])]
        assert row["rejected"] == sum(p["rejected"] for p in mine)
        assert row["accepted"] == sum(not p["rejected"] for p in mine)
    told = [text for report in reports for text in report.warnings if "left out" in text]
    assert len(told) == 1
    assert "could not be used and were left out (3)" in told[0]
    found = summary.write(tmp_path, made)
    assert (found["rejected_results"], found["rejected_clients"]) == (sum(row["rejected"] for row in rounds), [3])


@pytest.mark.parametrize("engine", ENGINES)
def test_the_mean_is_that_of_the_others(engine: str, tmp_path: Path) -> None:
    sections = {"server": REJECT, "clients": {"engine": engine}}
    made = experiment(QUADRATIC, settings("parallel_sgda", S=8), **sections)
    playing = server(poisoned(made, 3, np.nan), tmp_path)
    start = playing.point
    playing.play(0)
    (phase,) = made.algorithm.phases(0)
    others = np.delete(np.arange(8), 3)
    blocks = made.planner.blocks(phase.works, 0, phase.name, others)
    message = phase.sends(made.algorithm.init(start))
    total, _ = InProcessFleet(made.engine()).run(Order(0, phase, message), blocks, {})
    expected = made.algorithm.point(phase.absorb(made.algorithm.init(start), total.mean(torch.float64), 7))
    assert total.weight == 7
    assert (expected - start).norm() > 0
    torch.testing.assert_close(playing.point.x, expected.x, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(playing.point.y, expected.y, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_result_that_is_finite_but_far_too_large_is_found_where_it_comes_from(engine: str, tmp_path: Path) -> None:
    made = experiment(QUADRATIC, settings("cd_mage", S=8), clients={"engine": engine})
    with pytest.raises(ClientError, match=r"client 3, round 0, phase 'collect': the upload has the norm .*e\+\d"):
        server(poisoned(made, 3, 1e30), tmp_path).play(0)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_largest_norm_can_be_chosen(engine: str, tmp_path: Path) -> None:
    made = experiment(QUADRATIC, settings("parallel_sgda", S=8), clients={"engine": engine})
    (phase,) = made.algorithm.phases(0)
    message = phase.sends(made.algorithm.init(made.problem.init(0).to(torch.float64)))
    blocks = made.planner.blocks(phase.works, 0, phase.name, np.arange(8))
    singles = [one for block in blocks for one in block.one_by_one()]
    uploads = [made.engine().run(Order(0, phase, message), one, {})[0].total for one in singles]
    norms = [float(torch.cat((upload.x, upload.y)).norm()) for upload in uploads]
    limit = float(np.median(norms))
    some = experiment(
        QUADRATIC, settings("parallel_sgda", S=8), server=REJECT | {"max_norm": limit}, clients={"engine": engine}
    )
    playing = server(some, tmp_path)
    playing.play(0)
    took_part = playing.ledger.tables()["participation"].to_pylist()
    assert [row["rejected"] for row in took_part] == [norm > limit for norm in norms]
    assert 0 < sum(row["rejected"] for row in took_part) < 8


@pytest.mark.parametrize("devices", [None, {"availability": {"name": "always"}}])
def test_a_run_without_a_single_result_ends(devices: Any, tmp_path: Path) -> None:
    policy = REJECT | {"max_norm": 1e-9, "max_failed_rounds": 2}
    made = experiment(QUADRATIC, settings("cd_mage"), rounds=9, server=policy, devices=devices)
    playing = server(made, tmp_path)
    before = playing.point
    with pytest.raises(RoundsFailed, match=r"round 2: 3 rounds in a row have failed.*; 12 results could not be used\."):
        list(playing.run())
    assert torch.equal(playing.point.x, before.x)
    rounds = pq.read_table(tmp_path / "rounds.parquet").to_pylist()
    assert [(r["round"], r["valid"], r["accepted"], r["rejected"]) for r in rounds] == [
        (t, False, 0, 4) for t in range(3)
    ]


def test_on_devices_what_is_left_out_was_wasted(tmp_path: Path) -> None:
    devices = {"availability": {"name": "always"}}
    made = experiment(
        QUADRATIC, settings("cd_ma", S=8), rounds=1, server=REJECT | {"over_select": 1.0}, devices=devices
    )
    for bad in (False, True):
        folder = tmp_path / str(bad)
        folder.mkdir()
        list(server(poisoned(made, 3, np.nan) if bad else made, folder).run())
    good, bad = (pq.read_table(tmp_path / str(which) / "rounds.parquet").to_pylist()[0] for which in (False, True))
    assert (good["accepted"], good["rejected"], bad["accepted"], bad["rejected"]) == (8, 0, 7, 1)
    assert good["bytes_up_wasted"] == good["bytes_down_wasted"] == 0
    assert bad["bytes_up_wasted"] == good["bytes_up"] / 8
    assert bad["bytes_down_wasted"] == good["bytes_down"] / 8
    assert 0 < bad["compute_s_wasted"] < bad["compute_s"] == good["compute_s"]


@pytest.mark.parametrize("devices", [None, {"availability": {"name": "always"}}])
def test_a_run_that_has_left_out_results_goes_on_to_the_bit(devices: Any, tmp_path: Path) -> None:
    every = {"evaluate": {"every": 2, "splits": ["train"]}, "checkpoint": {"every": 3}}
    policy = REJECT | {"max_failed_rounds": 9}
    # With two of eight clients, some rounds have no other than the bad one.
    made = experiment(QUADRATIC, settings("codasca", S=1), rounds=12, server=policy, devices=devices, **every)
    same_ends(poisoned(made, 3, 1e13), tmp_path, 7)


class Constant(Update):
    """Uploads what does not depend on the client, or nothing at all."""

    def finish(self, sent: Any, carry: Any) -> Reply[Any]:
        return Reply(sent if self.work.K == 1 else ())

    def absorb(self, state: Any, mean: Any, accepted: int) -> Any:
        return mean or state


@dataclass(frozen=True, kw_only=True)
class Constants(CDMA):
    """CD-MA that stands still."""

    def phases(self, t: int) -> tuple[Update]:
        steps = LocalSteps(self.K, self.batch)
        return (Constant(Uniform(self.S), steps, eta=self.eta, gamma=self.gamma),)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("K", "max_norm", "valid"), [(1, 1e12, True), (2, 1e12, True), (1, 1e-9, False)])
def test_an_upload_that_is_the_same_for_all_or_empty_has_a_norm(
    engine: str, K: int, max_norm: float, valid: bool, tmp_path: Path
) -> None:
    algorithm = settings("cd_ma", K=K) | {"name": "tests.contracts.test_rejected:Constants"}
    policy = REJECT | {"max_norm": max_norm}
    playing = server(experiment(QUADRATIC, algorithm, server=policy, clients={"engine": engine}), tmp_path)
    before = playing.point
    playing.play(0)
    (row,) = playing.ledger.tables()["rounds"].to_pylist()
    assert (row["valid"], row["accepted"], row["rejected"]) == ((True, 4, 0) if valid else (False, 0, 4))
    torch.testing.assert_close(playing.point.x, before.x)


def test_a_server_whose_own_step_diverges_says_so(tmp_path: Path) -> None:
    made = experiment(QUADRATIC, settings("parallel_sgda", eta=1e308, gamma=1e308), rounds=5)
    with pytest.raises(Diverged, match=r"round 0 has led to a point that is not finite.*the steps of ParallelSGDA"):
        list(server(made, tmp_path).run())


def test_a_run_that_stands_still_is_told_of_once(tmp_path: Path) -> None:
    made = experiment(DIGITS, settings("cd_ma", eta=1e-60, gamma=1e-60), rounds=STILL_ROUNDS + 3, precision="float32")
    told = [(report.round, text) for report in server(made, tmp_path).run() for text in report.warnings]
    assert [round for round, text in told if "the point is where it was" in text] == [STILL_ROUNDS]
