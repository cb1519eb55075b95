"""The vectorised engine agrees with the loop engine for every algorithm, on shards and batches of any shape."""

import gc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

from clients.engine import LoopEngine
from clients.gradients import ProblemPerClient
from clients.vectorized import VectorizedEngine
from raysim.errors import ClientError
from raysim.exchange import Order
from raysim.phase import Uniform
from tests.contracts.table import PERSONAL, TABLE, base_of, settings
from tests.play import DIGITS, QUADRATIC, experiment, server, trajectory

RAGGED = {"partition": {"name": "dirichlet", "clients": 20, "alpha": 0.3}}
CROSS_ENTROPY = {"problem": {"name": "ratio_loss"}}
COMPOSITIONAL = {"problem": {"name": "compositional_auc", "rho": 0.5}}
RAGGED_OWN = {"partition": {"name": "dirichlet", "clients": 12, "alpha": 0.5, "test_fraction": 0.3}}
FAIR = {"problem": {"name": "fair"}, "partition": {"name": "stride", "clients": 20}}
ROBUST = {"problem": {"name": "robust", "penalty": 0.1}}
SHIFTED_IMAGES = ROBUST | {"model": {"name": "tests.toys:Convolutional"}}
ADVERSARIES = {"problem": {"name": "gan"}, "model": {"name": "tests.toys:TinyGAN"}}
BOTH = [{"engine": "loop"}, {"engine": "vectorized"}]


@pytest.mark.parametrize("name", [*TABLE, "tests.toys:Remembering"])
@pytest.mark.parametrize(
    ("base", "sections", "block"),
    [
        pytest.param(QUADRATIC, {}, "auto", id="quadratic"),
        pytest.param(QUADRATIC, {}, 3, id="quadratic in blocks of three", marks=pytest.mark.slow),
        pytest.param(DIGITS, {}, "auto", id="auc"),
        pytest.param(DIGITS, RAGGED, "auto", id="auc on ragged shards", marks=pytest.mark.slow),
        pytest.param(DIGITS, RAGGED, 3, id="auc on ragged shards in blocks of three", marks=pytest.mark.slow),
        pytest.param(DIGITS, COMPOSITIONAL, "auto", id="compositional auc", marks=pytest.mark.slow),
        pytest.param(DIGITS, CROSS_ENTROPY, "auto", id="cross-entropy", marks=pytest.mark.slow),
        pytest.param(DIGITS, FAIR, "auto", id="fair", marks=pytest.mark.slow),
        pytest.param(DIGITS, ROBUST, "auto", id="robust", marks=pytest.mark.slow),
        pytest.param(dict(DIGITS) | SHIFTED_IMAGES, {}, "auto", id="robust images", marks=pytest.mark.slow),
        pytest.param(dict(DIGITS) | ADVERSARIES, {}, "auto", id="gan", marks=pytest.mark.slow),
    ],
)
def test_engines_agree(name: str, base: Any, sections: Any, block: Any, tmp_path: Path) -> None:
    batch = 6 if base["problem"]["name"] == "gan" else 5  # of 71 or 72 rows, where a minibatch of one has no statistics
    algorithm = settings(name, batch=batch) if "batch" in getattr(TABLE.get(name), "settings", {}) else None
    algorithm = algorithm or (settings(name) if name in TABLE else {"name": name})
    loop, together = (
        trajectory(experiment(base, algorithm, clients={**engine, "block": block}, **sections), tmp_path, 3)
        for engine in BOTH
    )
    for a, b in zip(loop, together, strict=True):
        torch.testing.assert_close(a.x, b.x, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(a.y, b.y, rtol=1e-10, atol=1e-12)
    assert (loop[0] - loop[-1]).norm() > 1e-3


@pytest.mark.parametrize("name", ["cd_mage_plus", "parallel_sgda"])
def test_engines_agree_where_whole_shards_need_several_chunks(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = trajectory(experiment(DIGITS, settings(name), **RAGGED), tmp_path, 2)[-1]
    monkeypatch.setattr("clients.engine.CHUNK_ROWS", 7)
    made = experiment(DIGITS, settings(name), clients={"engine": "vectorized"}, **RAGGED)
    assert made.shards.rows_N.max() > 70
    torch.testing.assert_close(trajectory(made, tmp_path, 2)[-1].x, whole.x, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", PERSONAL)
@pytest.mark.parametrize(
    "shards",
    [pytest.param({}, id="equal shards"), pytest.param(RAGGED_OWN, id="ragged shards", marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("block", ["auto", pytest.param(3, marks=pytest.mark.slow)])
def test_engines_agree_on_clients_own_models(name: str, shards: Any, block: Any, tmp_path: Path) -> None:
    loop, together = (
        server(experiment(base_of(name) | shards, settings(name), clients={**engine, "block": block}), tmp_path)
        for engine in BOTH
    )
    for t in range(3):
        loop.play(t)
        together.play(t)
    torch.testing.assert_close(together.point.x, loop.point.x, rtol=1e-10, atol=1e-12)
    assert loop.memory.keys() == together.memory.keys()
    for client, memory in loop.memory.items():
        pairs = zip(pytree.tree_leaves(together.memory[client]), pytree.tree_leaves(memory), strict=True)
        for ours, theirs in pairs:
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    assert loop.memory or name == "fedavg", "clients keep something"


def test_code_that_writes_in_place_reaches_no_other_client(tmp_path: Path) -> None:
    loop, together = (
        trajectory(experiment(QUADRATIC, {"name": "tests.toys:InPlace"}, clients=engine), tmp_path, 3)
        for engine in BOTH
    )
    torch.testing.assert_close(together[-1].x, loop[-1].x, rtol=1e-12, atol=1e-12)
    assert (loop[0] - loop[-1]).norm() > 1e-3


@pytest.mark.parametrize("name", ["cd_mage_plus", "cd_ma"])
def test_no_batch_is_padded_where_a_layer_mixes_its_rows(name: str, tmp_path: Path) -> None:
    base = dict(DIGITS) | RAGGED | {"model": {"name": "tests.toys:Normalised"}}
    algorithm = settings(name, batch=500, K=2, S=12)  # a shard is a batch
    loop, together = (experiment(base, algorithm, clients=engine) for engine in BOTH)
    ragged = [np.count_nonzero(b.minibatches[0].rows_CKB >= 0, axis=2) for b in _work(together)]
    assert len({tuple(counts) for block in ragged for counts in block.tolist()}) > 1, "short batches differ"
    assert together.problem.mixes_rows
    z, ours = (trajectory(made, tmp_path, 2)[-1] for made in (loop, together))
    torch.testing.assert_close(ours.x, z.x, rtol=1e-10, atol=1e-12)


def _work(made: Any) -> Any:
    update = made.algorithm.phases(0)[-1]
    cohort = made.planner.cohort(Uniform(12), 0, update.name, None)
    return made.planner.blocks(update.works, 0, update.name, cohort)


def test_engines_agree_on_products_with_the_hessian_through_batch_normalisation(tmp_path: Path) -> None:
    base = dict(DIGITS) | COMPOSITIONAL | {"model": {"name": "bn_cnn"}}
    algorithm = settings("local_scgdam", S=3, K=2, batch=6)
    loop, together = (trajectory(experiment(base, algorithm, clients=engine), tmp_path, 2) for engine in BOTH)
    torch.testing.assert_close(loop[-1].x, together[-1].x, rtol=1e-9, atol=1e-11)
    assert (loop[0] - loop[-1]).norm() > 1e-3


def test_auto_is_vectorised_but_for_networks_that_gain_nothing() -> None:
    def engine(base: Any, **sections: Any) -> type:
        return type(experiment(base, settings("cd_ma"), clients={"engine": "auto"}, **sections).engine())

    assert engine(QUADRATIC) is engine(DIGITS) is VectorizedEngine
    assert engine(dict(DIGITS) | {"model": {"name": "tests.toys:Normalised"}}) is LoopEngine


def test_a_fault_names_its_client_in_the_vectorised_engine_too(tmp_path: Path) -> None:
    sound = experiment(QUADRATIC, settings("cd_ma", S=8))
    largest = abs(sound.shards.train.features).max(axis=1)
    row = int(largest.argmax())
    (guilty,) = np.flatnonzero(np.diff(sound.shards.offsets_N1 > row))
    faulty = {"name": "tests.toys:Faulty", "limit": float(largest[row])}
    made = experiment(
        QUADRATIC, settings("cd_ma", S=8, batch=6), problem=faulty, clients={"engine": "vectorized", "block": 8}
    )
    with pytest.raises(ClientError, match="ValueError: a row I did not expect") as raised:
        server(made, tmp_path).play(0)
    assert raised.value.client == guilty


def test_a_result_that_is_not_finite_names_its_client(tmp_path: Path) -> None:
    made = experiment(QUADRATIC, settings("cd_ma", S=8), clients={"engine": "vectorized", "block": 8})
    features = made.shards.train.features.copy()
    features[made.shards.offsets_N1[3]] = np.nan
    poisoned = replace(made, shards=replace(made.shards, train=replace(made.shards.train, features=features)))
    with pytest.raises(ClientError, match=r"client 3, .* is not finite"):
        list(server(poisoned, tmp_path).run())


def test_a_block_is_the_same_to_the_bit_each_time() -> None:
    made = experiment(DIGITS, settings("cd_mage"), precision="float32", clients={"engine": "vectorized", "block": 4})
    _, update = made.algorithm.phases(0)
    z = made.problem.init(0)
    order = Order(0, update, update.sends(replace(made.algorithm.init(z), u=z)))
    (block,) = made.planner.blocks(update.works, 0, update.name, np.array([1, 4, 7, 9]))
    first, again = (made.engine().run(order, block, {})[0].total for _ in range(2))
    assert torch.equal(first.x, again.x)
    assert torch.equal(first.y, again.y)


@pytest.mark.parametrize("name", ["cd_mage", "fedsgda_plus"])
def test_nothing_of_a_block_stays_once_it_is_done(name: str) -> None:
    """Cycles of references would keep gradients until Python's collector runs, which counts objects and not bytes."""
    made = experiment(DIGITS, settings(name), clients={"engine": "vectorized"})
    phase = made.algorithm.phases(0)[0]
    order = Order(0, phase, phase.sends(made.algorithm.init(made.problem.init(0).to(torch.float64))))
    (block, *_) = made.planner.blocks(phase.works, 0, phase.name, np.array([1, 4, 7]))
    engine = made.engine()
    gc.collect()
    gc.disable()
    try:
        engine.run(order, block, {})
        assert not [found for found in gc.get_objects() if type(found) is ProblemPerClient]
    finally:
        gc.enable()
