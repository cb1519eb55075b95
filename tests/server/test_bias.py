"""Who takes part decides where training goes: known effects of biased participation, predicted beside measured.

`pytest tests/server/test_bias.py -rP` prints both; docs/devices.md has the table. Legend: N clients, S needed, n
invited, pi_k or w_k how often client k is about, c_k its optimum, h_k its curvature.
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import optimize, stats

from cluster.experiment import Experiment
from raysim.algorithms.cd_mage import Collect
from raysim.devices import Availability, Population
from raysim.devices.availability import Always, Bernoulli, Label
from raysim.devices.population import ComputeConfig, DeviceModel, FailureConfig, LinkConfig
from raysim.phase import Uniform, WholeShard
from raysim.wire import Traffic
from server.dispatch import Clients, Devices
from server.plan import Planner
from server.policy import PolicyConfig
from tests import toys_devices as toys
from tests.play import experiment, server

WELLS: dict[str, Any] = {
    "name": "test",
    "rounds": 1,
    "precision": "float64",
    "data": {"name": "tests.toys_devices:Wells", "clients": 400},
    "partition": {"name": "natural"},
    "problem": {"name": "tests.toys_devices:Well"},
    "evaluate": {"every": 1000, "splits": ["train"]},
}
SURE = FailureConfig(hazard_per_s=0.0)
INSTANT = {"over_select": 1.0, "aggregate_s": 0.0}


def report(what: str, predicted: float, measured: float, error: float | None = None) -> None:
    by = "" if error is None else f" +- {error:.4f}"
    print(f"{what}: predicted {predicted:.4f}, measured {measured:.4f}{by}")  # noqa: T201


def wells(made: Experiment) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """h, c and the label scores of the clients, (N,) each."""
    h, c = made.shards.train.features.astype(np.float64).T
    return h, c, made.shards.train.labels / 100


def spread(w: NDArray[np.float64], h: NDArray[np.float64], c: NDArray[np.float64]) -> float:
    """Standard deviation of one client's pull on x: over S clients and R rounds the mean x has it over sqrt(S R)."""
    pull = h * (c - (w * h * c).sum() / (w * h).sum())
    return math.sqrt((w * pull**2).sum() / w.sum()) / float((w * h).sum() / w.sum())


def mean_x(playing: Any, rounds: int, burn_in: int) -> float:
    """The time average of x; noise of the cohorts averages out in it, whatever the step size."""
    xs = []
    for t in range(rounds):
        playing.play(t)
        xs.append(float(playing.point.x[0]))
    return float(np.mean(xs[burn_in:]))


# D1: unequal availability


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cd_ma", "parallel_sgda"])
def test_training_goes_to_the_optimum_of_those_who_are_about(name: str, tmp_path: Path) -> None:
    """F_k = h_k (x - c_k)^2 / 2: the limit is sum pi h c / sum pi h, away from the optimum by a covariance."""
    S, rounds, burn_in = 20, 250, 30
    algorithm = {"name": name, "S": S, "eta": 0.2, "gamma": 0.2} | ({"K": 1, "batch": 1} if name == "cd_ma" else {})
    measured = {}
    for model in ("always", "bernoulli"):
        shares = {} if model == "always" else {"share": 0.8, "label": {"p_min": 0.1}}
        devices = {"availability": {"name": model, **shares}, "failure": {"hazard_per_s": 0.0}}
        made = experiment(WELLS, algorithm, devices=devices, server=INSTANT)
        h, c, score = wells(made)
        pi = np.ones(len(c)) if model == "always" else 0.8 * (0.1 + 0.9 * score)
        if model == "bernoulli":
            assert isinstance(made.world.availability, Bernoulli)
            np.testing.assert_allclose(made.world.availability.shares, pi)
        predicted = (pi * h * c).sum() / (pi * h).sum()
        measured[model] = mean_x(server(made, tmp_path), rounds, burn_in)
        error = spread(pi, h, c) / math.sqrt(S * (rounds - burn_in))
        report(f"D1, {name}, {model}", predicted, measured[model], error)
        assert abs(measured[model] - predicted) < 4 * error
    assert measured["bernoulli"] - measured["always"] > 0.5
    bias = np.cov(pi, c, bias=True)[0, 1] / pi.mean()  # for equal curvatures
    assert (pi * c).sum() / pi.sum() - c.mean() == pytest.approx(bias)


# D3: stragglers


def two_speeds(factor: float, size: int) -> Population:
    """Every second device is slower; from task to task times are lognormal with sigma 0.78."""
    compute = ComputeConfig(median_s_per_sample=1.0, jitter_cv=math.sqrt(math.expm1(0.78**2)))
    link = LinkConfig(sigma=0.0, jitter_cv=0.0, rtt_s=0.0)
    return toys.TwoSpeeds(DeviceModel(compute=compute, link=link, failure=SURE), size, factor=factor)


def accepted(population: Population, availability: Availability, S: int, n: int, rounds: int) -> list[Clients]:
    """Cohorts of rounds in which the fastest S of n count."""
    N = population.size
    policy = PolicyConfig(over_select=n / S, late="cancel", deadline_s=1e6)
    devices = Devices(Planner(np.ones(N, dtype=np.int64), 0), population, availability, policy)
    clock, phase = devices.start(), Collect(Uniform(S), WholeShard())
    return [devices.dispatch(clock, phase, t, Traffic(0, 0, 0), None).accepted for t in range(rounds)]


def slow_share(m: float, S: int, n: int) -> float:
    """Of the accepted, for many devices: they close at the time by which S/n of all have come."""
    law = stats.lognorm(0.78)
    close = optimize.brentq(lambda t: (law.cdf(t) + law.cdf(t / m)) / 2 - S / n, 1e-3, 1e3)
    return float(law.cdf(close / m) / (law.cdf(close) + law.cdf(close / m)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("m", "n", "known"),
    [(2, 130, 0.42), (2, 200, 0.33), (2, 400, 0.24), (3, 130, 0.38), (3, 200, 0.24), (3, 400, 0.12),
     (5, 130, 0.36), (5, 200, 0.15), (5, 400, 0.035)],
)  # fmt: skip
def test_over_selection_shuts_out_the_slow(m: float, n: int, known: float) -> None:
    population = two_speeds(m, 1000)
    shares = [float((who % 2).mean()) for who in accepted(population, Always(), 100, n, 60)]
    measured, error = float(np.mean(shares)), float(np.std(shares)) / math.sqrt(len(shares))
    predicted = slow_share(m, 100, n)
    report(f"D3, m = {m}, n = {n}", predicted, measured, error)
    assert abs(measured - predicted) < 4 * error + 0.3 / 100  # the prediction is for n without end
    assert measured == pytest.approx(known, abs=4 * error + 0.01)


# D4, D5: what that does to the AUC, and what does not


def test_the_closed_form_of_the_damage() -> None:
    known = {0.5: (0.773, 0.773), 0.4: (0.770, 0.741), 0.3: (0.761, 0.701), 0.2: (0.744, 0.649), 0.1: (0.717, 0.583),
             0.0: (0.678, 0.500)}  # fmt: skip
    for share, (whole, slow) in known.items():
        w = toys.optimum(share)
        assert toys.true_auc(w) == pytest.approx(whole, abs=6e-4)
        assert toys.auc(w, 2) == pytest.approx(slow, abs=6e-4)


KINDS: dict[str, Any] = {
    "name": "test",
    "rounds": 1,
    "data": {"name": "tests.toys_devices:TwoKinds", "clients": 400, "rows": 60},
    "partition": {"name": "natural"},
    "problem": {"name": "tests.toys_devices:LinearAUC"},
    "evaluate": {"every": 1000, "splits": ["train"]},
}
SGDA = {"name": "parallel_sgda", "S": 40, "eta": 0.4, "gamma": 1.0}


def took_part(made: Experiment, cohorts: list[Clients]) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Positive and negative rows of all that took part, as often as they did; the second kind's share of positives."""
    shards = [made.shards.shard(client) for cohort in cohorts for client in cohort.tolist()]
    features = np.concatenate([x for x, _ in shards]).astype(np.float64)
    labels = np.concatenate([y for _, y in shards])
    return features[labels > 0], features[labels == 0], float((labels == 2).sum() / (labels > 0).sum())


@pytest.mark.slow
def test_slow_devices_with_other_data_lose_their_auc_while_the_average_hides_it() -> None:
    """Positives of the second kind are on slow devices. The optimum is that of the rows that took part."""
    made, population = experiment(KINDS, SGDA), two_speeds(3, 400)
    slow = []
    for n in (40, 52, 80, 160):
        positives, negatives, share = took_part(made, accepted(population, Always(), 40, n, 60))
        w, best = toys.fitted(positives, negatives), toys.optimum(share)
        for what, predicted, measured in (
            ("all positives", toys.true_auc(best), toys.true_auc(w)),
            ("those of slow devices", toys.auc(best, 2), toys.auc(w, 2)),
        ):
            report(f"D4, {n} asked for 40, slow share {share:.3f}, AUC of {what}", predicted, measured)
            assert measured == pytest.approx(predicted, abs=0.006)  # 12,000 rows of each label
        slow.append(toys.auc(w, 2))
    assert slow == sorted(slow, reverse=True)
    assert slow[0] - slow[-1] > 0.15
    assert toys.true_auc(w) > 0.70


@pytest.mark.slow
def test_training_suffers_the_same_damage(tmp_path: Path) -> None:
    """The same through parallel SGDA on the min-max form, with 20 clients a round of 20 or of 80 asked."""
    made = experiment(KINDS, SGDA | {"S": 20})
    for n in (20, 80):
        playing = server(made, tmp_path)
        policy = PolicyConfig(over_select=n / 20, late="cancel", deadline_s=1e6)
        dispatcher = Devices(made.planner, two_speeds(3, 400), Always(), policy)
        playing.job, playing.clock = replace(playing.job, dispatcher=dispatcher), dispatcher.start()
        w = np.zeros(toys.DIMENSIONS)
        for t in range(80):
            playing.play(t)
            w += playing.point.x[:-2].double().numpy() if t >= 25 else 0
        share = slow_share(3, 20, n) if n > 20 else 0.5
        predicted, measured = toys.auc(toys.optimum(share), 2), toys.auc(w, 2)
        report(f"D4, trained, {n} asked for 20, AUC of slow devices", predicted, measured)
        assert measured == pytest.approx(predicted, abs=0.02)


@pytest.mark.slow
def test_availability_that_goes_with_the_label_alone_leaves_the_optimum_where_it_is() -> None:
    """The negative control: half as many negatives, the same law of each label, the same AUC.

    Only where the min-max form is told a prior that no longer is the one of those who take part does w move.
    """
    made = experiment(KINDS, SGDA, data={"differ": "share", "offset": 1.0})
    score = made.problem.label_scores(made.shards.train.labels)
    assert score is not None
    share_N = score.reshape(400, -1).mean(1)
    everybody = Bernoulli(share=0.8, seed=0, clients=400)
    labelled = Bernoulli(share=0.8, label=Label(p_min=0.1), seed=0, clients=400, scores=share_N)
    law = two_speeds(1, 400)
    for what, availability, w_N in (("anybody", everybody, np.ones(400)), ("by label", labelled, 0.1 + 0.9 * share_N)):
        positives, negatives, _ = took_part(made, accepted(law, availability, 40, 40, 60))
        prior, expected = len(positives) / (len(positives) + len(negatives)), (w_N * share_N).sum() / w_N.sum()
        report(f"D5, {what}, share of positives", expected, prior)
        assert abs(prior - expected) < 4 * share_N.std() / math.sqrt(40 * 60)
        best = toys.true_auc(toys.optimum(0.5))
        for told in (prior, 0.5):
            reached = toys.true_auc(toys.fitted_min_max(positives, negatives, told))
            report(f"D5, {what}, prior said to be {told:.3f}, AUC", best, reached)
            if what == "anybody" or told == prior:
                assert reached == pytest.approx(best, abs=0.006)
            else:
                assert reached < best - 0.012
        assert toys.true_auc(toys.fitted(positives, negatives)) == pytest.approx(best, abs=0.006)


# D8: which phase matters in CD-MAGE


@pytest.mark.slow
def test_in_cd_mage_bias_enters_through_the_first_phase_alone(tmp_path: Path) -> None:
    """The limit is where the mean of u_t is zero: sum w h c / sum w h of those who collect, whoever updates."""
    S, rounds, burn_in = 20, 120, 20
    algorithm = {"name": "cd_mage", "S": S, "K": 5, "batch": 1, "eta": 0.1, "gamma": 0.1}
    made = experiment(WELLS, algorithm)
    h, c, score = wells(made)
    w = 0.1 + 0.9 * score
    for biased in ((), ("update",), ("collect",), ("collect", "update")):
        playing = server(made, tmp_path)
        dispatcher = toys.Partial(made.planner, PolicyConfig(), shares=w, biased=frozenset(biased))
        playing.job = replace(playing.job, dispatcher=dispatcher)
        weight = w if "collect" in biased else np.ones(len(w))
        predicted = (weight * h * c).sum() / (weight * h).sum()
        measured = mean_x(playing, rounds, burn_in)
        error = spread(weight, h, c) / math.sqrt(S * (rounds - burn_in))
        report(f"D8, bias in {' and '.join(biased) or 'no phase'}", predicted, measured, error)
        assert abs(measured - predicted) < 4 * error
