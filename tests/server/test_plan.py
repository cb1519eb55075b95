"""The plan: cohorts and minibatches by reshuffling."""

import numpy as np
import pytest

from raysim.errors import ConfigError, DataError
from raysim.phase import LocalSteps, Same, Uniform, WholeShard
from server.plan import Planner


def planner(rows: list[int], seed: int = 0, block: int | None = None, together: int | None = None) -> Planner:
    return Planner(np.array(rows), seed, block, together)


def batches(rows: int, K: int, batch: int, t: int = 0, client: int = 0) -> np.ndarray:
    made = planner([rows] * (client + 1)).blocks([LocalSteps(K, batch)], t, "update", np.array([client]))
    return made[0].minibatches[0].rows_CKB[0]


@pytest.mark.parametrize(("rows", "batch"), [(12, 3), (13, 5), (7, 7), (1, 1)])
def test_each_epoch_passes_every_row_once(rows: int, batch: int) -> None:
    per_epoch = -(-rows // batch)
    drawn = batches(rows, 3 * per_epoch, batch)
    epochs = drawn.reshape(3, -1)
    for epoch in epochs:
        assert sorted(epoch[epoch >= 0]) == list(range(rows))
    if rows > 5:
        assert (epochs[0] != epochs[1]).any(), "reshuffled"


def test_only_the_last_batch_of_an_epoch_is_short() -> None:
    filled = (batches(13, 6, 5) >= 0).sum(axis=1)
    assert filled.tolist() == [5, 5, 3, 5, 5, 3]


def test_a_shard_smaller_than_a_batch_is_one_batch() -> None:
    drawn = batches(3, 4, 10)
    assert drawn.shape == (4, 3)
    for step in drawn:
        assert sorted(step[step >= 0]) == [0, 1, 2]


def test_more_local_steps_only_append() -> None:
    assert (batches(20, 12, 4)[:5] == batches(20, 5, 4)).all()


def test_round_phase_client_and_seed_each_change_the_batches() -> None:
    work, who = LocalSteps(4, 5), np.array([1])
    base = planner([20, 20, 20]).blocks([work], 0, "update", who)[0].minibatches[0].rows_CKB
    for other in (
        planner([20, 20, 20]).blocks([work], 1, "update", who),
        planner([20, 20, 20]).blocks([work], 0, "other", who),
        planner([20, 20, 20]).blocks([work], 0, "update", np.array([2])),
        planner([20, 20, 20], seed=1).blocks([work], 0, "update", who),
    ):
        assert (other[0].minibatches[0].rows_CKB != base).any()


def test_each_pass_of_a_phase_has_streams_of_its_own_and_the_first_is_the_phases() -> None:
    work, who = LocalSteps(4, 5), np.array([0, 2])
    first, second, whole = (
        planner([20, 20, 20], block=2).blocks([work, work, WholeShard()], 0, "update", who)[0].minibatches
    )
    (alone,) = planner([20, 20, 20], block=2).blocks([work], 0, "update", who)[0].minibatches
    assert (first.rows_CKB == alone.rows_CKB).all()
    assert (first.keys_C == alone.keys_C).all()
    assert (second.rows_CKB != first.rows_CKB).any()
    assert whole.rows_CKB is None
    assert len({*first.keys_C.tolist(), *second.keys_C.tolist(), *whole.keys_C.tolist()}) == 6


@pytest.mark.parametrize("block", [None, 1, 3, 100])
def test_blocks_cut_the_cohort_in_order_and_do_not_change_the_batches(block: int | None) -> None:
    work, cohort = LocalSteps(2, 5), np.arange(3, 80)
    whole = planner([20] * 100, block=1000).blocks([work], 5, "update", cohort)[0]
    cut = planner([20] * 100, block=block).blocks([work], 5, "update", cohort)
    assert (np.concatenate([b.clients_C for b in cut]) == cohort).all()
    assert (np.concatenate([b.minibatches[0].rows_CKB for b in cut]) == whole.minibatches[0].rows_CKB).all()
    sizes = [len(b) for b in cut]
    assert max(sizes) - min(sizes) <= 1
    assert max(sizes) <= (block or 3)
    assert len(sizes) == 32 or block


@pytest.mark.parametrize(("clients", "sizes"), [(1, {1}), (2, {1}), (10, {5}), (20, {10}), (21, {5, 6}), (100, {6, 7})])
def test_clients_that_are_computed_together_make_blocks_by_powers_of_two(clients: int, sizes: set[int]) -> None:
    cut = planner([20] * 100, together=10).blocks([LocalSteps(2, 5)], 5, "update", np.arange(clients))
    assert {len(b) for b in cut} == sizes
    assert sum(len(b) for b in cut) == clients
    assert len(cut) in (1, 2, 4, 16)


def test_a_whole_shard_has_no_batches() -> None:
    (block, *_) = planner([20] * 9).blocks([WholeShard()], 0, "collect", np.array([1, 4]))
    assert block.minibatches[0].rows_CKB is None


@pytest.mark.parametrize("first", [None, 1, 3, 8])
@pytest.mark.parametrize("batch", [None, 1, 2, 3, 5, 20])
def test_the_smallest_minibatch_is_that_of_the_drawn_ones(batch: int | None, first: int | None) -> None:
    made = planner([1, 2, 3, 4, 5, 6, 7, 9, 11])
    for K in range(1, 9):
        work = LocalSteps(K, batch, first)
        blocks = made.blocks([work], 0, "update", made.population)
        drawn = [
            np.count_nonzero(rows_KB >= 0, axis=1).min()
            for block in blocks
            for rows_KB in block.minibatches[0].rows_CKB
        ]
        assert made.smallest(work).tolist() == drawn


def test_the_smallest_minibatch_of_whole_shards_that_are_cut() -> None:
    made = planner([1, 0, 6, 7, 8])
    assert made.smallest(WholeShard(3)).tolist() == [1, 3, 1, 2]
    assert made.smallest(WholeShard()).tolist() == [1, 6, 7, 8]


def test_cohorts_leave_out_clients_without_rows() -> None:
    made = planner([3, 0, 2, 0, 5])
    for t in range(20):
        assert set(made.cohort(Uniform(2), t, "update", None)) <= {0, 2, 4}
    assert made.cohort(Uniform(3), 0, "update", None).tolist() == [0, 2, 4]


def test_cohorts_differ_between_rounds_phases_and_seeds() -> None:
    made = planner([1] * 200)
    base = made.cohort(Uniform(20), 0, "update", None).tolist()
    assert base == made.cohort(Uniform(20), 0, "update", None).tolist()
    assert base != made.cohort(Uniform(20), 1, "update", None).tolist()
    assert base != made.cohort(Uniform(20), 0, "collect", None).tolist()
    assert base != planner([1] * 200, seed=1).cohort(Uniform(20), 0, "update", None).tolist()


def test_same_is_the_cohort_before() -> None:
    before = np.array([2, 5])
    assert planner([1] * 9).cohort(Same(), 0, "update", before) is before


def test_a_cohort_larger_than_the_clients_with_rows_is_refused_by_name() -> None:
    made = planner([3, 0, 2])
    made.check(Uniform(2))
    with pytest.raises(ConfigError, match=r"^algorithm.S: cannot sample 3 clients of 2 \(1 more have no rows\)"):
        made.check(Uniform(3))


def test_no_rows_at_all_is_an_error() -> None:
    with pytest.raises(DataError, match="every client has 0 rows"):
        planner([0, 0]).cohort(Uniform(1), 0, "update", None)


def test_blocks_are_as_wide_as_their_own_largest_batch() -> None:
    """One client with very many rows must not make room for as many everywhere."""
    rows_N = np.full(100, 8)
    rows_N[7] = 5_000
    made = Planner(rows_N, 0, block=10).blocks([LocalSteps(K=2, batch=None)], 0, "update", np.arange(100))
    assert [block.minibatches[0].rows_CKB.shape for block in made if block.minibatches[0].rows_CKB is not None] == [
        (10, 2, 5_000)
    ] + 9 * [(10, 2, 8)]
