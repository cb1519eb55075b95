"""The loop engine: what clients may and may not do to each other, and faults that name their client."""

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic.dataclasses import dataclass as record

from clients.fleet import InProcessFleet
from clients.gradients import chain_of
from clients.pool import spans
from raysim.batch import Batch
from raysim.errors import ClientError
from raysim.exchange import Block, Minibatches, Order
from raysim.point import Point
from raysim.problems import Classification
from raysim.registry import STRICT
from tests.contracts.table import settings
from tests.play import DIGITS, OWN, QUADRATIC, experiment, server, trajectory


def poisoned(made, client: int, value: float):  # type: ignore[no-untyped-def]
    """The experiment with the features of one client's rows changed, after loading would have refused them."""
    shards = made.shards
    features = shards.train.features.copy()
    features[shards.offsets_N1[client] : shards.offsets_N1[client + 1]] = value
    return replace(made, shards=replace(shards, train=replace(shards.train, features=features)))


def test_a_block_is_the_sum_of_its_clients_to_the_bit() -> None:
    made = experiment(DIGITS, settings("cd_ma"), precision="float32", clients={"block": 5})
    (phase,) = made.algorithm.phases(0)
    z = made.problem.init(0)
    order = Order(0, phase, phase.sends(made.algorithm.init(z)))
    (block,) = made.planner.blocks(phase.works, 0, phase.name, np.arange(5))
    block = replace(block, weights_C=np.array([1.0, 0.5, 2.0, 3.0, 1.0]))
    engine = made.engine()
    together, _ = engine.run(order, block, {})
    one, *others = (engine.run(order, single, {})[0] for single in block.one_by_one())
    for other in others:
        one += other
    assert together.weight == one.weight == 7.5
    assert together.bytes_up == one.bytes_up == 5 * 4 * (len(z.x) + len(z.y))
    assert torch.equal(together.total.x, one.total.x)
    assert together.total.x.dtype == torch.float64


def test_code_that_writes_in_place_reaches_no_other_client_and_no_file(tmp_path: Path) -> None:
    made = experiment(QUADRATIC, {"name": "tests.toys:InPlace"})
    before = made.shards.train.features.copy()
    points = trajectory(made, tmp_path, 3)
    pure = experiment(QUADRATIC, settings("cd_ma", K=3, batch=2))
    for mine, theirs in zip(points, trajectory(pure, tmp_path, 3), strict=True):
        assert torch.equal(mine.x, theirs.x)
        assert torch.equal(mine.y, theirs.y)
    assert (made.shards.train.features == before).all()


@pytest.mark.parametrize("engine", ["loop", "vectorized"])
@pytest.mark.parametrize("base", [QUADRATIC, DIGITS | {"partition": {"name": "dirichlet", "clients": 9, "alpha": 1.0}}])
def test_passes_follow_each_other_on_batches_of_their_own(base: dict[str, Any], engine: str) -> None:
    made = experiment(base, {"name": "tests.toys:SeveralPasses"}, clients={"engine": engine})
    (phase,) = made.algorithm.phases(0)
    z = made.problem.init(0).to(torch.float64)
    cohort = np.arange(5)
    blocks = made.planner.blocks(phase.works, 0, phase.name, cohort)
    total, _ = InProcessFleet(made.engine()).run(Order(0, phase, z), blocks, {})
    expected = []
    for one in (single for block in blocks for single in block.one_by_one()):
        features, labels = made.shards.shard(int(one.clients_C[0]))
        inputs = torch.tensor(features, dtype=torch.float64) * made.shards.mul + made.shards.add

        def gradient(at: Point, rows: Any) -> Point:
            share = torch.full((len(rows),), 1 / len(rows), dtype=torch.float64)
            return made.problem.gradient(at, Batch(inputs[rows], torch.tensor(labels[rows]), share))  # noqa: B023

        at = z
        for drawn, eta in zip(one.minibatches[:2], (0.01, 0.1), strict=True):
            for rows in drawn.rows_CKB[0]:
                at = at.descent_ascent(gradient(at, rows[rows >= 0]), eta, eta)
        assert one.minibatches[2].rows_CKB is None
        expected.append((at, gradient(at, np.arange(len(labels)))))
    for ours, theirs in zip(total.mean(torch.float64), zip(*expected, strict=True), strict=True):
        for name in ("x", "y"):
            mean = torch.stack([getattr(point, name) for point in theirs]).mean(0)
            torch.testing.assert_close(getattr(ours, name), mean, rtol=1e-10, atol=1e-12)


def test_memory_is_kept_per_client_and_is_not_shared(tmp_path: Path) -> None:
    made = experiment(QUADRATIC, {"name": "tests.toys:Remembering"})
    playing = server(made, tmp_path)
    asked = np.zeros(8, dtype=int)
    for t in range(6):
        asked[made.planner.cohort(made.algorithm.phases(t)[0].cohort, t, "controlled", None)] += 1
        playing.play(t)
    assert {client: int(calls) for client, (_, calls) in playing.memory.items()} == {
        client: n for client, n in enumerate(asked.tolist()) if n
    }
    assert len(set(asked.tolist())) > 1, "clients were asked differently often"


@pytest.mark.slow
def test_scaffold_like_memory_reaches_the_saddle_where_cd_ma_drifts(tmp_path: Path) -> None:
    made = experiment(QUADRATIC, {"name": "tests.toys:Remembering", "S": 8}, data={"noise": 0.0})
    z = trajectory(made, tmp_path, 200)[-1]
    assert (z - made.problem.known(made.shards)).norm() < 1e-6  # type: ignore[attr-defined]


def test_a_fault_in_user_code_names_client_round_and_phase(tmp_path: Path) -> None:
    made = poisoned(experiment(QUADRATIC, settings("cd_ma", S=8), problem={"name": "tests.toys:Faulty"}), 5, 1e9)
    with pytest.raises(ClientError) as raised:
        server(made, tmp_path).play(0)
    error = raised.value
    assert (error.client, error.round, error.phase) == (5, 0, "update")
    assert "ValueError: a row I did not expect" in str(error)
    assert "in value" in error.trace
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize("value", [np.nan, 1e30])
@pytest.mark.parametrize("name", ["cd_mage", "parallel_sgda"])
def test_a_result_that_is_not_finite_stops_the_run_by_name(name: str, value: float, tmp_path: Path) -> None:
    made = poisoned(experiment(QUADRATIC, settings(name, S=8), precision="float32"), 3, value)
    playing = server(made, tmp_path)
    with pytest.raises(ClientError, match=r"client 3, .* is not finite"):
        list(playing.run())


def test_whole_shards_are_passed_in_chunks_without_changing_the_gradient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = experiment(DIGITS, settings("parallel_sgda"))
    (phase,) = made.algorithm.phases(0)
    order = Order(0, phase, phase.sends(made.algorithm.init(made.problem.init(0).to(torch.float64))))
    block = Block(np.array([4]), np.ones(1), (Minibatches(None, np.zeros(1, np.uint64)),), np.zeros(1, np.uint64))
    (whole, _) = made.engine().run(order, block, {})
    monkeypatch.setattr("clients.engine.CHUNK_ROWS", 7)
    (pieces, _) = made.engine().run(order, block, {})
    torch.testing.assert_close(pieces.total.x, whole.total.x, rtol=1e-12, atol=1e-14)


def test_outputs_are_those_of_every_row_in_order() -> None:
    made = experiment(DIGITS, settings("cd_ma"))
    z = made.problem.init(0).to(torch.float64)
    fleet = InProcessFleet(made.engine())
    for split, part in (("train", made.shards.train), ("test", made.shards.test)):
        h = fleet.pool(split).each(type(made.problem).outputs, z)
        assert h.shape == (len(part),)
        for row in (0, 1, len(part) - 1):
            inputs = torch.tensor(part.features[row][None], dtype=torch.float64) * made.shards.mul + made.shards.add
            one = Batch(inputs, torch.tensor([part.labels[row]]), torch.ones(1))
            assert h[row] == pytest.approx(made.problem.outputs(z, one).item(), rel=1e-12)


def test_a_sample_has_a_row_of_each_stretch_wherever_its_tasks_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    made = experiment(DIGITS, settings("cd_ma"))
    z = made.problem.init(0).to(torch.float64)
    whole = InProcessFleet(made.engine()).pool("train")
    h, n = whole.each(type(made.problem).outputs, z), len(made.shards.train)
    monkeypatch.setattr("clients.pool.SPAN_ROWS", 70)
    monkeypatch.setattr("clients.engine.CHUNK_ROWS", 30)
    for pool, every in (
        (whole.spread(n), 1), (whole.spread(2 * n), 1), (whole.spread(n - 1), 2), (whole.spread(200), 8),
        (whole.spread(800).spread(240), 6),
    ):  # fmt: skip
        rows = pool.part.rows(np.arange(n // every), made.shards)
        assert (rows // every).tolist() == list(range(n // every))
        assert every == 1 or len(set((rows % every).tolist())) == every, "at no fixed place"
        assert pool.labels.tolist() == made.shards.train.labels[rows].tolist()
        np.testing.assert_allclose(pool.each(type(made.problem).outputs, z), h[rows], rtol=1e-12)
        share = pool.total(lambda problem, z, batch: batch.weights.sum(), z)
        assert float(share) == pytest.approx(1)


def test_spans_cover_a_split_once() -> None:
    assert spans(4500) == [(0, 2000), (2000, 4000), (4000, 4500)]
    assert spans(0) == []


def test_the_number_of_torch_threads_is_put_back() -> None:
    before = torch.get_num_threads()
    made = experiment(DIGITS, settings("cd_ma"))
    fleet = InProcessFleet(made.engine(), threads=before + 1)
    assert fleet.in_background(torch.get_num_threads)() == before + 1
    assert torch.get_num_threads() == before


@record(frozen=True, kw_only=True, config=STRICT)
class Smoothed(Classification):
    """A user's own objective, by `value`."""

    def value(self, z: Point, batch: Batch) -> torch.Tensor:
        return super().value(z, batch) + 1e-3 * (z.x**2).sum() * batch.weights.sum()


@record(frozen=True, kw_only=True, config=STRICT)
class Weighed(Classification):
    """A user's own objective, by `loss`."""

    def loss(self, outputs: torch.Tensor, rest: torch.Tensor, y: torch.Tensor, batch: Batch) -> torch.Tensor:
        return 2 * super().loss(outputs, rest, y, batch)


def test_a_users_own_value_is_taken_and_what_that_costs_is_said_once() -> None:
    mlp = {"name": "mlp", "hidden": [8]}
    own, faster = (
        experiment(DIGITS, settings("cd_ma"), problem={"name": f"tests.clients.test_engine:{name}"}, model=mlp)
        for name in ("Smoothed", "Weighed")
    )
    (said,) = own.remarks()
    assert said.startswith(
        "Smoothed has its own value, so that gradients are taken of that code and not layer by layer"
    )
    assert faster.remarks() == []
    z = own.problem.init(0).to(torch.float64)
    rows = Batch(
        own.shards.inputs(np.arange(4), "train", dtype=torch.float64),
        own.shards.labels(np.arange(4), "train"),
        torch.full((4,), 0.25, dtype=torch.float64),
    )
    plain = Classification.value(own.problem, z, rows)  # type: ignore[arg-type]
    assert float(own.problem.value(z, rows)) > float(plain)
    assert chain_of(own.problem) is None
    assert chain_of(faster.problem) is not None


@pytest.mark.parametrize(("name", "method"), [("Smoothed", "value"), ("Weighed", "loss")])
def test_what_personal_methods_do_not_see_of_a_users_problem_is_said(name: str, method: str) -> None:
    made = experiment(OWN, settings("fedrep"), problem={"name": f"tests.clients.test_engine:{name}"})
    assert any(
        said.startswith(f"{name} has its own {method}, which steps of an extractor or a head do not use")
        for said in made.remarks()
    )
