"""Tests what is true of every availability model."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from raysim.devices import AVAILABILITY, FOREVER_US, NEVER, SECOND_US
from raysim.devices.clock import DAY_US
from tests.contracts.availability import TABLE, Row

START_US = 33_000 * SECOND_US
SPAN_US = 3600 * SECOND_US

# Variants of the Markov chain take seconds each; one of them, with a rhythm, is in the fast tier.
SLOW = {name for name in TABLE if name.startswith("markov, ")} - {"markov, daily rhythm"}
every = pytest.mark.parametrize(
    "row",
    [pytest.param(row, id=name, marks=[pytest.mark.slow] if name in SLOW else []) for name, row in TABLE.items()],
)


def test_every_model_has_a_row() -> None:
    assert {row.model for row in TABLE.values()} == set(AVAILABILITY.entries)


@every
def test_the_share_of_on_time_is_the_stationary_one(row: Row, tmp_path: Path) -> None:
    """Clients and instants are drawn; the mean is within 4 standard errors, of both draws together."""
    if row.share is None:
        pytest.skip("has no stationary share")
    clients, instants, days = 1500, 400, 400
    model = row.build(tmp_path, clients)
    times_us = np.random.default_rng(1).integers(0, days * DAY_US, instants).tolist()
    on = np.array([model.on(np.arange(clients), t_us, r) for r, t_us in enumerate(times_us)])
    error = np.sqrt(on.mean(axis=0).var() / clients + on.mean(axis=1).var() / instants)
    assert abs(on.mean() - row.share) <= 4 * error + 1e-12
    assert error < 0.015, "the test can tell"


@every
def test_the_mean_session_is_as_long_as_promised(row: Row, tmp_path: Path) -> None:
    """Clients are followed for a while, and their on-times to the end; the mean is within 4 standard errors."""
    if row.session_s is None:
        pytest.skip("has no on-times of a known mean length")
    model = row.build(tmp_path, 400)
    end_us = START_US + int(40 * row.session_s * SECOND_US)
    clients, now_us = np.arange(400), np.full(400, START_US)
    on = model.on(clients, START_US, 0)
    now_us[on] = model.off_at(clients[on], now_us[on], 0, FOREVER_US)
    lengths_s: list[float] = []
    while len(clients := clients[(left := now_us < end_us)]):
        now_us = now_us[left]
        starts_us = model.on_at(clients, now_us, 0, end_us - START_US)
        back = starts_us < NEVER
        clients, starts_us = clients[back], starts_us[back]
        now_us = model.off_at(clients, starts_us, 0, FOREVER_US)
        assert (now_us < NEVER).all()
        lengths_s += ((now_us - starts_us) / SECOND_US)[starts_us <= end_us].tolist()
    error = np.std(lengths_s) / np.sqrt(len(lengths_s))
    assert abs(np.mean(lengths_s) - row.session_s) <= 4 * error + 1e-6
    assert error < 0.05 * row.session_s, "the test can tell"


@every
def test_answers_depend_on_nothing_but_the_client_and_the_instant(row: Row, tmp_path: Path) -> None:
    """The order of clients and instants, earlier questions, other clients and pickling change no answer."""
    n = 500
    model, larger = row.build(tmp_path, n), row.build(tmp_path, 3 * n)
    clients = np.arange(n)
    instants = [(int(t), r) for r, t in enumerate(np.linspace(0, 90_000 * SECOND_US, 7))]
    horizon_us = 4000 * SECOND_US
    on = [model.on(clients, t, r) for t, r in instants]
    off_us = [model.off_at(clients[a], t, r, horizon_us) for a, (t, r) in zip(on, instants, strict=True)]
    on_us = [model.on_at(clients[~a], t, r, horizon_us) for a, (t, r) in zip(on, instants, strict=True)]
    changes = [model.next_change(t) for t, _ in instants]
    rng = np.random.default_rng(0)
    for i in [*rng.permutation(7).tolist(), 3, 3]:  # back and forth in time, and twice the same
        t, r = instants[i]
        for asked in (model, larger, pickle.loads(pickle.dumps(model)), row.build(tmp_path, n)):
            some = rng.permutation(n)[:100]
            np.testing.assert_array_equal(asked.on(some, t, r), on[i][some])
            for answer, known, who in ((asked.off_at, off_us[i], on[i]), (asked.on_at, on_us[i], ~on[i])):
                order = rng.permutation(len(known))
                np.testing.assert_array_equal(answer(clients[who][order], t, r, horizon_us), known[order])
                for place in order[:5].tolist():
                    alone = clients[who][place : place + 1]
                    assert answer(alone, t, r, horizon_us).tolist() == [known[place]]
            for client in some[:5].tolist():
                assert asked.on(np.array([client]), t, r).tolist() == [on[i][client]]
        assert model.next_change(t) == changes[i]
    nobody = clients[:0]
    assert model.on(nobody, 0, 0).shape == model.off_at(nobody, 0, 0, 1).shape == model.on_at(nobody, 0, 0, 1).shape


@every
def test_the_next_turn_agrees_with_on_on_both_of_its_sides(row: Row, tmp_path: Path) -> None:
    clients = np.arange(400)
    model = row.build(tmp_path, len(clients))
    now = model.on(clients, START_US, 5)
    for state, turn in ((True, model.off_at), (False, model.on_at)):
        asked = clients[now == state]
        turn_us = turn(asked, START_US, 5, SPAN_US)
        turned = turn_us < NEVER
        assert row.has_time or not turned.any()
        assert ((turn_us[turned] > START_US) & (turn_us[turned] <= START_US + SPAN_US)).all()
        if row.has_time:
            for t_us in range(START_US, START_US + SPAN_US + 1, 5 * SECOND_US):
                assert (model.on(asked[turn_us > t_us], t_us, 5) == state).all()
        for client, t_us in zip(asked[turned].tolist(), turn_us[turned].tolist(), strict=True):
            alone = np.array([client])
            assert model.on(alone, t_us - 1, 5).tolist() == [state]
            assert model.on(alone, t_us, 5).tolist() == [not state]
            assert turn(alone, START_US, 5, t_us - START_US).tolist() == [t_us]
            assert turn(alone, START_US, 5, t_us - START_US - 1).tolist() == [NEVER]
    if row.has_time:
        both = (model.off_at(clients[now], START_US, 5, SPAN_US), model.on_at(clients[~now], START_US, 5, SPAN_US))
        assert (np.concatenate(both) < NEVER).any(), "the test sees turns"


@every
def test_clients_may_be_asked_from_instants_of_their_own(row: Row, tmp_path: Path) -> None:
    clients = np.arange(200)
    model = row.build(tmp_path, len(clients))
    starts_us = START_US + clients * 7 * SECOND_US
    now = np.array([model.on(clients[k : k + 1], int(starts_us[k]), 5)[0] for k in clients])
    for state, turn in ((True, model.off_at), (False, model.on_at)):
        asked, from_us = clients[now == state], starts_us[now == state]
        together = turn(asked, from_us, 5, SPAN_US)
        for client, start_us, t_us in zip(asked.tolist(), from_us.tolist(), together.tolist(), strict=True):
            alone = np.array([client])
            assert turn(alone, start_us, 5, SPAN_US).tolist() == [t_us]
            if row.has_time:
                end_us = min(t_us - 1, start_us + SPAN_US)
                for between_us in np.linspace(start_us, end_us, 12).astype(np.int64).tolist():
                    assert model.on(alone, between_us, 5).tolist() == [state]


@every
def test_the_next_change_is_the_first_at_which_anybody_turns(row: Row, tmp_path: Path) -> None:
    clients = np.arange(60)
    model = row.build(tmp_path, len(clients))
    for t_us in (0, START_US, 12 * START_US + 1):
        change_us, now = model.next_change(t_us), model.on(clients, t_us, 5)
        if not row.foresees:
            assert change_us is None
            continue
        if change_us is None:
            later = [model.on(clients, t_us + h * SECOND_US, 5) for h in range(0, 200_000, 1000)]
            assert (np.array(later) == now).all()
            continue
        assert change_us > t_us
        for before_us in np.linspace(t_us, change_us - 1, 20).astype(np.int64).tolist():
            np.testing.assert_array_equal(model.on(clients, before_us, 5), now)
        assert (model.on(clients, change_us, 5) != now).any()


@every
def test_the_seed_matters_where_there_is_chance(row: Row, tmp_path: Path) -> None:
    one, other = (row.build(tmp_path, 500, seed) for seed in (3, 4))
    everybody, instants_us = np.arange(500), (START_US, 2 * START_US)
    differ = [(one.on(everybody, t_us, 1) != other.on(everybody, t_us, 1)).any() for t_us in instants_us]
    assert any(differ) == row.has_chance
