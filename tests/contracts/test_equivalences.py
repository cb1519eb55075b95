"""Algorithms that must coincide, exactly up to rounding and with the same random streams."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from clients.fleet import InProcessFleet
from raysim.algorithms.cd_mage import State
from raysim.batch import Batch
from raysim.exchange import Block, Minibatches, Order
from raysim.point import Point
from tests.contracts.table import LOCAL, STEPS, settings
from tests.play import DIGITS, QUADRATIC, experiment, server, trajectory


def in_both_engines(base: dict, name: str) -> list[Any]:
    together = base | {"clients": {"engine": "vectorized"}}
    return [
        pytest.param(base, id=f"{name}, one by one"),
        pytest.param(together, id=f"{name}, together", marks=pytest.mark.slow),
    ]


QUADRATICS, AUCS = in_both_engines(QUADRATIC, "quadratic"), in_both_engines(DIGITS, "auc")
BASES = pytest.mark.parametrize("base", QUADRATICS + AUCS)
RULERS = pytest.mark.parametrize("base", QUADRATICS)
ONE_STEP_SIZE = {"eta": 0.05, "gamma": 0.05}


def same(a: list[Point], b: list[Point], tolerance: float = 1e-13) -> None:
    for p, q in zip(a, b, strict=True):
        torch.testing.assert_close(p.x, q.x, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(p.y, q.y, rtol=tolerance, atol=tolerance)
    assert (a[0] - a[-1]).norm() > 1e-3, "something moved"


@BASES
def test_cd_mage_with_one_local_step_is_parallel_sgda(base: dict, tmp_path: Path) -> None:
    one_step = experiment(base, settings("cd_mage", K=1))
    same(trajectory(one_step, tmp_path, 4), trajectory(experiment(base, settings("parallel_sgda")), tmp_path, 4))


@BASES
def test_cd_mage_plus_without_memory_and_decay_is_cd_mage(base: dict, tmp_path: Path) -> None:
    plus = experiment(base, settings("cd_mage_plus", c_alpha=1, rho=0))
    same(trajectory(plus, tmp_path, 4), trajectory(experiment(base, settings("cd_mage")), tmp_path, 4), tolerance=0)


@BASES
def test_cd_ma_with_all_clients_is_local_sgda(base: dict, tmp_path: Path) -> None:
    """Against Local SGDA written out: every client steps K times, then all are averaged."""
    n = 8 if base["data"]["name"] == "quadratic" else 20
    made = experiment(base, settings("cd_ma", S=n))
    z = made.problem.init(0).to(torch.float64)
    expected = [z]
    for t in range(3):
        ends = []
        for i in range(n):
            x, y = z.x.clone(), z.y.clone()
            features, labels = made.shards.shard(i)
            inputs = torch.tensor(features, dtype=torch.float64) * made.shards.mul + made.shards.add
            rows_KB = (
                made.planner.blocks(made.algorithm.phases(t)[0].works, t, "update", np.array([i]))[0]
                .minibatches[0]
                .rows_CKB[0]
            )
            for rows in rows_KB:
                rows = rows[rows >= 0]
                x.requires_grad_(True)
                y.requires_grad_(True)
                share = torch.full((len(rows),), 1 / len(rows), dtype=torch.float64)
                f = made.problem.value(Point(x, y), Batch(inputs[rows], torch.tensor(labels[rows]), share))
                gx, gy = torch.autograd.grad(f, (x, y))
                x, y = (x - STEPS["eta"] * gx).detach(), (y + STEPS["gamma"] * gy).detach()
            ends.append((x, y))
        z = Point(torch.stack([x for x, _ in ends]).mean(0), torch.stack([y for _, y in ends]).mean(0))
        expected.append(z)
    same(trajectory(made, tmp_path, 3), expected, tolerance=1e-12)


@pytest.mark.parametrize("name", ["cd_mage", "cd_mage_plus"])
@BASES
def test_the_first_local_step_is_along_the_global_estimate_whatever_the_minibatch(name: str, base: dict) -> None:
    made = experiment(base, settings(name, K=1))
    _, update = made.algorithm.phases(0)
    z = made.problem.init(3).to(torch.float64)
    generator = torch.Generator().manual_seed(0)
    u = Point(*(torch.randn(v.shape, generator=generator, dtype=torch.float64) for v in (z.x, z.y)))
    order = Order(0, update, update.sends(State(z, z, u)))
    for row in (0, 1, 2):
        minibatches = Minibatches(np.array([[[row, -1]]]), np.zeros(1, np.uint64))
        block = Block(np.array([1]), np.ones(1), (minibatches,), np.zeros(1, np.uint64))
        partial, _ = InProcessFleet(made.engine()).run(order, [block], {})
        reached = partial.mean(torch.float64)
        expected = z.descent_ascent(u, update.eta, update.gamma)
        torch.testing.assert_close(reached.x, expected.x, rtol=1e-13, atol=1e-14)
        torch.testing.assert_close(reached.y, expected.y, rtol=1e-13, atol=1e-14)


@RULERS
def test_with_identical_clients_and_full_batches_cd_mage_is_cd_ma(base: dict, tmp_path: Path) -> None:
    alike = {"identical": True}
    full = {"S": 8, "batch": 6}
    mage = experiment(base, settings("cd_mage", **full), data=alike)
    plain = experiment(base, settings("cd_ma", **full), data=alike)
    same(trajectory(mage, tmp_path, 3), trajectory(plain, tmp_path, 3), 1e-12)


@BASES
def test_local_sgda_is_cd_ma_and_takes_all_clients_unless_told_how_many(base: dict, tmp_path: Path) -> None:
    n = 8 if base["data"]["name"] == "quadratic" else 20
    for given, S in (({}, n), ({"S": 4}, 4)):
        local = experiment(base, {"name": "local_sgda", **LOCAL, **STEPS, **given})
        same(trajectory(local, tmp_path, 3), trajectory(experiment(base, settings("cd_ma", S=S)), tmp_path, 3), 0)


@BASES
def test_fedsgda_plus_without_server_steps_is_local_sgda_plus(base: dict, tmp_path: Path) -> None:
    local = experiment(base, settings("local_sgda_plus", snapshot_steps=12))
    server_side = {"eta_g": 1, "gamma_g": 1, "snapshot_rounds": 3}
    same(
        trajectory(local, tmp_path, 5),
        trajectory(experiment(base, settings("fedsgda_plus", **server_side)), tmp_path, 5),
        tolerance=0,
    )


@BASES
def test_local_sgda_plus_whose_snapshot_is_always_the_present_x_is_local_sgda(base: dict, tmp_path: Path) -> None:
    plus = experiment(base, settings("local_sgda_plus", K=1, snapshot_steps=1))
    same(trajectory(plus, tmp_path, 4), trajectory(experiment(base, settings("local_sgda", K=1)), tmp_path, 4))


@BASES
def test_clients_that_keep_the_snapshot_compute_what_those_do_that_are_sent_it(base: dict, tmp_path: Path) -> None:
    def of(**changed: object) -> list[Point]:
        algorithm = settings("fedsgda_plus", **changed)
        del algorithm["S"]
        return trajectory(experiment(base, algorithm), tmp_path, 5)

    same(of(clients_keep_snapshot=True), of())


@BASES
def test_fedsgda_m_without_memory_is_local_sgda(base: dict, tmp_path: Path) -> None:
    forgetful = experiment(base, settings("fedsgda_m", alpha=1, beta=1, first_batch=2))
    same(trajectory(forgetful, tmp_path, 4), trajectory(experiment(base, settings("local_sgda")), tmp_path, 4))


@RULERS
def test_momentum_local_sgda_of_one_client_without_memory_is_local_sgda(base: dict, tmp_path: Path) -> None:
    one = {"data": {"clients": 1}}
    forgetful = experiment(base, settings("momentum_local_sgda", "everyone", beta_x=1, beta_y=1), **one)
    same(
        trajectory(forgetful, tmp_path, 3),
        trajectory(experiment(base, settings("local_sgda", "everyone"), **one), tmp_path, 3),
        1e-12,
    )


@BASES
def test_local_scgdam_without_an_inner_step_and_its_memory_is_momentum_local_sgda(base: dict, tmp_path: Path) -> None:
    stages = {"stage_steps": [8]}
    scgdam = experiment(base, settings("local_scgdam", alpha=1, one_minibatch=True, **stages))
    plain = experiment(base, settings("momentum_local_sgda", **stages))
    same(trajectory(scgdam, tmp_path, 4), trajectory(plain, tmp_path, 4))


@pytest.mark.parametrize("base", AUCS)
def test_compositional_auc_with_an_inner_step_of_zero_is_the_auc_problem(base: dict, tmp_path: Path) -> None:
    def of(problem: dict[str, object], algorithm: dict[str, object]) -> list[Point]:
        return trajectory(experiment(base, algorithm, problem=problem), tmp_path, 4)

    flat = of(
        {"name": "compositional_auc", "rho": 0.0}, settings("local_scgdam", alpha=1, one_minibatch=True, stage_steps=[])
    )
    same(flat, of({"name": "auc", "score": "sigmoid"}, settings("momentum_local_sgda")), 1e-12)
    stepping = of({"name": "compositional_auc", "rho": 0.5}, settings("local_scgdam", alpha=1, stage_steps=[]))
    assert (stepping[-1] - flat[-1]).norm() > 1e-3


@BASES
def test_local_sgdm_without_momentum_is_cd_ma(base: dict, tmp_path: Path) -> None:
    plain = experiment(base, settings("cd_ma", **ONE_STEP_SIZE))
    heavy = experiment(base, settings("local_sgdm", beta=0, stage_steps=[]))
    same(trajectory(heavy, tmp_path, 4), trajectory(plain, tmp_path, 4), 1e-12)


@BASES
def test_fedprox_that_holds_nothing_is_cd_ma(base: dict, tmp_path: Path) -> None:
    plain = experiment(base, settings("cd_ma", **ONE_STEP_SIZE))
    free = experiment(base, settings("fedprox", mu=0, stage_steps=[]))
    same(trajectory(free, tmp_path, 4), trajectory(plain, tmp_path, 4), 1e-12)


@BASES
def test_scaffold_is_codasca_in_one_stage_without_proximal_term(base: dict, tmp_path: Path) -> None:
    scaffold = experiment(base, settings("scaffold", stage_steps=[]))
    codasca = experiment(base, settings("codasca", theta=0, decay=1))
    same(trajectory(scaffold, tmp_path, 4), trajectory(codasca, tmp_path, 4), 0)


@RULERS
def test_coda_is_coda_plus_where_no_best_dual_is_known(base: dict, tmp_path: Path) -> None:
    coda, plus = (experiment(base, settings(name)) for name in ("coda", "coda_plus"))
    same(trajectory(coda, tmp_path, 5), trajectory(plus, tmp_path, 5), 0)


@BASES
def test_coda_plus_without_stages_is_cd_ma(base: dict, tmp_path: Path) -> None:
    plain = experiment(base, settings("cd_ma", **ONE_STEP_SIZE))
    for without in ({"theta": 0, "decay": 1}, {"theta": 0, "stage_steps": 400}):
        coda = experiment(base, settings("coda_plus", **without))
        same(trajectory(coda, tmp_path, 4), trajectory(plain, tmp_path, 4), 0)


@RULERS
def test_codasca_of_identical_clients_on_full_batches_is_coda_plus(base: dict, tmp_path: Path) -> None:
    """With everything on: the proximal term, three stages and falling steps."""
    alike = {"data": {"identical": True}}
    stages = {"batch": 6, "theta": 0.3, "stage_steps": [8, 4], "decay": 3}
    codasca = experiment(base, settings("codasca", "everyone", eta_g=1, **stages), **alike)
    plain = experiment(base, settings("coda_plus", "everyone", **stages), **alike)
    same(trajectory(codasca, tmp_path, 6), trajectory(plain, tmp_path, 6), 1e-12)


@BASES
def test_catalyst_scaffold_s_with_equal_rounds_and_no_proximal_term_is_cd_mage(base: dict, tmp_path: Path) -> None:
    catalyst = experiment(base, settings("catalyst_scaffold_s", theta=0, random_steps=False))
    mage = experiment(base, settings("cd_mage", **ONE_STEP_SIZE))
    same(trajectory(catalyst, tmp_path, 5), trajectory(mage, tmp_path, 5), 0)


@RULERS
def test_sagda_of_identical_clients_on_full_batches_is_local_sgda(base: dict, tmp_path: Path) -> None:
    alike = {"data": {"identical": True}}
    sagda = experiment(base, settings("sagda", "everyone"), **alike)
    plain = experiment(base, settings("local_sgda", "everyone"), **alike)
    same(trajectory(sagda, tmp_path, 4), trajectory(plain, tmp_path, 4), 1e-12)


@BASES
def test_sagda_that_evaluates_anew_after_whole_shards_is_cd_mage(base: dict, tmp_path: Path) -> None:
    sagda = experiment(base, settings("sagda", reeval=True, collect_batch=1000, gamma_g=1))
    mage = experiment(base, settings("cd_mage", same_clients=True))
    same(trajectory(sagda, tmp_path, 4), trajectory(mage, tmp_path, 4), 1e-12)


@RULERS
def test_fedgda_gt_is_cd_mage_on_full_batches(base: dict, tmp_path: Path) -> None:
    tracking = experiment(base, settings("fedgda_gt"))
    mage = experiment(base, settings("cd_mage", batch=6, same_clients=True))
    same(trajectory(tracking, tmp_path, 4), trajectory(mage, tmp_path, 4), 1e-12)


def test_same_clients_option_repeats_the_cohort_and_the_default_does_not(tmp_path: Path) -> None:
    for same_clients in (True, False):
        playing = server(experiment(QUADRATIC, settings("cd_mage", same_clients=same_clients)), tmp_path)
        agree = []
        for t in range(6):
            playing.play(t)
            playing.ledger.write(tmp_path)
        rows = pq.read_table(tmp_path / "participation.parquet").to_pylist()
        for t in range(6):
            collect, update = (
                {r["client"] for r in rows if (r["round"], r["phase"]) == (t, phase)} for phase in ("collect", "update")
            )
            assert len(collect) == len(update) == 4
            agree.append(collect == update)
        assert all(agree) if same_clients else not all(agree)
