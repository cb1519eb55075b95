"""Baselines of FedReCo: what they are the same as, and FedPAC and FedCR written out."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.nn.functional import cross_entropy, softplus

from raysim.algorithms.fedcr import Gaussians, bottleneck_gradients, divergence
from raysim.algorithms.fedpac import shares_of_heads
from raysim.batch import Batch
from raysim.errors import ConfigError
from raysim.problems.stochastic import StochasticClassification
from server.rounds import Server
from tests.contracts.table import settings
from tests.play import CODES, OWN, experiment, server

ENGINES = pytest.mark.parametrize("engine", ["loop", pytest.param("vectorized", marks=pytest.mark.slow)])
WHOLE = {"batch": 500}  # of all clients' shards: minibatches are the same whatever their stream


def played(algorithm: dict[str, Any], folder: Path, rounds: int = 3, **sections: Any) -> Server:
    playing = server(experiment(OWN, algorithm, **sections), folder)
    for t in range(rounds):
        playing.play(t)
    return playing


def same(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


@ENGINES
def test_fedavg_without_clipping_is_local_sgda_with_no_dual(engine: str, tmp_path: Path) -> None:
    how = {"clients": {"engine": engine}}
    fedavg = played(settings("fedavg", privacy=None, clip=1e6), tmp_path, **how)
    local = played(settings("cd_ma", K=4, batch=5, eta=0.1, gamma=0.1), tmp_path, **how)
    same(fedavg.point.x, local.point.x)


@ENGINES
def test_ditto_without_regularisation_is_fedavg_beside_training_alone(engine: str, tmp_path: Path) -> None:
    how = {"clients": {"engine": engine}}
    ditto = played(settings("ditto", weight=0.0, S=10), tmp_path, **how)
    fedavg = played(settings("fedavg", privacy=None, S=10), tmp_path, **how)
    alone = played(settings("local_only", S=10), tmp_path, **how)
    same(ditto.point.x, fedavg.point.x)
    assert len(ditto.memory) == 10
    for client, own in ditto.memory.items():
        same(own.x, alone.memory[client].x)
    assert (ditto.memory[0].x - ditto.point.x).norm() > 0.1


def test_ditto_draws_personal_models_to_the_common_one(tmp_path: Path) -> None:
    apart = []
    for weight in (0.0, 5.0):
        playing = played(settings("ditto", weight=weight, S=10, clip=1e6), tmp_path, rounds=5)
        apart.append(np.mean([float((own.x - playing.point.x).norm()) for own in playing.memory.values()]))
    assert apart[1] < 0.5 * apart[0]


@ENGINES
def test_fedrep_with_the_first_head_is_fedbabu(engine: str, tmp_path: Path) -> None:
    how = {"clients": {"engine": engine}}
    fedrep = played(settings("fedrep", K_u=4, eta_v=1e-300, eta_u=0.1, **WHOLE), tmp_path, **how)
    fedbabu = played(settings("fedbabu", personal_heads=False, **WHOLE), tmp_path, **how)
    same(fedrep.point.x, fedbabu.point.x)
    assert not fedbabu.memory, "there is nothing that clients keep"


@ENGINES
def test_fedpac_without_centroids_and_mixing_is_fedrep(engine: str, tmp_path: Path) -> None:
    how = {"clients": {"engine": engine}}
    fedpac = played(settings("fedpac", weight=0.0, combine=False, **WHOLE), tmp_path, **how)
    fedrep = played(settings("fedrep", **WHOLE), tmp_path, **how)
    same(fedpac.point.x, fedrep.point.x)
    for client, head in fedrep.memory.items():
        same(fedpac.memory[client], head)


def test_one_client_of_fedper_trains_as_if_alone(tmp_path: Path) -> None:
    one = {"partition": {"name": "iid", "clients": 1, "test_fraction": 0.3}}
    each = (settings("fedbabu", personal_heads=True, S=1), settings("local_only", S=1))
    fedper, alone = (server(experiment(OWN | one, algorithm), tmp_path) for algorithm in each)
    for t in range(3):
        fedper.play(t)
        alone.play(t)
    n = len(fedper.state.u)
    same(fedper.state.u, alone.memory[0].x[:n])
    same(fedper.memory[0], alone.memory[0].x[n:])


@pytest.mark.slow
def test_tuned_models_are_better_than_the_common_one(tmp_path: Path) -> None:
    """FedAvg-FT and FedBABU: nothing is kept of it, and clients of three classes gain from their own head."""
    for name, fixed in (("fedavg", {"privacy": None}), ("fedbabu", {"personal_heads": False})):
        plain, tuned = (
            server(experiment(OWN, settings(name, tune_v=tune, **fixed), rounds=3), tmp_path) for tune in (0, 60)
        )
        (*_, without), (*_, after) = (list(playing.run()) for playing in (plain, tuned))
        assert torch.equal(plain.point.x, tuned.point.x)
        assert after.metrics["test"]["accuracy"] > without.metrics["test"]["accuracy"] + 0.1


def test_heads_of_two_clients_are_mixed_by_variance_and_distance() -> None:
    """alpha_1 = (V_2 + D) / (V_1 + V_2 + D), D being the squared distance, for the first client."""
    h = np.array([[1.0, 2.0], [4.0, -2.0]])
    alpha = shares_of_heads(h, np.array([3.0, 5.0]))
    np.testing.assert_allclose(alpha, [[30 / 33, 3 / 33], [5 / 33, 28 / 33]], rtol=1e-12)
    np.testing.assert_allclose(
        shares_of_heads(np.ones((3, 2)), np.array([1.0, 2.0, 4.0])), np.array([[4, 2, 1]] * 3) / 7, rtol=1e-12
    )


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_shares_of_heads_minimise_the_bound(scale: float) -> None:
    """The conditions of a minimum over the simplex: P alpha is the same wherever alpha > 0, and no less elsewhere."""
    rng = np.random.default_rng(0)
    h, V = scale * rng.standard_normal((12, 5)), scale**2 * rng.uniform(0.1, 3, 12)
    alpha = shares_of_heads(h, V)
    zeros = 0
    for i, mine in enumerate(alpha):
        apart = h[i] - h
        gradient = V * mine + apart @ (apart.T @ mine)
        assert mine.sum() == pytest.approx(1)
        least = gradient[mine > 0].max()
        np.testing.assert_allclose(gradient[mine > 0], least, rtol=1e-6)
        assert (gradient[mine == 0] >= least * (1 - 1e-6)).all()
        zeros += int((mine == 0).sum())
    assert zeros, "some heads are of no use to some clients"


@ENGINES
def test_a_round_of_fedpac_written_out(engine: str, tmp_path: Path) -> None:
    algorithm = settings("fedpac", weight=0.7, clip=1.5)
    made = experiment(OWN, algorithm, clients={"engine": engine})
    playing = server(made, tmp_path)
    x = made.problem.init(0).x.double()
    u, v_0 = x.split((made.problem.extractor_size, len(x) - made.problem.extractor_size))
    heads: dict[int, Tensor] = {}
    centroids: dict[int, Tensor] = {}
    local = 0
    for t in range(3):
        phase, _ = made.algorithm.phases(t)
        cohort = made.planner.cohort(phase.cohort, t, "update", None).tolist()
        bodies, h, V, trained, sums, counts = [], [], [], [], torch.zeros(10, 8).double(), torch.zeros(10)
        for client in cohort:
            (block,) = made.planner.blocks(phase.works, t, "update", np.array([client]))
            first, _, second, _ = (drawn.rows_CKB for drawn in block.minibatches)
            features, labels = made.shards.shard(client)
            inputs = torch.tensor(features, dtype=torch.float64) * made.shards.mul + made.shards.add
            b = torch.tensor(labels)

            def seen(w: Tensor, rows: Any, inputs: Tensor = inputs) -> Tensor:
                return torch.tanh(inputs[rows].flatten(1) @ w[:512].view(8, 64).T + w[512:])

            def f(v: Tensor, phi: Tensor, rows: Any, b: Tensor = b) -> Tensor:
                return cross_entropy(phi @ v[:80].view(10, 8).T + v[80:], b[rows])

            v = heads.get(client, v_0).clone()
            for rows in first[0]:  # type: ignore[index]
                v.requires_grad_()
                (g,) = torch.autograd.grad(f(v, seen(u, rows), rows), v)
                v = (v - 0.1 * g * min(1.0, 1.5 / float(g.norm()))).detach()
            n, everything = len(b), np.arange(len(b))
            phi = seen(u, everything)
            own = {k: phi[b == k].mean(0) for k in b.unique().tolist()}
            h.append(torch.zeros(10, 8).double())
            V.append(0.0)
            for k, mu in own.items():
                P = float((b == k).sum()) / n
                h[-1][k] = P * mu
                V[-1] += (P * float((phi[b == k] ** 2).sum(1).mean()) - P**2 * float(mu @ mu)) / n
            w = u.clone()
            for rows in second[0]:  # type: ignore[index]
                w.requires_grad_()
                phi = seen(w, rows)
                value = f(v, phi, rows)
                if t > 0:
                    local += sum(k not in centroids for k in b[rows].tolist())
                    target = torch.stack([centroids.get(k, own[k]) for k in b[rows].tolist()])
                    value = value + 0.7 * torch.nn.functional.mse_loss(phi, target)
                (g,) = torch.autograd.grad(value, w)
                w = (w - 0.05 * g * min(1.0, 1.5 / float(g.norm()))).detach()
            phi = seen(w, everything)
            for k in own:
                sums[k] += phi[b == k].sum(0)
                counts[k] += int((b == k).sum())
            bodies.append(w)
            trained.append(v)
        u = torch.stack(bodies).mean(0)
        centroids = {k: sums[k] / counts[k] for k in range(10) if counts[k]}
        alpha = shares_of_heads(torch.stack(h).flatten(1).numpy(), np.array(V))
        for i, client in enumerate(cohort):
            heads[client] = sum(float(alpha[i, j]) * trained[j] for j in range(len(cohort)))  # type: ignore[assignment]
        playing.play(t)
        same(playing.state.u, u)
        for client, head in heads.items():
            torch.testing.assert_close(playing.memory[client], head, rtol=1e-6, atol=1e-8)
        for k in range(10):
            assert bool(playing.state.centroids.there_C[k]) == (k in centroids)
            if k in centroids:
                same(playing.state.centroids.c_Cd[k], centroids[k])
    assert local, "a class that no client of the round before had"


def codes(**algorithm: Any) -> Any:
    return experiment(OWN | CODES, settings("fedcr", **algorithm))


def a_batch(problem: StochasticClassification, rows: int = 6) -> Batch:
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.rand(*shape, dtype=torch.float64, generator=generator)

    labels = torch.arange(rows) % 10
    weights = torch.full((rows,), 1 / rows, dtype=torch.float64)
    return Batch(drawn(rows, *problem.data.shape), labels, weights, drawn(rows, problem.noise))


def test_divergence_is_that_of_normals() -> None:
    a, b = (torch.rand(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(s)) + 0.1 for s in (0, 1))
    expected = torch.distributions.kl_divergence(torch.distributions.Normal(a, b), torch.distributions.Normal(b, a))
    same(divergence(a, b, b, a), expected.sum(1))


@pytest.mark.parametrize("reverse", [False, True])
def test_gradients_of_the_bottleneck_agree_with_central_differences(reverse: bool) -> None:
    problem = codes().problem
    batch, generator = a_batch(problem), torch.Generator().manual_seed(1)
    n = problem.extractor_size
    x, d = (torch.randn(n + 50, dtype=torch.float64, generator=generator) / 4 for _ in range(2))
    prior = Gaussians(
        torch.randn(10, 4, dtype=torch.float64, generator=generator),
        torch.rand(10, 4, dtype=torch.float64, generator=generator) + 0.5,
    )

    def value(x: Tensor) -> float:
        """Written out: the loss of FedCR with the direction of the divergence as asked for."""
        code = batch.inputs.flatten(1) @ x[:512].view(8, 64).T + x[512:n]
        q = torch.distributions.Normal(code[:, :4], softplus(code[:, 4:]))
        r = torch.distributions.Normal(prior.mean_Cd[batch.labels], prior.std_Cd[batch.labels])
        kl = torch.distributions.kl_divergence(*((r, q) if reverse else (q, r))).sum(1).mean()
        total = 0.3 * kl
        for sample in range(3):
            quantiles = batch.noise[:, 4 * sample : 4 * sample + 4].numpy()
            z = q.mean + q.stddev * torch.from_numpy(stats.norm.ppf(quantiles))
            total = total + cross_entropy(z @ x[n : n + 40].view(10, 4).T + x[n + 40 :], batch.labels) / 3
        return float(total)

    g = torch.cat(bottleneck_gradients(problem, x[:n], x[n:], prior, 0.3, reverse, batch))
    h = 1e-6
    assert float(g @ d) == pytest.approx((value(x + h * d) - value(x - h * d)) / (2 * h), rel=1e-6)


@ENGINES
@pytest.mark.parametrize("beta_2", [1.0, 0.25])
def test_class_distributions_are_products_of_all_rows_codes(engine: str, beta_2: float, tmp_path: Path) -> None:
    """One client, whose extractor is the mean: a Gaussian for each class is built from its rows one by one."""
    one = {"partition": {"name": "iid", "clients": 1, "test_fraction": 0.3}, "clients": {"engine": engine}}
    made = experiment(OWN | CODES | one, settings("fedcr", S=1, beta_2=beta_2))
    playing = server(made, tmp_path)
    means, variances = np.zeros((10, 4)), np.ones((10, 4))
    for t in range(2):
        playing.play(t)
        u = playing.state.u
        features, labels = made.shards.shard(0)
        inputs = torch.tensor(features, dtype=torch.float64) * made.shards.mul + made.shards.add
        code = inputs.flatten(1) @ u[:512].view(8, 64).T + u[512:]
        mean, var = np.zeros((10, 4)), np.ones((10, 4))
        for k, row in zip(labels.tolist(), code, strict=True):
            mu, sigma2 = row[:4].numpy(), softplus(row[4:]).numpy() ** 2
            mean[k] = (mean[k] * sigma2 + mu * var[k]) / (sigma2 + var[k])
            var[k] = var[k] * sigma2 / (var[k] + sigma2)
        means = means + beta_2 * (mean - means)
        variances = (np.sqrt(variances) + beta_2 * (np.sqrt(var) - np.sqrt(variances))) ** 2
        np.testing.assert_allclose(playing.state.prior.mean_Cd.numpy(), means, rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(playing.state.prior.std_Cd.numpy() ** 2, variances, rtol=1e-8)


def test_a_test_sees_the_mean_of_what_draws_and_their_mirror_images_say() -> None:
    made = codes()
    problem, batch = made.problem, a_batch(made.problem)
    z = problem.init(0).to(torch.float64)
    u, v = z.x.split((problem.extractor_size, 50))
    mean, std = problem.encoded(problem.features(u, batch))
    epsilon = torch.from_numpy(stats.norm.ppf(batch.noise.numpy())).view(6, 3, 4)
    chances = torch.zeros(6, 10, dtype=torch.float64)
    for sample in range(3):
        for sign in (1, -1):
            chances += problem.decoded(v, mean + sign * std * epsilon[:, sample]).softmax(1) / 6
    same(problem.outputs(z, batch), chances.log())


def test_noise_at_the_ends_is_finite() -> None:
    problem = codes().problem
    batch = a_batch(problem)
    ends = batch._replace(noise=torch.zeros_like(batch.noise).index_fill(0, torch.tensor([0]), 1.0))
    assert math.isfinite(float(problem.value(problem.init(0).to(torch.float64), ends)))


@pytest.mark.parametrize(
    ("name", "sections", "message"),
    [
        ("fedcr", {}, "Classification has no random codes; take stochastic_classification"),
        ("fedcr", {"problem": CODES["problem"]}, "'tests.toys:TwoPart' is not made for codes"),
        ("fedpac", {"problem": {"name": "fair"}}, "Fair has no feature extractor"),
    ],
)
def test_what_does_not_go_together_is_refused(name: str, sections: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        experiment(OWN | sections, settings(name))
