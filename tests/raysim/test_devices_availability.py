"""Tests what each availability model promises of its own; tests/contracts/test_availability.py has the common laws."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import betainc

from raysim.devices.availability import (
    AVAILABILITY,
    Always,
    Bernoulli,
    Beta,
    Cyclic,
    Diurnal,
    Label,
    Markov,
    Trace,
    Zone,
)
from raysim.devices.clock import NEVER, SECOND_US
from raysim.errors import ConfigError, DataError

MANY = 200_000
HOUR_S = 3600
EVERYBODY = np.arange(MANY)


def markov(clients: int = MANY, **settings: Any) -> Markov:
    return Markov(seed=3, clients=clients, **settings)


def trace_file(folder: Path, *devices: tuple[list[list[float]], float]) -> dict[str, str]:
    """Writes a file of devices, each (on-times, horizon) in seconds; returns it as settings of `Trace`."""
    path = folder / "devices.json"
    tree = {str(i): {"charging": pairs, "horizon_s": horizon} for i, (pairs, horizon) in enumerate(devices)}
    path.write_text(json.dumps({"devices": tree}))
    return {"path": str(path), "format": "intervals"}


def within(share: float, expected: float, n: int) -> bool:
    """Tells whether a share among n differs from its expectation by at most 4 standard errors (and rounding)."""
    return abs(share - expected) <= 4 * np.sqrt(max(expected * (1 - expected), 0) / n) + 1e-12


# The refresh process


@pytest.mark.parametrize("share", [0.05, 0.2, 0.9])
def test_the_share_of_devices_that_are_on(share: float) -> None:
    model = markov(share=share)
    for t_s in (0, 12_345, 10_000_000):
        assert within(model.on(EVERYBODY, t_s * SECOND_US, 0).mean(), share, MANY)


@pytest.mark.parametrize("share", [0.2, 0.8])
def test_a_device_forgets_at_the_promised_rate(share: float) -> None:
    model = markov(share=share)
    start_s = 50_000
    r = 1 / (6400 * (1 - share))
    before = model.on(EVERYBODY, start_s * SECOND_US, 0)
    for h_s in (600, HOUR_S, 2 * HOUR_S, 4 * HOUR_S):
        after = model.on(EVERYBODY, (start_s + h_s) * SECOND_US, 0)
        kept = np.exp(-r * h_s)
        assert within(after[before].mean(), share + (1 - share) * kept, before.sum())
        assert within(after[~before].mean(), share * (1 - kept), (~before).sum())


@pytest.mark.parametrize("share", [0.2, 0.99, 1 - 1e-6])
def test_on_times_are_exponential_with_the_given_mean(share: float) -> None:
    model = markov(share=share, mean_on_s=3000)
    start_us = 7_777 * SECOND_US
    on = EVERYBODY[model.on(EVERYBODY, start_us, 0)]
    off_us = model.off_at(on, start_us, 0, NEVER)
    for d_s in (60, 300, 3000, 9000):
        within_d = off_us <= start_us + d_s * SECOND_US
        assert within(within_d.mean(), 1 - np.exp(-d_s / 3000), len(on))
        np.testing.assert_array_equal(model.off_at(on, start_us, 0, d_s * SECOND_US), np.where(within_d, off_us, NEVER))


@pytest.mark.parametrize(("share", "on"), [(0.0, False), (1.0, True)])
def test_devices_that_never_change(share: float, on: bool) -> None:
    clients = np.arange(1000)
    for model in (markov(1000, share=share), Bernoulli(share=share, seed=3, clients=1000)):
        for t_s in (0, 1, 86_400):
            assert (model.on(clients, t_s * SECOND_US, 5) == on).all()
            assert (model.off_at(clients, t_s * SECOND_US, 5, NEVER) == NEVER).all()


@pytest.mark.parametrize(("share", "amplitude", "peak_hour"), [(0.2, 0.64, 2.0), (0.7, 1.0, 15.0), (1.0, 0.5, 0.0)])
def test_a_daily_rhythm_is_followed_with_the_devices_inertia(share: float, amplitude: float, peak_hour: float) -> None:
    """The equation m' = r (pi(t) - m) has the solution m(t) = integral of r exp(-r s) pi(t - s) over s > 0."""
    model = markov(share=share, diurnal=Diurnal(amplitude=amplitude, peak_hour=peak_hour, zones=(Zone(offset_h=-5),)))
    memory_s = max(6400 * (1 - share), 60)
    s = np.linspace(0, 40, 400_001) * memory_s
    weight = np.exp(-s / memory_s)
    for hour in (0, 5, 11, 18, 40):
        local = (hour * HOUR_S - s) / 86_400 - 5 / 24
        pi = np.minimum(share * (1 + amplitude * np.cos(2 * np.pi * (local - peak_hour / 24))), 1)
        expected = (weight * pi).sum() / weight.sum()
        assert within(model.on(EVERYBODY, hour * HOUR_S * SECOND_US, 0).mean(), expected, MANY)


def test_zones_have_their_weights_and_their_own_hours() -> None:
    here, there = Zone(weight=1), Zone(offset_h=12, weight=3)
    model = markov(share=0.3, mean_on_s=1, diurnal=Diurnal(amplitude=1, peak_hour=0, zones=(here, there)))
    at_noon = model.on(EVERYBODY, 12 * HOUR_S * SECOND_US, 0)
    at_midnight = model.on(EVERYBODY, 0, 0)
    assert within(at_noon.mean(), 0.6 * 0.75, MANY)
    assert within(at_midnight.mean(), 0.6 * 0.25, MANY)
    assert (at_noon & at_midnight).mean() < 1e-4


def test_drawn_shares_follow_the_distribution() -> None:
    shares = markov().shares
    assert abs(shares.mean() - 1.42 / 7.34) < 4 * shares.std() / np.sqrt(MANY)
    for x in (0.01, 0.05, 0.1, 0.2, 0.4, 0.7):
        assert within((shares <= x).mean(), betainc(1.42, 5.92, x), MANY)
    assert within(markov().on(EVERYBODY, 0, 0).mean(), 1.42 / 7.34, MANY)


# Labels


@pytest.mark.parametrize("cls", [Markov, Bernoulli])
def test_labels_scale_shares(cls: type[Markov] | type[Bernoulli]) -> None:
    scores = np.repeat([0.0, 0.5, 1.0, 0.25], MANY // 4)
    model = cls(share=0.6, label=Label(p_min=0.2), seed=3, clients=MANY, scores=scores)
    on = model.on(EVERYBODY, 10**9, 4)
    for part, expected in zip(np.split(on, 4), (0.12, 0.36, 0.6, 0.24), strict=True):
        assert within(part.mean(), expected, MANY // 4)
    drawn = cls(label=Label(p_min=0), seed=3, clients=MANY, scores=scores)
    plain = cls(seed=3, clients=MANY)
    np.testing.assert_array_equal(drawn.shares, plain.shares * scores)


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (None, "needs a label score for each client"),
        (np.zeros(2), r"needs 3 scores, one a client, and got shape \(2,\)"),
        (np.array([0.0, 1.5, 0.0]), "the score of client 1 is 1.5"),
        (np.array([0.0, 1.0, np.nan]), "the score of client 2 is nan"),
    ],
)
def test_labels_need_scores(scores: NDArray[np.float64] | None, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"devices\.availability\.label: .*{message}"):
        AVAILABILITY.build("markov", {"label": {"p_min": 0.1}}, seed=0, clients=3, scores=scores)


# Without time, and in turns


def test_bernoulli_draws_anew_for_each_instant_and_round() -> None:
    model = Bernoulli(share=0.3, seed=3, clients=MANY)
    draws_ = [model.on(EVERYBODY, t, r) for t, r in ((0, 1), (0, 2), (60 * SECOND_US, 1))]
    for on in draws_:
        assert within(on.mean(), 0.3, MANY)
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert within((draws_[one] & draws_[other]).mean(), 0.09, MANY)


def test_groups_take_turns_by_the_clock() -> None:
    model = Cyclic(groups=3, period_s=10, clients=7)
    clients = np.arange(7)
    for t_s in range(95):
        on = model.on(clients, t_s * SECOND_US, 99)
        np.testing.assert_array_equal(np.flatnonzero(on), clients[clients % 3 == t_s // 10 % 3])
        end_us = (t_s // 10 + 1) * 10 * SECOND_US
        assert model.next_change(t_s * SECOND_US) == end_us
        assert (model.off_at(clients[on], t_s * SECOND_US, 99, end_us - t_s * SECOND_US) == end_us).all()
        assert (model.off_at(clients[on], t_s * SECOND_US, 99, end_us - t_s * SECOND_US - 1) == NEVER).all()
        assert not model.on(clients[on], end_us, 99).any()
        assert model.on(clients[on], end_us - 1, 99).all()
        for client in clients[~on].tolist():
            alone = np.array([client])
            next_s = next(u for u in range(t_s + 1, t_s + 31) if model.on(alone, u * SECOND_US, 99)[0])
            assert model.on_at(alone, t_s * SECOND_US, 99, 30 * SECOND_US).tolist() == [next_s * SECOND_US]


def test_groups_take_turns_by_the_round() -> None:
    model = Cyclic(groups=3, clients=7)
    assert model.on(np.arange(7), 123, 4).tolist() == [False, True, False, False, True, False, False]
    assert model.off_at(np.array([1]), 123, 4, NEVER).tolist() == [NEVER]
    assert model.next_change(123) is None
    alone = Cyclic(groups=1, period_s=1, clients=2)
    assert alone.on(np.arange(2), 10**9, 0).all()
    assert alone.off_at(np.arange(2), 10**9, 0, NEVER).tolist() == [NEVER] * 2
    with pytest.raises(ConfigError, match=r"devices\.availability\.groups: is 3, but there are 2 clients"):
        Cyclic(groups=3, clients=2)


# Replay


def expected_on(pairs: list[list[float]], horizon: float, t_s: float, end: str) -> bool:
    local = t_s % horizon if end == "wrap" else t_s
    return any(a <= local < b for a, b in pairs)


def expected_change(pairs: list[list[float]], horizon: float, t_s: int, end: str) -> int | None:
    now = expected_on(pairs, horizon, t_s, end)
    return next((u for u in range(t_s + 1, t_s + 200) if expected_on(pairs, horizon, u, end) != now), None)


DEVICES: list[tuple[list[list[float]], float]] = [
    ([[3, 7], [9, 10], [12, 20]], 25),
    ([[0, 4], [10, 17]], 17),  # on over the end of the record
    ([[0, 4], [10, 17]], 20),
    ([[2, 5], [17, 20]], 20),  # on up to the end, not from the start
    ([], 10),
    ([[5, 5]], 10),  # a zero-length interval
    ([[0, 10]], 10),  # always
    ([[1, 4], [4, 6], [5, 8], [2, 3]], 9),  # touching, overlapping, nested, out of order
]


@pytest.mark.parametrize("end", ["wrap", "hold"])
def test_replay_equals_the_trace_on_every_boundary(tmp_path: Path, end: Any) -> None:
    n = len(DEVICES)
    model = Trace(**trace_file(tmp_path, *DEVICES), assign="in_order", end=end, seed=0, clients=n)  # type: ignore[arg-type]
    for t_s in range(120):
        for nudge in (0, -1):  # microseconds
            t_us = t_s * SECOND_US + nudge
            if t_us < 0:
                continue
            on = model.on(np.arange(n), t_us, 0)
            assert on.tolist() == [expected_on(p, h, t_us / SECOND_US, end) for p, h in DEVICES]
        t_us = t_s * SECOND_US
        changes = [expected_change(p, h, t_s, end) for p, h in DEVICES]
        on = model.on(np.arange(n), t_us, 0)
        for client in np.flatnonzero(on):
            change = changes[client]
            for within_s in (1, 5, 150):
                known = change is not None and change <= t_s + within_s
                off = model.off_at(np.array([client]), t_us, 0, within_s * SECOND_US)
                assert off.tolist() == [change * SECOND_US if known and change else NEVER]
        for client in np.flatnonzero(~on):
            back = model.on_at(np.array([client]), np.array([t_us]), 0, 150 * SECOND_US)
            known = changes[client] is not None and changes[client] <= t_s + 150
            assert back.tolist() == [changes[client] * SECOND_US if known else NEVER]
        first = min((c for c in changes if c is not None), default=None)
        assert model.next_change(t_us) == (None if first is None else first * SECOND_US)


def test_a_trace_without_any_on_time(tmp_path: Path) -> None:
    model = Trace(**trace_file(tmp_path, ([], 10), ([[3, 3]], 10)), seed=0, clients=5)  # type: ignore[arg-type]
    assert not model.on(np.arange(5), 3 * SECOND_US, 0).any()
    assert model.next_change(0) is None


def test_gaps_can_be_filled(tmp_path: Path) -> None:
    file: Any = trace_file(tmp_path, ([[0, 10], [12, 20], [23, 30]], 40))
    model = Trace(**file, merge_gap_s=2, seed=0, clients=1)
    assert [t for t in range(40) if model.on(np.arange(1), t * SECOND_US, 0)] == [*range(20), *range(23, 30)]


def test_clients_get_records_in_random_order_and_each_as_often(tmp_path: Path) -> None:
    file: Any = trace_file(tmp_path, *[([[i, i + 1]], 100) for i in range(50)])
    model = Trace(**file, seed=3, clients=170)
    rounds = [model.records[start : start + 50].tolist() for start in (0, 50, 100, 150)]
    for full in rounds[:3]:
        assert sorted(full) == list(range(50))
        assert full != list(range(50))
    assert len({tuple(full) for full in rounds[:3]}) == 3
    assert len(set(rounds[3])) == 20
    assert model.records.tolist() != Trace(**file, seed=4, clients=170).records.tolist()
    in_order = Trace(**file, assign="in_order", seed=3, clients=170)
    assert in_order.records.tolist() == [k % 50 for k in range(170)]


def test_clients_start_at_instants_of_their_own(tmp_path: Path) -> None:
    file: Any = trace_file(tmp_path, ([[10, 40]], 100))
    model = Trace(**file, shift=True, seed=3, clients=MANY)
    for t_s in (0, 30, 1000):
        assert within(model.on(EVERYBODY, t_s * SECOND_US, 0).mean(), 0.3, MANY)
    on = EVERYBODY[model.on(EVERYBODY, 0, 0)]
    off_us = model.off_at(on, 0, 0, NEVER)
    assert 0 < off_us.min() < off_us.max() <= 30 * SECOND_US
    assert not model.on(on[:1], int(off_us[0]), 0)
    assert model.on(on[:1], int(off_us[0]) - 1, 0)


def test_a_held_trace_tells_when_it_is_over(tmp_path: Path) -> None:
    file: Any = trace_file(tmp_path, ([[0, 50]], 100), ([[0, 50], [60, 300]], 300))
    assert Trace(**file, seed=0, clients=2).horizon_us is None
    assert Trace(**file, end="hold", seed=0, clients=2).horizon_us == 300 * SECOND_US
    shifted = Trace(**file, end="hold", shift=True, seed=0, clients=1000)
    over = shifted.horizon_us
    assert over is not None
    assert over < 300 * SECOND_US
    assert not shifted.on(np.arange(1000), over, 0).any()
    assert shifted.next_change(over) is None
    assert shifted.on(np.arange(1000), over - 1, 0).any()


def test_a_bad_trace_is_met_when_the_model_is_built(tmp_path: Path) -> None:
    settings = {"path": str(tmp_path / "nothing.json"), "format": "flash"}
    with pytest.raises(DataError, match="there is no file"):
        AVAILABILITY.build("trace", settings, seed=0, clients=3, scores=None)


# Settings


def test_settings_are_those_of_a_configuration() -> None:
    settings = {
        "share": {"beta": [2, 3.0]},
        "mean_on_s": 100,
        "diurnal": {"amplitude": 0.5, "zones": [{"offset_h": 1, "weight": 2}, {"offset_h": -3.5}]},
    }
    model = AVAILABILITY.build("markov", settings, seed=1, clients=10, scores=None)
    assert model.share == Beta(beta=(2, 3))
    assert model.diurnal == Diurnal(amplitude=0.5, zones=(Zone(offset_h=1, weight=2), Zone(offset_h=-3.5)))
    assert isinstance(AVAILABILITY.build("always", {}, seed=1, clients=10, scores=None), Always)


@pytest.mark.parametrize(
    ("name", "settings", "key"),
    [
        ("markov", {"share": 1.5}, "share"),
        ("markov", {"share": {"beta": [0, 1]}}, "share.beta.0"),
        ("markov", {"mean_on_s": 0}, "mean_on_s"),
        ("markov", {"diurnal": {"amplitude": 2}}, "diurnal.amplitude"),
        ("markov", {"diurnal": {"amplitude": 0.5, "zones": []}}, "diurnal.zones"),
        ("bernoulli", {"share": float("nan")}, "share"),
        ("bernoulli", {"label": {"p_min": -1}}, "label.p_min"),
        ("cyclic", {"groups": 0}, "groups"),
        ("cyclic", {"groups": 2, "period_s": 0}, "period_s"),
        ("trace", {"path": "x", "format": "csv"}, "format"),
        ("trace", {"path": "x", "format": "flash", "seed": 3}, "seed"),
    ],
)
def test_settings_out_of_range_are_named(name: str, settings: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        AVAILABILITY.settings(name, settings)
    assert caught.value.key == f"devices.availability.{key}"


@pytest.mark.data
def test_replay_of_real_phones_has_their_share_of_on_time(data_root: Path) -> None:
    """Each phone's own period is sampled; 0.193 is the mean of 291 phones that were observed for a day or more."""
    path = str(data_root / "traces/flash300_availability.json")
    n = 3000
    model = Trace(path=path, format="intervals", shift=True, seed=0, clients=n)
    observed = np.flatnonzero(model.intervals.horizons[model.records] >= 86_400 * SECOND_US)
    assert len(observed) == 2910
    shares = np.mean([model.on(observed, t * SECOND_US, 0) for t in range(0, 40 * 86_400, 7919)], axis=0)
    assert abs(shares.mean() - 0.193) < 4 * 0.14 / np.sqrt(2910)  # spread of phones' shares, as the shifts are random
