"""Local differential privacy: the noise that leaves a client, and what is spent."""

import importlib.util
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from scipy import stats

from cluster import summary
from cluster.config import load_config
from cluster.run import run
from raysim import draws
from raysim.errors import ConfigError
from raysim.privacy import LocalPrivacy
from tests.contracts.table import settings
from tests.play import OWN, experiment, server

ENGINES = pytest.mark.parametrize("engine", ["loop", pytest.param("vectorized", marks=pytest.mark.slow)])
METHODS = pytest.mark.parametrize("name", ["fedreco", "fedavg"])
IN_PROCESS = {"fleet": "in_process"}
# As good as none.
VOID = {"epsilon": 1e30, "delta": 0.5, "clip": 1e6}


def test_the_noise_has_the_papers_deviation_and_no_direction() -> None:
    privacy = LocalPrivacy(epsilon=10.0, delta=1e-5, clip=10.0)
    assert privacy.sigma == pytest.approx(4.8448, rel=1e-4)
    leaves = [torch.zeros(40, 200, 50, dtype=torch.float64), torch.zeros(40, 7)]
    noise, few = privacy.released(leaves, draws.bits(0, "clients", np.arange(40)))
    each = [stats.kstest(client.flatten().numpy(), "norm", args=(0, privacy.sigma)).pvalue for client in noise]
    assert stats.kstest(each, "uniform").pvalue > 0.01, "as often near as far from it as chance has it"
    assert float(noise.std()) == pytest.approx(privacy.sigma, rel=4 / math.sqrt(2 * noise.numel()))
    correlations = np.corrcoef(noise.flatten(1).numpy())[np.triu_indices(40, 1)]
    assert np.abs(correlations).max() < 5 / math.sqrt(10_000), "clients' noise is their own"
    assert few.std() > 1


def test_the_norm_of_all_that_is_sent_is_clipped() -> None:
    privacy = LocalPrivacy(epsilon=1e12, delta=0.1, clip=2.0)
    leaves = [torch.tensor([[3.0, 0.0], [0.3, 0.0]]), torch.tensor([4.0, 0.4])]
    a, b = privacy.released(leaves, np.array([1, 2], np.uint64))
    torch.testing.assert_close(a, torch.tensor([[1.2, 0.0], [0.3, 0.0]]))
    torch.testing.assert_close(b, torch.tensor([1.6, 0.4]))


@ENGINES
def test_every_round_and_client_has_noise_of_its_own(engine: str, tmp_path: Path) -> None:
    """The server's steps, without a clip of its own, are those of the mean noise: its deviation is sigma / sqrt(S)."""
    given = {"epsilon": 2.0, "delta": 0.1, "clip": 3.0}
    algorithm = settings("fedavg", eta=1e-9, S=8, clip=1.0, privacy=given)
    playing = server(experiment(OWN, algorithm, clients={"engine": engine}, seed=3), tmp_path)
    sigma = LocalPrivacy(**given).sigma
    moves = []
    for t in range(4):
        (phase,) = playing.job.algorithm.phases(t)
        _, total = _uploads(playing, t)
        moves.append(total.flatten())
        assert phase.privacy is not None
        assert stats.kstest(moves[-1].numpy(), "norm", args=(0, sigma / math.sqrt(8))).pvalue > 0.01
    correlations = np.corrcoef(torch.stack(moves).numpy())[np.triu_indices(4, 1)]
    assert np.abs(correlations).max() < 4 / math.sqrt(len(moves[0]))


def _uploads(playing: Any, t: int) -> tuple[Any, torch.Tensor]:
    """The mean of what a round's clients send."""
    found = []
    absorb = type(playing.job.algorithm.phases(t)[0]).absorb

    def kept(phase: Any, state: Any, mean: Any, accepted: int) -> Any:
        found.append(mean)
        return absorb(phase, state, mean, accepted)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(playing.job.algorithm.phases(t)[0]), "absorb", kept)
        playing.play(t)
    return playing.state, found[0]


@METHODS
@ENGINES
def test_without_noise_and_clipping_it_is_the_method_itself(name: str, engine: str, tmp_path: Path) -> None:
    """Equivalence: sigma = 0 and no clip. FedAvg's server clips to the clients' norm, which nothing reaches."""
    ends = []
    for privacy in (None, VOID):
        playing = server(experiment(OWN, settings(name, privacy=privacy), clients={"engine": engine}), tmp_path)
        for t in range(3):
            playing.play(t)
        ends.append(playing)
    plain, private = ends
    torch.testing.assert_close(private.point.x, plain.point.x, rtol=1e-12, atol=1e-14)
    assert (plain.point.x - plain.job.problem.init(0).x).norm() > 1e-2


def test_noise_shifts_no_other_draw(tmp_path: Path) -> None:
    """Clients' own models are of minibatches and cohorts alone in the first round, whatever the noise."""
    ends = []
    for epsilon in (1.0, 50.0):
        algorithm = settings("fedreco", privacy={"epsilon": epsilon, "delta": 0.1, "clip": 1.0})
        playing = server(experiment(OWN, algorithm), tmp_path)
        playing.play(0)
        ends.append(playing)
    assert ends[0].memory.keys() == ends[1].memory.keys()
    for client, memory in ends[0].memory.items():
        assert torch.equal(memory.u, ends[1].memory[client].u)
    assert not torch.equal(ends[0].point.x, ends[1].point.x)


@pytest.mark.parametrize(
    ("given", "key", "message"),
    [
        ({"epsilon": 0.0, "delta": 0.1}, "epsilon", "greater than 0"),
        ({"epsilon": -1.0, "delta": 0.1}, "epsilon", "greater than 0"),
        ({"epsilon": 1.0, "delta": 0.0}, "delta", "greater than 0"),
        ({"epsilon": 1.0, "delta": 1.0}, "delta", "less than 1"),
        ({"epsilon": 1.0, "delta": 0.1, "clip": 0.0}, "clip", "greater than 0"),
        ({"epsilon": 1.0, "delta": 0.1, "sigma": 1.0}, "sigma", r"unknown key; known: epsilon, delta, clip"),
    ],
)
def test_settings_that_protect_nobody_are_refused(given: Any, key: str, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"algorithm\.privacy\.{key}.*{message}"):
        experiment(OWN, settings("fedavg", privacy=given))


def test_what_is_spent_is_that_of_one_gaussian_mechanism() -> None:
    """Against the condition for (epsilon, delta) of Balle and Wang, theorem 8, and another accountant's bound."""
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    privacy = LocalPrivacy(epsilon=0.5, delta=1e-5, clip=3.0)
    for uploads in (1, 7, 100):
        spent, mu = privacy.spent(uploads), math.sqrt(uploads) * 3.0 / privacy.sigma
        a, b = (stats.norm.cdf(sign * mu / 2 - spent / mu) for sign in (1, -1))
        assert a - math.exp(spent) * b == pytest.approx(1e-5, rel=1e-3)
        accountant = RdpAccountant()
        accountant.compose(dp_accounting.GaussianDpEvent(privacy.sigma / 3.0), uploads)
        assert spent < accountant.get_epsilon(1e-5) < 1.25 * spent
    assert privacy.spent(1) < 0.5, "the classical formula is safe below 1"
    assert LocalPrivacy(epsilon=10.0, delta=1e-5).spent(1) > 10.0, "and not above"
    assert privacy.spent(0) == 0.0
    assert privacy.spent(4) == pytest.approx(privacy.spent(1, sensitivity=6.0))


def test_a_run_says_what_it_has_spent(tmp_path: Path) -> None:
    private = settings("fedavg", S=4, privacy={"epsilon": 0.5, "delta": 1e-4, "clip": 1.0})
    tree = OWN | {"algorithm": private, "rounds": 6, "output": {"folder": str(tmp_path)}, "clients": IN_PROCESS}
    made = run(load_config(tree))
    found = json.loads((made.folder / "summary.json").read_text())["privacy"]["update"]
    took_part = pq.read_table(made.folder / "participation.parquet")["client"].to_pylist()
    assert found["uploads"] == max(Counter(took_part).values()) < 6
    privacy = LocalPrivacy(epsilon=0.5, delta=1e-4, clip=1.0)
    assert found["epsilon_spent"] == privacy.spent(found["uploads"]) > privacy.spent(1)
    assert found["epsilon_spent_any_two"] == privacy.spent(found["uploads"], 2.0) > found["epsilon_spent"]
    told = [line for line in summary.lines(json.loads((made.folder / "summary.json").read_text())) if "privacy" in line]
    assert len(told) == 1

    phones = {"devices": {"availability": {"name": "always"}}, "server": {"over_select": 1.5}}
    made = run(load_config(tree | phones))
    found = json.loads((made.folder / "summary.json").read_text())["privacy"]["update"]
    assert found["uploads"] == 6, "a late upload is one too"


def test_without_the_accountant_nothing_is_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'raysim\[privacy\]'"):
        experiment(OWN, settings("fedavg"))
    experiment(OWN, settings("fedavg", privacy=None))
