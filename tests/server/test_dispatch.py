"""Devices' fates against theory: order statistics, session shapes, conservation, determinism, and every edge.

Rounds are independent, so a mean over R of them is allowed 4 standard errors and a test of fit the p-value that goes
with them. Seeds are fixed: a test that passes once passes always.

Legend: n invited, S needed, H_n = 1 + 1/2 + ... + 1/n.
"""

import json
import math
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from numpy.typing import NDArray
from scipy import integrate, stats

from cluster.config import load_config
from cluster.experiment import Experiment
from cluster.presets import PRESETS
from raysim import draws
from raysim.algorithms.cd_mage import Collect, Update
from raysim.devices import SECOND_US, Availability, Population, Tasks
from raysim.devices.availability import Always, Cyclic, Markov, Trace
from raysim.devices.population import (
    ComputeConfig,
    DeviceModel,
    FailureConfig,
    LinkConfig,
    MemoryConfig,
)
from raysim.errors import ConfigError, DataError, NotEnoughDevices, RoundsFailed
from raysim.phase import LocalSteps, Same, Uniform, WholeShard
from raysim.point import Point
from raysim.wire import Traffic
from server.dispatch import AnyPhase, Clients, Clock, Devices, Ideal, Outcome, Streak
from server.fates import FATES
from server.plan import Planner
from server.policy import DropoutOverride, PolicyConfig
from tests.contracts.table import ALL_ROWS, base_of, settings
from tests.play import QUADRATIC, experiment, server, trajectory
from tests.same import tables

Floats = NDArray[np.float64]
Law = Callable[[Clients, Floats], Floats]

UNLIKELY = 6e-5  # the p-value of 4 standard errors
NOTHING = Traffic(0, 0, 0)
LINK = LinkConfig(sigma=0.0, jitter_cv=0.0, rtt_s=0.0)
SURE = FailureConfig(hazard_per_s=0.0)
LONG_S = 1e6


@dataclass(frozen=True, eq=False)
class Drawn(Population):
    """Devices whose tasks take what a law says: seconds as a function of the client and a fresh uniform number."""

    law: Law = field(kw_only=True)

    def tasks(self, clients_C: Clients, round: int, phase: str, *rest: Any) -> Tasks:
        u = draws.uniform(self.model.seed, "duration", round, draws.code(phase), clients_C)
        seconds = np.broadcast_to(self.law(clients_C, u), u.shape)
        usual = super().tasks(clients_C, round, phase, *rest)
        return replace(usual, compute_us=np.rint(seconds * SECOND_US).astype(np.int64))


@dataclass(frozen=True, eq=False)
class Linked(Drawn):
    """Devices whose links are given one by one, bits a second."""

    down: Floats
    up: Floats

    @property
    def down_bps_N(self) -> Floats:
        return self.down

    @property
    def up_bps_N(self) -> Floats:
        return self.up


def drawn(law: Law, size: int, hazard_per_s: float = 0.0, p_start: float = 0.0) -> Drawn:
    failure = FailureConfig(hazard_per_s=hazard_per_s, p_start=p_start)
    return Drawn(DeviceModel(link=LINK, failure=failure), size, law=law)


def lasting(*seconds: float) -> Drawn:
    """One device for each number, whose tasks take that long."""
    return drawn(lambda clients, u: np.array(seconds)[clients], len(seconds))


def exponential(clients: Clients, u: Floats) -> Floats:
    return -np.log1p(-u)


def lognormal(sigma: float, size: int) -> Population:
    """The real devices, all alike, with all of their spread in the fluctuation from task to task: median 1."""
    mean, cv = math.exp(sigma**2 / 2), math.sqrt(math.expm1(sigma**2))
    compute = ComputeConfig(median_s_per_sample=mean, sigma=0.0, jitter_cv=cv)
    return Population(DeviceModel(compute=compute, link=LINK, failure=SURE), size)


@dataclass
class Served:
    """A dispatcher and the clock that its server would hold."""

    devices: Devices
    clock: Clock

    def dispatch(self, phase: AnyPhase, t: int, traffic: Traffic, before: Outcome | None) -> Outcome:
        return self.devices.dispatch(self.clock, phase, t, traffic, before)

    def round_ended(self, t: int, last: Outcome) -> None:
        self.devices.round_ended(self.clock, t, last)


def serve(
    population: Population, availability: Availability | None = None, rows: int = 1, seed: int = 0, **policy: Any
) -> Served:
    """A dispatcher whose phases follow each other at once, without deadlines unless the policy says otherwise."""
    n = population.size
    given = {"deadline_s": LONG_S, "aggregate_s": 0.0} | policy
    planner = Planner(np.full(n, rows), seed)
    devices = Devices(planner, population, availability or Always(), PolicyConfig(**given))
    return Served(devices, devices.start())


def collect(S: int) -> Collect:
    return Collect(Uniform(S), WholeShard())


def update(S: int, same_clients: bool = False) -> Update:
    return Update(Same() if same_clients else Uniform(S), LocalSteps(1, 1), eta=0.1, gamma=0.1)


def play(devices: Served, t: int, *phases: AnyPhase, traffic: Traffic = NOTHING) -> list[Outcome]:
    """Round t: outcomes up to the first phase that fails."""
    outcomes: list[Outcome] = []
    for phase in phases:
        outcomes.append(devices.dispatch(phase, t, traffic, outcomes[-1] if outcomes else None))
        if not outcomes[-1].valid:
            break
    devices.round_ended(t, outcomes[-1])
    return outcomes


def lasted_s(outcome: Outcome) -> float:
    return outcome.devices["close_s"] - outcome.devices["start_s"]


def durations(devices: Served, rounds: int, S: int) -> Floats:
    """Of one-phase rounds; NaN where one failed."""
    outcomes = [play(devices, t, collect(S))[0] for t in range(rounds)]
    return np.array([lasted_s(o) if o.valid else np.nan for o in outcomes])


def assert_mean(sample: Any, expected: float) -> None:
    """Within 4 standard errors."""
    sample = np.asarray(sample, dtype=float)
    error = sample.std(ddof=1) / np.sqrt(len(sample))
    assert abs(sample.mean() - expected) < 4 * error, f"{sample.mean():.5f} +- {error:.5f}, expected {expected}"


def assert_sd(sample: Floats, expected: float) -> None:
    """Within 4 standard errors: the mean of squared deviations is a mean too."""
    n = len(sample)
    assert_mean((sample - sample.mean()) ** 2 * n / (n - 1), expected**2)


# V1 to V5: the time of a phase is an order statistic


@pytest.mark.parametrize(("n", "S"), [(13, 10), (10, 10), (21, 16), (5, 1)])
@pytest.mark.parametrize("law", ["exponential", "lognormal"])
def test_the_close_is_the_order_statistic_whatever_the_law(law: str, n: int, S: int) -> None:
    """F(T_(S)) ~ Beta(S, n-S+1) for independent times with distribution function F."""
    population = drawn(exponential, 200) if law == "exponential" else lognormal(0.78, 200)
    cdf = stats.expon.cdf if law == "exponential" else stats.lognorm(0.78).cdf
    times = durations(serve(population, over_select=n / S, late="cancel"), 800, S)
    assert stats.kstest(cdf(times), stats.beta(S, n - S + 1).cdf).pvalue > UNLIKELY


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "S", "mean", "sd"),
    [
        (10, 10, 2.928968, 1.244897), (13, 10, 1.346800, 0.458020),
        (21, 16, 1.362025, 0.367178), (130, 100, 1.453604, 0.158497),
    ],
)  # fmt: skip
def test_exponential_times_have_the_moments_of_their_order_statistic(n: int, S: int, mean: float, sd: float) -> None:
    """E = H_n - H_(n-S), Var = the sum of 1/k^2 for k = n-S+1..n."""
    k = np.arange(n - S + 1, n + 1)
    assert mean == pytest.approx((1 / k).sum(), abs=1e-6)
    assert sd == pytest.approx(math.sqrt((1 / k**2).sum()), abs=1e-6)
    times = durations(serve(drawn(exponential, 3 * n), over_select=n / S, late="cancel"), 1500, S)
    assert_mean(times, mean)
    assert_sd(times, sd)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sigma", "S", "n", "mean"),
    [
        (0.78, 10, 13, 1.6671), (0.78, 100, 130, 1.7645), (0.78, 100, 100, 7.5125),
        (1.0, 10, 13, 1.9546), (1.0, 100, 130, 2.0744), (1.0, 100, 100, 13.5946),
        (0.5, 10, 13, 1.3746), (0.5, 100, 130, 1.4376), (0.5, 100, 100, 3.5895),
        (1.27, 10, 13, 2.3979), (1.27, 100, 130, 2.5325), (1.27, 100, 100, 28.63),
    ],
)  # fmt: skip
def test_lognormal_times_have_the_mean_of_their_order_statistic(sigma: float, S: int, n: int, mean: float) -> None:
    """E = the integral of the quantile at Beta's quantile. 30 % more make 100 of sigma 0.78 four times as fast."""
    order, law = stats.beta(S, n - S + 1), stats.lognorm(sigma)
    integral, _ = integrate.quad(lambda u: law.ppf(order.ppf(u)), 0, 1, limit=500)
    assert mean == pytest.approx(integral, rel=2e-4)
    assert_mean(durations(serve(lognormal(sigma, 3 * n), over_select=n / S, late="cancel"), 600, S), mean)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("h", "n", "S", "short", "mean"),
    [(0.05, 13, 10, 0.00260, 1.46217), (0.10, 13, 10, 0.02499, 1.57839), (0.10, 130, 100, None, 1.69560)],
)
def test_failures_make_rounds_short_and_slow_as_often_as_predicted(
    h: float, n: int, S: int, short: float | None, mean: float
) -> None:
    """Times with failures of rate h have the defective distribution (1 - exp(-(1+h)t)) / (1+h)."""
    devices = serve(drawn(exponential, 3 * n, h), over_select=n / S, late="cancel", max_failed_rounds=10**6)
    times = durations(devices, 3000 if n < 100 else 600, S)
    if short is not None:
        assert short == pytest.approx(stats.binom.cdf(S - 1, n, 1 / (1 + h)), abs=1e-5)
        failed = np.isnan(times)
        assert abs(failed.mean() - short) < 4 * math.sqrt(short * (1 - short) / len(times))
        assert failed.any()
    assert_mean(times[~np.isnan(times)], mean)


@pytest.mark.slow
def test_two_phases_add_up() -> None:
    """For independent draws and no busy device the moments of a round are the sums of its phases'."""
    devices = serve(drawn(exponential, 200), late="cancel", aggregate_s=0.5)
    began, times = [], []
    for t in range(1500):
        first, second = play(devices, t, collect(10), update(10))
        began.append(first.devices["start_s"])
        times.append(lasted_s(first) + lasted_s(second))
        assert second.devices["start_s"] == pytest.approx(first.devices["close_s"] + 0.5, abs=1e-5)
    assert_mean(times, 2 * 1.346800)
    assert_sd(np.array(times), math.sqrt(2) * 0.458020)
    assert_mean(np.diff(began), 2 * 1.346800 + 2 * 0.5)


# V6: the shape of a session


def test_the_shape_of_google_s_sessions_follows_from_over_selection_alone() -> None:
    """Accepted 1/1.3, dropped p, and late the rest: Bonawitz et al. (2019) report 75, 2 and 22 %."""
    p = 0.02
    devices = serve(drawn(exponential, 1000, p_start=p))
    shape = np.zeros(3)
    for t in range(100):
        (outcome,) = play(devices, t, collect(100))
        shape += [outcome.devices[fate] for fate in ("accepted", "late", "dropped_failed")]
    shape /= 130 * 100
    assert shape[0] == pytest.approx(1 / 1.3)
    assert abs(shape[2] - p) < 4 * math.sqrt(p / 13_000)
    assert shape[1] == pytest.approx(1 - shape[0] - shape[2])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("jitter", "round_s", "all_s", "wasted"), [(False, 96.1, 241.1, 0.3804), (True, 95.5, 267.4, 0.3904)]
)
def test_a_phase_of_the_default_devices(jitter: bool, round_s: float, all_s: float, wasted: float) -> None:
    """400 samples and 5.6 MB each way, 100 of 130, no deadline.

    The numbers come from a simulation of this phase in a dozen lines of NumPy, every device and time drawn afresh. A
    population is drawn only once here, so that populations, not rounds, are what is averaged over.
    """
    compute, link = ComputeConfig(), LinkConfig()
    if not jitter:
        compute, link = ComputeConfig(jitter_cv=0.0), LinkConfig(jitter_cv=0.0)
    traffic = Traffic(5_600_000, 0, 5_600_000)
    means: dict[str, list[float]] = {name: [] for name in ("round", "all", "late", "dropped", "wasted")}
    for seed in range(10):
        model = DeviceModel(seed=seed, compute=compute, link=link)
        fast = serve(Population(model, 20_000), Markov(seed=seed, clients=20_000), rows=400, aggregate_s=60.0)
        outcomes = [play(fast, t, collect(100), traffic=traffic)[0] for t in range(15)]
        total = {name: sum(o.devices[name] for o in outcomes) for name in outcomes[0].devices}
        means["round"].append(float(np.mean([lasted_s(o) for o in outcomes])))
        means["late"].append(total["late"] / total["invited"])
        means["dropped"].append((total["dropped_offline"] + total["dropped_failed"]) / total["invited"])
        means["wasted"].append(total["compute_s_wasted"] / total["compute_s"])
        model = model.model_copy(update={"failure": SURE})
        patient = serve(Population(model, 20_000), rows=400, over_select=1.0, close="wait_all", aggregate_s=LONG_S)
        means["all"].append(
            float(np.mean([lasted_s(play(patient, t, collect(100), traffic=traffic)[0]) for t in range(40)]))
        )
    assert_mean(means["round"], round_s)
    assert_mean(means["all"], all_s)
    assert_mean(means["late"], 0.197)
    assert_mean(means["dropped"], 0.0335)
    assert_mean(means["wasted"], wasted)


# V8: uniform invitations


def test_every_always_on_device_is_invited_as_often() -> None:
    N, S, R = 150, 12, 1500
    devices = serve(lasting(*[1.0] * N), over_select=1.0)
    drawn_RN = np.zeros((R, N))
    for t in range(R):
        drawn_RN[t, play(devices, t, collect(S))[0].accepted] = 1
    counts, v = drawn_RN.sum(0), R * (S / N) * (1 - S / N)
    statistic = (N - 1) / N * ((counts - R * S / N) ** 2).sum() / v
    assert UNLIKELY < stats.chi2(N - 1).sf(statistic) < 1 - UNLIKELY
    together = drawn_RN.T @ drawn_RN
    pairs = together[np.triu_indices(N, 1)] / R
    p = S * (S - 1) / (N * (N - 1))
    assert pairs.mean() == pytest.approx(p)  # it is so in every round
    assert pairs.std() == pytest.approx(math.sqrt(p * (1 - p) / R), rel=0.05)
    values = np.random.default_rng(0).standard_normal(N)
    means = drawn_RN @ values / S
    error = values.std(ddof=1) * math.sqrt((1 - S / N) / S / R)
    assert abs(means.mean() - values.mean()) < 4 * error
    assert means.std() == pytest.approx(error * math.sqrt(R), rel=0.1)


# V10: conservation


def random_policy(rng: np.random.Generator) -> dict[str, Any]:
    close = str(rng.choice(["first_s", "deadline", "wait_all"]))
    return {
        "over_select": float(rng.uniform(1, 2)),
        "close": close,
        "responders": "fastest" if close == "wait_all" else str(rng.choice(["fastest", "uniform"])),
        "deadline_s": float(rng.uniform(30, 400)),
        "min_report": 1.0 if close == "first_s" else float(rng.uniform(0.2, 1)),
        "late": str(rng.choice(["finish", "cancel"])),
        "phase2_clients": [None, "resample", "same_candidates", "responders"][rng.integers(4)],
        "dropout_override": DropoutOverride(uniform_ratio=0.5) if rng.random() < 0.2 else None,
        "min_separation_rounds": int(rng.integers(0, 3)),
        "max_failed_rounds": 10**6,
        "aggregate_s": float(rng.uniform(0, 5)),
    }


@pytest.mark.parametrize("case", range(40))
def test_nothing_is_lost_and_time_goes_on_whatever_the_policy(case: int) -> None:
    rng = np.random.default_rng(case)
    N, S = 400, int(rng.integers(1, 25))
    model = DeviceModel(seed=case, failure=FailureConfig(hazard_per_s=2e-3, p_start=0.02))
    on = Markov(seed=case, clients=N, share=0.5, mean_on_s=600)
    policy = random_policy(rng)
    devices = serve(Population(model, N), on, rows=200, **policy)
    traffic = Traffic(2_000_000, 1_000_000, 1_500_000)
    now_s = 0.0
    for t in range(12):
        for outcome in play(devices, t, collect(S), update(S), traffic=traffic):
            row, n = outcome.devices, len(outcome.invited)
            assert n == row["invited"] == sum(row[fate] for fate in FATES)
            assert row["accepted"] == len(outcome.accepted)
            assert len(set(outcome.invited.tolist())) == n <= row["eligible"] <= row["available"] <= N
            assert set(outcome.accepted) <= set(outcome.informed) <= set(outcome.invited)
            assert (np.diff(outcome.accepted) > 0).all()
            assert now_s + row["wait_s"] == pytest.approx(row["start_s"])
            assert row["start_s"] <= row["close_s"] <= row["start_s"] + devices.devices.policy.deadline_s + 1e-6
            now_s = row["close_s"] + policy["aggregate_s"]
            for name, total in (("bytes_down", outcome.bytes_down), ("bytes_up", outcome.bytes_up)):
                assert 0 <= row[f"{name}_wasted"] <= total <= n * 2_000_000
            assert 0 <= row["compute_s_wasted"] <= row["compute_s"] + 1e-9
            assert all(math.isfinite(value) for value in row.values())
            if outcome.valid:
                assert outcome.bytes_up - row["bytes_up_wasted"] == pytest.approx(1_500_000 * len(outcome.accepted))
                if policy["close"] != "wait_all":
                    assert len(outcome.accepted) <= S
            else:
                assert row["bytes_down_wasted"] == outcome.bytes_down
                assert row["compute_s_wasted"] == row["compute_s"]


# V11: determinism


def same_outcome(a: Outcome, b: Outcome) -> bool:
    arrays = all(np.array_equal(getattr(a, name), getattr(b, name)) for name in ("accepted", "invited", "informed"))
    return arrays and (a.valid, a.bytes_down, a.bytes_up, a.devices) == (b.valid, b.bytes_down, b.bytes_up, b.devices)


def test_a_task_does_not_depend_on_who_else_is_asked_or_was_asked_before() -> None:
    population = Population(DeviceModel(failure=FailureConfig(p_start=0.1)), 300)

    def asked(clients: Clients, t: int, phase: str) -> NDArray[np.int64]:
        n = len(clients)
        tasks = population.tasks(clients, t, phase, np.full(n, 50), np.full(n, 10**6), 10**6)
        return np.stack([tasks.wait_us, tasks.down_us, tasks.compute_us, tasks.up_us, tasks.fail_us])

    everyone = np.arange(300)
    before = asked(everyone, 7, "collect")
    for t, phase in ((8, "collect"), (7, "update")):
        assert (asked(everyone, t, phase)[1:] != before[1:]).mean() > 0.5, "another task has fluctuations of its own"
    order = np.random.default_rng(0).permutation(300)[:40]
    np.testing.assert_array_equal(asked(order, 7, "collect"), before[:, order])
    larger = Population(population.model, 5000)
    np.testing.assert_array_equal(larger.down_bps_N[:300], population.down_bps_N)


def test_a_phase_depends_on_the_clock_alone_and_not_on_how_it_came_there() -> None:
    """The clock, given to a fresh dispatcher, is all there is: so a run can be taken up anywhere."""

    def fresh() -> Served:
        model = DeviceModel(failure=FailureConfig(hazard_per_s=1e-3))
        return serve(Population(model, 500), Markov(seed=1, clients=500), rows=300, min_separation_rounds=1)

    played = fresh()
    clocks, outcomes = [], []
    for t in range(8):
        clocks.append(pickle.dumps(played.clock))
        outcomes.append(play(played, t, collect(10), update(10)))
    assert (played.clock.busy_until_us > played.clock.now_us).any(), "some are busy from round to round"
    for t in (5, 2, 7):
        other = Served(fresh().devices, pickle.loads(clocks[t]))
        for a, b in zip(play(other, t, collect(10), update(10)), outcomes[t], strict=True):
            assert same_outcome(a, b)


REAL: dict[str, Any] = {"availability": {"name": "markov", "share": 0.7, "mean_on_s": 300}}


def ledgers(folder: Path, **sections: Any) -> tuple[dict[str, list[dict[str, Any]]], Point]:
    """The tables of a run of 4 rounds without the times of this machine, and its last point."""
    data = {"clients": 60, "rows": 6}
    given = {"devices": REAL, "server": {"deadline_s": 30.0}, "rounds": 4, "data": data} | sections
    playing = server(experiment(QUADRATIC, settings("cd_mage", S=8), **given), folder)
    for _ in playing.run():
        pass
    return {name: table.to_pylist() for name, table in tables(folder).items()}, playing.point


def test_two_runs_keep_the_same_books(tmp_path: Path) -> None:
    books, z = ledgers(tmp_path)
    again, same = ledgers(tmp_path)
    assert books == again
    assert torch.equal(z.x, same.x)
    for block in (1, 3):
        other, _ = ledgers(tmp_path, clients={"block": block})
        assert {n: other[n] for n in ("rounds", "participation")} == {n: books[n] for n in ("rounds", "participation")}
    elsewhere, _ = ledgers(tmp_path, devices=REAL | {"seed": 1})
    assert elsewhere["rounds"] != books["rounds"]
    assert sum(row["late"] for row in books["rounds"]) > 0
    assert [row["sim_s"] for row in books["metrics"]] == sorted(row["sim_s"] for row in books["metrics"])


# Edges: nobody, too few, too small


def test_when_everybody_drops_the_phase_lasts_to_the_deadline_and_the_round_is_undone(tmp_path: Path) -> None:
    devices = {
        "availability": {"name": "always"},
        "failure": {"hazard_per_s": 1.0},
        "compute": {"median_s_per_sample": 1e3},
    }
    made = experiment(
        QUADRATIC, settings("cd_mage"), devices=devices, server={"deadline_s": 200.0, "max_failed_rounds": 2}
    )
    playing = server(made, tmp_path)
    before = playing.state
    playing.play(0)
    assert playing.state is before
    playing.play(1)
    with pytest.raises(RoundsFailed) as caught:
        playing.play(2)
    assert "3 rounds in a row have failed at 0.2 simulated hours" in str(caught.value)
    assert "of the devices invited in them: 18 dropped_failed." in str(caught.value)
    assert playing.clock.now_s == pytest.approx(3 * 201.0)
    playing.ledger.write(tmp_path)
    rows = pq.read_table(tmp_path / "rounds.parquet").to_pylist()
    assert [(r["round"], r["phase"], r["valid"], r["accepted"], r["rows"]) for r in rows] == [
        (t, "collect", False, 0, 0) for t in range(3)
    ]
    for row in rows:
        assert row["close_s"] - row["start_s"] == pytest.approx(200)
        assert (row["invited"], row["dropped_failed"]) == (6, 6)
        assert row["bytes_down"] == row["bytes_down_wasted"] > 0
        assert row["compute_s"] == row["compute_s_wasted"] > 0
        assert row["bytes_up"] == 0


def test_devices_that_fail_at_once_cost_nothing_but_time() -> None:
    model = DeviceModel(link=LINK, failure=FailureConfig(p_start=1.0))
    devices = serve(Population(model, 20), deadline_s=50.0)
    (outcome,) = play(devices, 0, collect(5), traffic=Traffic(1000, 0, 1000))
    assert not outcome.valid
    assert (outcome.bytes_down, outcome.bytes_up, outcome.devices["compute_s"]) == (0, 0, 0)
    assert lasted_s(outcome) == 50
    assert not (devices.clock.busy_until_us > 0).any()


def test_failed_rounds_count_only_in_a_row(tmp_path: Path) -> None:
    devices = serve(drawn(lambda clients, u: np.ones(len(u)), 20), max_failed_rounds=1)
    some, nobody = np.arange(2), np.arange(0)
    good, bad = Outcome(2, some, some, some, True, 0, 0), Outcome(2, nobody, some, some, False, 0, 0)
    for t, outcome in enumerate([bad, good, bad]):
        devices.round_ended(t, outcome)
    with pytest.raises(RoundsFailed, match="of the devices invited in them: none"):
        devices.round_ended(3, bad)


def test_nobody_on_is_an_error_that_counts_the_reasons(tmp_path: Path) -> None:
    made = experiment(
        QUADRATIC, settings("cd_mage"), devices={"availability": {"name": "bernoulli", "share": 0.0}},
        server={"max_wait_s": 600.0},
    )  # fmt: skip
    with pytest.raises(NotEnoughDevices) as caught:
        server(made, tmp_path).play(0)
    assert str(caught.value).startswith(
        "round 0, phase 'collect': 4 devices are needed, and 0 of 8 are eligible after waiting 600 s (8 off;"
    )
    assert "server.max_wait_s" in str(caught.value)


def table(folder: Path, *lines: str) -> str:
    path = folder / "devices.csv"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_devices_without_a_link_are_never_asked_and_counted(tmp_path: Path) -> None:
    model = DeviceModel(table=table(tmp_path, "ms_per_sample,down_kbps", "60,0", "60,5000"))
    population = Population(model, 100)
    linked = int(population.has_link_N.sum())
    assert 0 < linked < 100
    devices = serve(population, rows=10)
    (outcome,) = play(devices, 0, collect(linked // 2), traffic=Traffic(1000, 0, 1000))
    assert population.has_link_N[outcome.invited].all()
    assert outcome.devices["eligible"] == linked
    with pytest.raises(NotEnoughDevices, match=rf"{linked} of 100 are eligible .*{100 - linked} without a link"):
        play(serve(population, rows=10), 0, collect(linked + 1))


def test_devices_with_too_little_memory_are_never_asked_and_counted(tmp_path: Path) -> None:
    rows = table(tmp_path, "ms_per_sample,ram_gb", "60,2", "40,4", "20,8")
    model = DeviceModel(table=rows, memory=MemoryConfig(required_mb=4096))
    population = Population(model, 300)
    able = int(population.has_memory_N.sum())
    assert abs(able / 300 - 2 / 3) < 4 * math.sqrt(2 / 9 / 300)
    np.testing.assert_array_equal(population.has_memory_N, population.sec_per_sample_N < 0.05)
    devices = serve(population, rows=10)
    for t in range(10):
        (outcome,) = play(devices, t, collect(50))
        assert population.has_memory_N[outcome.invited].all()
    with pytest.raises(NotEnoughDevices, match=f"{300 - able} with too little memory"):
        play(serve(population, rows=10), 0, collect(able + 1))


def test_memory_that_nobody_knows_cannot_be_required(tmp_path: Path) -> None:
    for rows in (None, table(tmp_path, "ms_per_sample", "60")):
        with pytest.raises(ConfigError, match=r"^devices.memory.required_mb: is 4096, but no memory is known"):
            Population(DeviceModel(table=rows, memory=MemoryConfig(required_mb=4096)), 10)


def test_a_missing_table_is_met_when_the_experiment_is_built() -> None:
    with pytest.raises(DataError, match="there is no file"):
        experiment(QUADRATIC, settings("cd_mage"), devices={"table": "nothing.csv"})


def test_no_time_is_spent_on_waiting_for_what_cannot_come() -> None:
    with pytest.raises(NotEnoughDevices, match="after waiting 0 s"):
        play(serve(lasting(*[1.0] * 5)), 0, collect(6))


def test_more_clients_than_there_are_cannot_be_asked_for() -> None:
    with pytest.raises(ConfigError, match=r"^algorithm.S: cannot sample 9 clients of 8"):
        experiment(QUADRATIC, settings("cd_mage", S=9), devices={"availability": {"name": "always"}})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("over_select", 0.9),
        ("over_select", math.nan),
        ("over_select", math.inf),
        ("deadline_s", 0.0),
        ("deadline_s", -1.0),
        ("deadline_s", math.nan),
        ("deadline_s", math.inf),
        ("deadline_s", 1e300),  # more than the clock can count
        ("poll_s", 0.0),
        ("poll_s", 1e-9),  # less than it can: the server would look for ever
        ("min_report", 0.0),
        ("min_separation_rounds", -1),
        ("close", "fedbuff"),
    ],
)
def test_policies_that_make_no_sense_are_refused_by_name(key: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(QUADRATIC | {"algorithm": settings("cd_mage"), "server": {key: value}})
    assert caught.value.key == f"server.{key}"


def test_one_of_one() -> None:
    devices = serve(lasting(7.0))
    outcomes = play(devices, 0, collect(1), update(1))
    assert [o.accepted.tolist() for o in outcomes] == [[0], [0]]
    assert devices.clock.now_s == 14


def test_over_selection_asks_for_whole_devices_and_no_more_than_there_are() -> None:
    devices = serve(lasting(*[1.0] * 40), over_select=1.1)
    assert [len(play(devices, t, collect(S))[0].invited) for t, S in enumerate((10, 1, 3, 38))] == [11, 2, 4, 40]


# Edges: ties, waiting, the busy


def test_of_equal_arrivals_chance_decides_and_no_number() -> None:
    devices = serve(lasting(*[5.0] * 40), over_select=2.0)
    counts, first = np.zeros(40), []
    for t in range(400):
        (outcome,) = play(devices, t, collect(10))
        assert (outcome.devices["accepted"], outcome.devices["late"]) == (10, 10)
        counts[outcome.accepted] += 1
        first.append(outcome.accepted.tolist())
        assert lasted_s(outcome) == 5
    statistic = ((counts - 100) ** 2).sum() * 39 / 40 / (400 * 0.25 * 0.75)
    assert UNLIKELY < stats.chi2(39).sf(statistic) < 1 - UNLIKELY
    again = serve(lasting(*[5.0] * 40), over_select=2.0)
    assert [play(again, t, collect(10))[0].accepted.tolist() for t in range(400)] == first


def test_waiting_for_busy_devices_looks_again_at_every_poll() -> None:
    devices = serve(lasting(*[1.0] * 8), poll_s=100.0)
    devices.clock.busy_until_us[:] = 250 * SECOND_US
    (outcome,) = play(devices, 0, collect(4))
    assert (outcome.devices["wait_s"], outcome.devices["start_s"]) == (300, 300)
    assert devices.clock.now_s == 301


def test_waiting_for_a_turn_ends_with_it() -> None:
    devices = serve(lasting(*[1.0] * 8), Cyclic(groups=2, period_s=1000.0, clients=8), poll_s=300.0)
    devices.clock.busy_until_us[::2] = 10**12
    (outcome,) = play(devices, 0, collect(4))
    assert outcome.devices["start_s"] == 1000
    assert outcome.invited.tolist() == [1, 3, 5, 7]
    assert outcome.devices["available"] == 4


def test_waiting_for_a_trace_ends_at_its_next_change(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    on: dict[str, Any] = {"charging": [[500.5, 900]], "horizon_s": 1000}
    path.write_text(json.dumps({"devices": {"a": on, "b": on | {"charging": [[100, 200], [500.25, 900]]}}}))
    trace = Trace(path=str(path), format="intervals", seed=0, clients=2)
    (outcome,) = play(serve(lasting(1.0, 1.0), trace), 0, collect(2))
    assert outcome.devices["wait_s"] == 500.5


def test_devices_that_turn_off_are_booked_to_that_instant() -> None:
    devices = serve(lasting(10.0, 10.0), Cyclic(groups=2, period_s=4.0, clients=2), deadline_s=20.0, over_select=2.0)
    (outcome,) = play(devices, 0, collect(1))
    assert (outcome.valid, outcome.devices["dropped_offline"], outcome.devices["compute_s"]) == (False, 1, 4)
    assert lasted_s(outcome) == 20, "the server does not learn of it before the deadline"


def test_late_devices_stay_busy_unless_they_are_cancelled() -> None:
    for late, eligible, seconds in (("finish", 2, 1.0 + 1.0 + 50.0), ("cancel", 3, 3.0)):
        devices = serve(lasting(1.0, 1.0, 50.0), over_select=1.5, late=late)
        (first,) = play(devices, 0, collect(2))
        assert first.accepted.tolist() == [0, 1]
        assert (first.devices["late"], first.devices["cancelled"]) == ((1, 0) if late == "finish" else (0, 1))
        assert first.devices["compute_s"] == seconds
        assert first.devices["compute_s_wasted"] == seconds - 2
        (second,) = play(devices, 1, collect(2))
        assert second.devices["eligible"] == eligible
        assert (2 in second.invited) == (late == "cancel")
        devices.clock.now_us = 50 * SECOND_US
        assert play(devices, 2, collect(2))[0].devices["eligible"] == 3


def test_devices_rest_between_rounds() -> None:
    devices = serve(lasting(*[1.0] * 12), over_select=1.0, min_separation_rounds=2)
    asked = [[set(o.invited.tolist()) for o in play(devices, t, collect(4), update(4, True))] for t in range(9)]
    for t, (first, second) in enumerate(asked):
        assert first == second, "not between the phases of a round"
        for earlier in asked[max(0, t - 2) : t]:
            assert not first & earlier[0]
    with pytest.raises(NotEnoughDevices, match="8 resting"):
        play(devices, 9, collect(5))


# Edges: two phases


@pytest.mark.parametrize("rule", ["resample", "same_candidates", "responders"])
def test_who_may_be_asked_in_the_second_phase(rule: str) -> None:
    """Half of the devices take 30 times as long, so that some are late, and busy when the second phase begins."""
    devices = serve(lasting(*[1.0] * 50, *[30.0] * 50), over_select=2.0, phase2_clients=rule)
    topped_up = 0.0
    for t in range(20):
        first, second = play(devices, t, collect(10), update(10))
        before, accepted, asked = (set(c.tolist()) for c in (first.invited, first.accepted, second.invited))
        assert len(asked) == 20
        pool = {"resample": set(range(100)), "same_candidates": before, "responders": accepted}[rule]
        assert second.devices["topped_up"] == len(asked - pool)
        topped_up += second.devices["topped_up"]
        if lasted_s(first) == 1:
            busy = {client for client in before if client >= 50}
            assert busy
            assert not asked & busy, "late devices are still at work"
            if rule == "same_candidates":
                assert asked & before == before - busy, "all who can, since some had to be found elsewhere"
        if rule == "responders":
            assert accepted <= asked
            assert second.devices["topped_up"] == 10
        devices.clock.now_us += 60 * SECOND_US
    assert (topped_up == 0) == (rule == "resample")


def test_the_rule_for_the_second_phase_follows_the_algorithm_unless_it_is_given() -> None:
    for given, same_clients, alike in ((None, False, False), (None, True, True), ("resample", True, False)):
        devices = serve(lasting(*[1.0] * 100), over_select=1.0, phase2_clients=given)
        first, second = play(devices, 0, collect(10), update(10, same_clients))
        assert (first.accepted.tolist() == second.accepted.tolist()) == alike


def test_who_holds_the_snapshot_downloads_the_correction_alone(tmp_path: Path) -> None:
    ideal = {"availability": {"name": "always"}, "failure": {"hazard_per_s": 0.0}}
    vector = 7 * 8  # |x| + |y| = 7 numbers of float64
    for phase2, S in (("same_candidates", 8), ("resample", 4)):
        policy = {"over_select": 1.0, "phase2_clients": phase2}
        playing = server(experiment(QUADRATIC, settings("cd_mage", S=S), devices=ideal, server=policy), tmp_path)
        for t in range(5):
            playing.play(t)
        playing.ledger.write(tmp_path)
        took_part = pq.read_table(tmp_path / "participation.parquet").to_pylist()
        for row in pq.read_table(tmp_path / "rounds.parquet").to_pylist():
            who = {
                p: {r["client"] for r in took_part if (r["round"], r["phase"]) == (row["round"], p)}
                for p in ("collect", "update")
            }
            holders = len(who["collect"] & who["update"])
            update_bytes = vector * holders + 2 * vector * (S - holders)
            assert row["bytes_down"] == (S * vector if row["phase"] == "collect" else update_bytes)
            assert row["bytes_up"] == S * vector


def test_a_device_that_was_cut_off_while_downloading_holds_nothing() -> None:
    """Downloads take 8 s on every second device, and the phase is over after 3."""
    slow = np.arange(40) % 2 == 1
    rate = np.where(slow, 1e6, 8e6)
    population = Linked(
        DeviceModel(link=LINK, failure=SURE), 40, law=lambda clients, u: np.ones(len(u)), down=rate, up=rate
    )
    devices = serve(population, over_select=2.0, late="cancel", phase2_clients="same_candidates")
    (first,) = play(devices, 0, collect(10), traffic=Traffic(1_000_000, 0, 0))
    assert set(first.informed) == set(first.invited[~slow[first.invited]])
    assert first.devices["cancelled"] == slow[first.invited].sum() > 0


# Edges: policies


def test_the_authors_drop_rule() -> None:
    """S - floor(U r S) are kept in each phase: for S = 8 and r = 1/2 one of 5, 6, 7, 8, each as likely."""
    rule = DropoutOverride(uniform_ratio=0.5)
    devices = serve(lasting(*[4.0] * 100), over_select=1.0, close="wait_all", dropout_override=rule)
    kept, lost = [], np.zeros(100)
    for t in range(600):
        for outcome in play(devices, t, collect(8), update(8), traffic=Traffic(10, 0, 1000)):
            assert outcome.valid
            assert len(outcome.invited) == 8
            assert outcome.bytes_up == 1000 * len(outcome.accepted)
            assert outcome.bytes_down == 80
            assert outcome.devices["dropped_failed"] == 8 - len(outcome.accepted)
            assert lasted_s(outcome) == pytest.approx(4, abs=0.1), "the clock is not touched"
            kept.append(len(outcome.accepted))
            lost[np.setdiff1d(outcome.invited, outcome.accepted)] += 1
    assert_mean(kept, 6.5)
    counts = np.bincount(kept, minlength=9)[5:]
    assert counts.sum() == len(kept)
    assert stats.chisquare(counts).pvalue > UNLIKELY
    assert stats.chisquare(lost).pvalue > UNLIKELY
    pairs = np.array(kept).reshape(-1, 2)
    assert abs(np.corrcoef(pairs.T)[0, 1]) < 4 / math.sqrt(len(pairs)), "each phase draws anew"


def test_waiting_for_all_accepts_all() -> None:
    devices = serve(lasting(*range(1, 11)), over_select=2.0, close="wait_all")
    (outcome,) = play(devices, 0, collect(5))
    assert outcome.accepted.tolist() == list(range(10))
    assert lasted_s(outcome) == 10
    devices = serve(lasting(*range(1, 11)), over_select=2.0, close="wait_all", deadline_s=7.0, min_report=0.4)
    (outcome,) = play(devices, 0, collect(5))
    assert (outcome.valid, outcome.accepted.tolist(), lasted_s(outcome)) == (True, list(range(7)), 7)
    assert outcome.devices["timed_out"] == 3


@pytest.mark.parametrize(("min_report", "valid"), [(0.5, True), (0.6, True), (0.61, False), (1.0, False)])
def test_a_deadline_makes_do_with_the_share_asked_for(min_report: float, valid: bool) -> None:
    devices = serve(
        lasting(*range(10, 110, 10)), over_select=1.0, close="deadline", deadline_s=60.0, min_report=min_report
    )
    (outcome,) = play(devices, 0, collect(10))
    assert (outcome.valid, len(outcome.accepted)) == (valid, 6)
    assert lasted_s(outcome) == 60
    assert outcome.devices["timed_out"] == 4
    assert outcome.devices["compute_s"] == 10 + 20 + 30 + 40 + 50 + 60 * 5
    assert outcome.devices["compute_s_wasted"] == (240 if valid else 450)
    assert (devices.clock.busy_until_us <= 60 * SECOND_US).all()


def test_a_deadline_is_not_waited_for_when_enough_have_come() -> None:
    devices = serve(lasting(*range(10, 110, 10)), over_select=2.0, close="deadline", deadline_s=60.0)
    (outcome,) = play(devices, 0, collect(5))
    assert (lasted_s(outcome), outcome.accepted.tolist()) == (50, [0, 1, 2, 3, 4])
    assert (outcome.devices["late"], outcome.devices["timed_out"]) == (1, 4)


def test_transfers_and_computing_are_told_apart_at_the_deadline() -> None:
    seconds = np.array([1.0, 30.0, 9.0])
    down, up = np.array([8e3, 8e6, 8e6]), np.array([8e6, 8e6, 8e3])
    population = Linked(
        DeviceModel(link=LINK, failure=SURE), 3, law=lambda clients, u: seconds[clients], down=down, up=up
    )
    devices = serve(population, over_select=1.0, deadline_s=10.0)
    (outcome,) = play(devices, 0, collect(3), traffic=Traffic(20_000, 0, 20_000))
    assert (outcome.devices["dropped_link"], outcome.devices["timed_out"]) == (2, 1)
    assert outcome.bytes_down == 10_000 + 20_000 + 20_000
    assert outcome.bytes_up == pytest.approx(980, abs=1)  # 10 s less 9 and the download


def test_uniform_responders_favour_nobody_and_take_longer() -> None:
    slow = np.arange(400) % 2 == 1
    shares, times = {}, {}
    for responders in ("fastest", "uniform"):
        population = drawn(lambda clients, u: np.exp(stats.norm.ppf(u)) * np.where(slow[clients], 3, 1), 400)
        devices = serve(population, over_select=2.0, late="cancel", responders=responders)
        outcomes = [play(devices, t, collect(20))[0] for t in range(300)]
        shares[responders] = [slow[o.accepted].mean() for o in outcomes]
        times[responders] = np.mean([lasted_s(o) for o in outcomes])
    assert_mean(shares["uniform"], 0.5)
    assert np.mean(shares["fastest"]) < 0.35
    assert times["uniform"] > 3 * times["fastest"]


# Algorithms over devices

IDEAL = {
    "devices": {"availability": {"name": "always"}, "failure": {"hazard_per_s": 0.0}},
    "server": {"over_select": 1.0, "close": "wait_all", "deadline_s": 1e8},
}


@pytest.mark.parametrize("name", ALL_ROWS)
def test_devices_that_never_fail_change_no_bit(name: str, tmp_path: Path) -> None:
    base = base_of(name)
    plain = trajectory(experiment(base, settings(name)), tmp_path, 3)
    for over in ({}, {"precision": "float32"}):
        if over:
            plain = trajectory(experiment(base, settings(name), **over), tmp_path, 3)
        for a, b in zip(trajectory(experiment(base, settings(name), **IDEAL, **over), tmp_path, 3), plain, strict=True):
            assert torch.equal(a.x, b.x)
            assert torch.equal(a.y, b.y)
    assert torch.equal(plain[0].x, plain[3].x) != ALL_ROWS[name].moves


@dataclass(frozen=True)
class Interrupted(Ideal):
    """Everybody is there, but the phases named fail."""

    fails: frozenset[tuple[int, str]] = frozenset()

    def dispatch(self, clock: Streak, phase: AnyPhase, t: int, traffic: Traffic, before: Outcome | None) -> Outcome:
        outcome = super().dispatch(clock, phase, t, traffic, before)
        return replace(outcome, valid=False) if (t, phase.name) in self.fails else outcome


def interrupted(name: str, folder: Path, *fails: tuple[int, str]) -> Any:
    playing = server(experiment(QUADRATIC, settings(name)), folder)
    dispatcher = Interrupted(playing.job.planner, PolicyConfig(), frozenset(fails))
    playing.job = replace(playing.job, dispatcher=dispatcher)
    return playing


@pytest.mark.parametrize("phase", ["collect", "update"])
@pytest.mark.parametrize("name", ["cd_mage", "cd_mage_plus"])
def test_a_failed_round_leaves_no_trace_in_the_state(name: str, phase: str, tmp_path: Path) -> None:
    playing = interrupted(name, tmp_path, (2, phase))
    playing.play(0)
    playing.play(1)
    before = playing.state
    copies = [leaf.clone() for z in (before.z, before.z_prev, before.u) for leaf in (z.x, z.y)]
    playing.play(2)
    assert playing.state is before
    after = [leaf for z in (before.z, before.z_prev, before.u) for leaf in (z.x, z.y)]
    assert all(torch.equal(a, b) for a, b in zip(copies, after, strict=True))
    playing.play(3)
    other = interrupted(name, tmp_path)
    other.state = before
    other.play(3)
    for part in ("z", "z_prev", "u"):
        for side in ("x", "y"):
            assert torch.equal(getattr(getattr(playing.state, part), side), getattr(getattr(other.state, part), side))
    assert not torch.equal(playing.state.z.x, before.z.x)


@pytest.mark.parametrize("phase", ["collect", "update"])
def test_after_a_failed_first_round_cd_mage_plus_has_an_unscaled_estimate(phase: str, tmp_path: Path) -> None:
    """Nothing precedes the first estimate, whenever it comes: it is the mean gradient, as that of CD-MAGE."""
    plus, plain = (interrupted(name, tmp_path, (0, phase)) for name in ("cd_mage_plus", "cd_mage"))
    for playing in (plus, plain):
        playing.play(0)
        playing.play(1)
    torch.testing.assert_close(plus.state.u.x, plain.state.u.x, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(plus.state.u.y, plain.state.u.y, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cd_mage", "cd_mage_plus"])
def test_rounds_that_fail_now_and_then_do_not_keep_from_converging(name: str, tmp_path: Path) -> None:
    policy = {"over_select": 1.0, "max_failed_rounds": 100}
    flaky = {"availability": {"name": "always"}, "failure": {"hazard_per_s": 0.0, "p_start": 0.02}}
    made = experiment(QUADRATIC, settings(name, "everyone"), devices=flaky, server=policy, data={"rows": 2})
    playing = server(made, tmp_path)
    known = made.problem.known(made.shards)  # type: ignore[attr-defined]
    start = (playing.point - known).norm()
    for t in range(50):
        playing.play(t)
    playing.ledger.write(tmp_path)
    valid = pq.read_table(tmp_path / "rounds.parquet")["valid"].to_numpy()
    assert 5 < (~valid).sum() < 25
    assert (playing.point - known).norm() < 0.1 * start


# Presets


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.data) if n == "flash_trace" else n for n in PRESETS]
)
def test_every_preset_runs(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if name == "flash_trace":
        request.getfixturevalue("data_root")
    made = experiment(QUADRATIC, settings("cd_mage", S=5), data={"clients": 300}, rounds=2, devices=name)
    *_, last = server(made, tmp_path).run()
    assert last.sim_s is not None
    assert last.sim_s > 0
    rows = pq.read_table(tmp_path / "rounds.parquet").to_pylist()
    assert {row["round"] for row in rows} == {0, 1}
    assert all(row["available"] is not None for row in rows)


def test_an_unknown_preset_is_named_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"^devices.preset: there is no preset 'phones_globl'.*phones_global"):
        experiment(QUADRATIC, settings("cd_mage"), devices="phones_globl")


def test_keys_beside_a_preset_win() -> None:
    algorithm = settings("cd_mage")
    plain = experiment(QUADRATIC, algorithm, devices="stragglers")
    assert plain.config.devices is not None
    assert (plain.config.devices.compute.sigma, plain.config.devices.failure.hazard_per_s) == (1.27, 0)
    assert plain.config.devices.preset == "stragglers"
    beside = {"compute": {"jitter_cv": 0.0}, "availability": {"name": "bernoulli", "share": 1.0}}
    own = experiment(QUADRATIC, algorithm, devices={"preset": "stragglers", **beside})
    assert own.config.devices is not None
    assert (own.config.devices.compute.sigma, own.config.devices.compute.jitter_cv) == (1.27, 0)
    assert own.config.devices.availability.name == "bernoulli"
    paper = experiment(QUADRATIC, algorithm, devices="paper_drop", server={"over_select": 1.5, "aggregate_s": 0.0})
    assert (paper.config.server.over_select, paper.config.server.close) == (1.5, "wait_all")
    assert paper.config.server.dropout_override == DropoutOverride(uniform_ratio=0.5)
    again = Experiment.build(load_config(paper.resolved))
    assert again.resolved == paper.resolved, "a resolved configuration can be run again"
