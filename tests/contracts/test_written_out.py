"""Algorithms against their pseudo-code written out in NumPy, on a quadratic with noisy rows and different clients.

Legend: N clients, D = |x| + |y| numbers of a point. `A` is the operator (grad_x f, -grad_y f), which all steps descend.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from cluster.experiment import Experiment
from raysim.data import unpack_quadratic
from raysim.errors import ClientError, ConfigError
from raysim.phase import WholeShard
from tests.contracts.table import settings
from tests.play import DIGITS, QUADRATIC, experiment, server, trajectory

Array = NDArray[np.float64]
ETA, GAMMA, K, N, DX, DY = 0.05, 0.03, 4, 8, 4, 3
H = np.concatenate([np.full(DX, ETA), np.full(DY, GAMMA)])
LOCAL = {"K": K, "batch": 2, "eta": ETA, "gamma": GAMMA}
ENGINES = pytest.mark.parametrize("engine", ["loop", pytest.param("vectorized", marks=pytest.mark.slow)])


def made_of(engine: str, algorithm: dict[str, Any], **data: Any) -> Experiment:
    return experiment(QUADRATIC, algorithm, data={"noise": 0.5} | data, clients={"engine": engine})


class Clients:
    """The clients' operators on the minibatches that the plan draws."""

    def __init__(self, made: Experiment) -> None:
        self.made = made
        z = made.problem.init(0)
        self.start: Array = torch.cat((z.x, z.y)).double().numpy()

    def coefficients(self, i: int, rows: NDArray[np.int64]) -> list[Array]:
        mean = torch.from_numpy(self.made.shards.shard(i)[0][rows].mean(0, dtype=np.float64))
        return [v.numpy() for v in unpack_quadratic(mean, DX, DY)]

    def A(self, i: int, rows: NDArray[np.int64], z: Array) -> Array:
        A, B, C, a, c = self.coefficients(i, rows)
        x, y = z[:DX], z[DX:]
        return np.concatenate([A @ x + B @ y + a, -(B.T @ x - C @ y - c)])

    def batches(self, t: int, i: int, phase: int = 0) -> Iterator[NDArray[np.int64]]:
        what = self.made.algorithm.phases(t)[phase]
        ((block),) = self.made.planner.blocks(what.works, t, what.name, np.array([i]))
        if isinstance(what.work, WholeShard):
            yield np.arange(6)
        else:
            yield from (rows[rows >= 0] for rows in block.minibatches[0].rows_CKB[0])


def agrees(made: Experiment, folder: Path, expected: list[Array]) -> None:
    points = trajectory(made, folder, len(expected))
    for z, reference in zip(points[1:], expected, strict=True):
        np.testing.assert_allclose(torch.cat((z.x, z.y)).numpy(), reference, rtol=1e-11, atol=1e-12)
    assert np.abs(expected[0] - expected[-1]).max() > 1e-3


@ENGINES
def test_fedsgda_plus(engine: str, tmp_path: Path) -> None:
    """Algorithm 1 of Wu et al. 2023, with the snapshot taken of the server's point every second round."""
    steps = {"eta_g": 1.5, "gamma_g": 0.8, "snapshot_rounds": 2}
    made = made_of(engine, {"name": "fedsgda_plus", **LOCAL, **steps})
    clients = Clients(made)
    z, snapshot, expected = clients.start, clients.start[:DX], []
    for t in range(5):
        ends = []
        for i in range(N):
            own = z
            for rows in clients.batches(t, i):
                at_snapshot = clients.A(i, rows, np.concatenate([snapshot, own[DX:]]))
                own = own - H * np.concatenate([clients.A(i, rows, own)[:DX], at_snapshot[DX:]])
            ends.append(own)
        z = z + np.repeat([1.5, 0.8], [DX, DY]) * (np.mean(ends, axis=0) - z)
        if (t + 1) % 2 == 0:
            snapshot = z[:DX]
        expected.append(z)
    agrees(made, tmp_path, expected)


@ENGINES
def test_fedsgda_m(engine: str, tmp_path: Path) -> None:
    """Algorithm 2 of Wu et al. 2023 iteration by iteration: averaging comes between the step and the next estimate."""
    made = made_of(engine, {"name": "fedsgda_m", **LOCAL, "alpha": 0.3, "beta": 0.4, "first_batch": 5})
    clients = Clients(made)
    keep = 1 - np.repeat([0.3, 0.4], [DX, DY])
    drawn = [[rows for t in range(4) for rows in clients.batches(t, i)] for i in range(N)]
    assert {len(batches[0]) for batches in drawn} == {5}
    z = np.tile(clients.start, (N, 1))
    u = np.stack([clients.A(i, drawn[i][0], z[i]) for i in range(N)])
    expected = []
    for t in range(1, 3 * K + 1):
        before, z = z, z - H * u
        if t % K == 0:
            z, u = np.tile(z.mean(0), (N, 1)), np.tile(u.mean(0), (N, 1))
            expected.append(z[0])
        u = np.stack(
            [clients.A(i, drawn[i][t], z[i]) + keep * (u[i] - clients.A(i, drawn[i][t], before[i])) for i in range(N)]
        )
    agrees(made, tmp_path, expected)


@ENGINES
def test_momentum_local_sgda(engine: str, tmp_path: Path) -> None:
    """Algorithm 2 of Sharma et al. 2022: the average is taken after the momentum has seen the new point."""
    made = made_of(engine, {"name": "momentum_local_sgda", **LOCAL, "beta_x": 0.3, "beta_y": 0.4})
    clients = Clients(made)
    weight = np.repeat([0.3, 0.4], [DX, DY])
    drawn = [[rows for t in range(3) for rows in clients.batches(t, i)] for i in range(N)]
    z = np.tile(clients.start, (N, 1))
    d = np.stack([clients.A(i, drawn[i][0], z[i]) for i in range(N)])
    expected = []
    for t in range(1, 3 * K + 1):
        z = z - H * d
        d = (1 - weight) * d + weight * np.stack([clients.A(i, drawn[i][t], z[i]) for i in range(N)])
        if t % K == 0:
            z, d = np.tile(z.mean(0), (N, 1)), np.tile(d.mean(0), (N, 1))
            expected.append(z[0])
    agrees(made, tmp_path, expected)


@ENGINES
@pytest.mark.parametrize(
    ("decay_inner", "one_minibatch", "keep_inner"), [(True, False, False), (False, True, False), (True, False, True)]
)
def test_local_scgdam(engine: str, decay_inner: bool, one_minibatch: bool, keep_inner: bool, tmp_path: Path) -> None:
    """Algorithm 1 of Zhang et al. 2023, iteration by iteration, on different clients, whose inner functions differ too.

    The inner function is a step on what of a client's quadratic is in x alone; steps are divided after two rounds.
    """
    weights = {"alpha": 0.7, "beta_x": 0.3, "beta_y": 0.4}
    stages = {"stage_steps": [2 * K], "decay": 4, "decay_inner": decay_inner, "one_minibatch": one_minibatch}
    stages["keep_inner"] = keep_inner
    made = experiment(
        QUADRATIC,
        {"name": "local_scgdam", **LOCAL, **weights, **stages},
        data={"noise": 0.5},
        problem={"name": "tests.toys:InnerStep", "rho": 0.3},
        clients={"engine": engine},
    )
    clients = Clients(made)
    weight = np.repeat([0.3, 0.4], [DX, DY])
    drawn = [[rows for t in range(4) for rows in clients.batches(t, i)] for i in range(N)]
    if one_minibatch:
        pairs = [list(zip(rows, rows, strict=True)) for rows in drawn]
    else:
        pairs = [list(zip(rows[::2], rows[1::2], strict=True)) for rows in drawn]
    z = np.tile(clients.start, (N, 1))
    h, d = z[:, :DX].copy(), np.zeros_like(z)

    def estimate(t: int, alpha: float, weight: Array, rho: float) -> None:
        for i in range(N):
            xi, zeta = pairs[i][t]
            A, _, _, a, _ = clients.coefficients(i, xi)
            h[i] = (1 - alpha) * h[i] + alpha * (z[i, :DX] - rho * (A @ z[i, :DX] + a))
            q = clients.A(i, zeta, np.concatenate([h[i], z[i, DX:]]))
            q[:DX] = q[:DX] - rho * A @ q[:DX]
            d[i] = (1 - weight) * d[i] + weight * q

    estimate(0, 1.0, np.ones(DX + DY), 0.3)
    expected, inner = [], []
    for t in range(1, 4 * K + 1):
        late = t > 2 * K
        if keep_inner:
            z = np.concatenate([h, z[:, DX:]], axis=1)
        z = z - (H / 4 if late else H) * d
        estimate(t, 0.7, weight, 0.3 / 4 if late and decay_inner else 0.3)
        if t % K == 0:
            z, h, d = (np.tile(v.mean(0), (N, 1)) for v in (z, h, d))
            expected.append(z[0])
            inner.append(h[0].copy())
    agrees(made, tmp_path, expected)
    playing = server(made, tmp_path)
    for t, reference in enumerate(inner):
        playing.play(t)
        np.testing.assert_allclose(
            made.algorithm.extra_points(playing.state)["inner"].x, reference, rtol=1e-11, atol=1e-12
        )


@pytest.mark.slow
def test_local_scgdam_settles_where_the_inner_value_is_the_saddle_of_the_outer_function(tmp_path: Path) -> None:
    """On identical clients. The point itself is the one that the inner step leads there from."""
    steps = settings("local_scgdam", "everyone", eta=0.1, gamma=0.1)
    problem = {"name": "tests.toys:InnerStep", "rho": 0.2}
    made = experiment(QUADRATIC, steps, data={"identical": True, "clients": 2}, problem=problem)
    playing = server(made, tmp_path)
    for t in range(150):
        playing.play(t)
    known = made.problem.known(made.shards)  # type: ignore[attr-defined]
    reached = made.algorithm.extra_points(playing.state)["inner"]
    assert (reached - known).norm() < 1e-8
    assert (playing.point - known).norm() > 1e-2


@ENGINES
def test_local_sgdm(engine: str, tmp_path: Path) -> None:
    """Heavy ball; momenta are averaged, and go on in the next round."""
    made = made_of(engine, {"name": "local_sgdm", "K": K, "batch": 2, "eta": ETA, "beta": 0.4})
    clients = Clients(made)
    z, m = clients.start, np.zeros(DX + DY)
    expected = []
    for t in range(3):
        ends = []
        for i in range(N):
            own, momentum = z, m
            for rows in clients.batches(t, i):
                momentum = 0.4 * momentum + clients.A(i, rows, own)
                own = own - ETA * momentum
            ends.append((own, momentum))
        z, m = np.mean(ends, axis=0)
        expected.append(z)
    agrees(made, tmp_path, expected)


@ENGINES
def test_fedprox(engine: str, tmp_path: Path) -> None:
    """Both blocks are held near where the round began."""
    made = made_of(engine, {"name": "fedprox", "S": 3, "K": K, "batch": 2, "eta": ETA, "mu": 0.4})
    clients = Clients(made)
    z, expected = clients.start, []
    for t in range(4):
        (phase,) = made.algorithm.phases(t)
        ends = []
        for i in made.planner.cohort(phase.cohort, t, phase.name, None):
            own = z
            for rows in clients.batches(t, i):
                own = own - ETA * (clients.A(i, rows, own) + 0.4 * (own - z))
            ends.append(own)
        z = np.mean(ends, axis=0)
        expected.append(z)
    agrees(made, tmp_path, expected)


@pytest.mark.parametrize("engine", ["loop", "vectorized"])
def test_coda_begins_a_stage_with_the_dual_that_is_best_for_all_rows(engine: str, tmp_path: Path) -> None:
    """The mean score of all clients' negatives less that of the positives, on shards of one size taken whole."""
    stages = {"stage_steps": [8, 4], "decay": 10, "theta": 0.1, "dual_batch": 1000}
    made = experiment(
        DIGITS,
        {"name": "coda", "K": 4, "batch": 5, "eta": 0.5, **stages},
        data={"thin": [1], "thin_keep": 0.5, "test_fraction": 0.0},
        partition={"name": "iid", "clients": 2},
        problem={"name": "auc", "positive": [0], "score": "sigmoid"},
        evaluate={"splits": ["train"]},
        clients={"engine": engine},
    )
    assert len(set(made.shards.rows_N.tolist())) == 1
    playing = server(made, tmp_path)
    assert [[phase.name for phase in made.algorithm.phases(t)] for t in range(5)] == [
        ["update"], ["update"], ["dual", "update"], ["dual", "update"], ["update"],
    ]  # fmt: skip
    for t in (0, 1):
        playing.play(t)
    dual, _ = made.algorithm.phases(2)
    z = playing.point
    rows = np.arange(len(made.shards.train.labels))
    h = made.problem.scores(made.problem.net(z.x[:-2], made.shards.inputs(rows, dtype=torch.float64)))
    positive = made.shards.labels(rows) == 0
    best = h[~positive].mean() - h[positive].mean()
    playing._exchange(2, dual, None)
    torch.testing.assert_close(playing.point.y, best[None], rtol=1e-10, atol=1e-12)
    assert torch.equal(playing.point.x, z.x)
    assert abs(float(z.y - best)) > 1e-3


@ENGINES
def test_extra_step_local_sgd(engine: str, tmp_path: Path) -> None:
    """Extrapolation on one minibatch, the step from the old point on the next."""
    made = made_of(engine, {"name": "extra_step_local_sgd", "S": N, "K": 3, "batch": 2, "eta": ETA})
    clients = Clients(made)
    z, expected = clients.start, []
    for t in range(3):
        ends = []
        for i in range(N):
            own, batches = z, clients.batches(t, i)
            for _ in range(3):
                ahead = own - ETA * clients.A(i, next(batches), own)
                own = own - ETA * clients.A(i, next(batches), ahead)
            ends.append(own)
        z = np.mean(ends, axis=0)
        expected.append(z)
    agrees(made, tmp_path, expected)


@ENGINES
@pytest.mark.parametrize("dual_control", [True, False])
def test_codasca(engine: str, dual_control: bool, tmp_path: Path) -> None:
    """With three clients of eight a round: a control variate changes only where its client took part."""
    stages = {"theta": 0.2, "stage_steps": [2 * K, 2 * K], "decay": 2, "eta_g": 1.1, "dual_control": dual_control}
    made = made_of(engine, {"name": "codasca", "S": 3, "K": K, "batch": 2, "eta": ETA, **stages})
    clients = Clients(made)
    corrected = np.repeat([1.0, float(dual_control)], [DX, DY])
    pull = np.repeat([0.2, 0.0], [DX, DY])
    z, centre, c, own_c = clients.start, clients.start, np.zeros(DX + DY), np.zeros((N, DX + DY))
    expected = []
    for t in range(6):
        if t in (2, 4):
            centre = z
        eta = ETA / 2 ** (t // 2)
        (phase,) = made.algorithm.phases(t)
        ends, changes = [], np.zeros(DX + DY)
        for i in made.planner.cohort(phase.cohort, t, phase.name, None):
            own, seen = z, []
            for rows in clients.batches(t, i):
                seen.append(clients.A(i, rows, own))
                own = own - eta * (seen[-1] + corrected * (c - own_c[i]) + pull * (own - centre))
            changes += np.mean(seen, axis=0) - own_c[i]
            own_c[i] = np.mean(seen, axis=0)
            ends.append(own)
        z, c = z + 1.1 * (np.mean(ends, axis=0) - z), c + changes / N
        expected.append(z)
        np.testing.assert_allclose(c, own_c.mean(0), atol=1e-14)
    agrees(made, tmp_path, expected)


@ENGINES
def test_catalyst_scaffold_s(engine: str, tmp_path: Path) -> None:
    """Random numbers of steps, and proximal terms that pull both blocks to where the last stage ended."""
    made = made_of(
        engine, {"name": "catalyst_scaffold_s", "S": N, "K": K, "batch": 2, "eta": ETA, "theta": 0.3, "stage_steps": 12}
    )
    clients = Clients(made)
    z = centre = clients.start
    stage, lengths, expected = 0, [], []
    for t in range(9):
        now, steps = made.algorithm.local_steps(t)
        if now != stage:
            stage, centre = now, z
        whole = [clients.A(i, next(clients.batches(t, i, 0)), z) for i in range(N)]
        u, ends = np.mean(whole, axis=0), []
        for i in range(N):
            own = z
            batches = list(clients.batches(t, i, 1))
            assert len(batches) == steps
            for rows in batches:
                d = clients.A(i, rows, own) - clients.A(i, rows, z) + u
                own = own - ETA * (d + 0.3 * (own - centre))
            ends.append(own)
        z = np.mean(ends, axis=0)
        lengths.append(steps)
        expected.append(z)
    assert stage >= 2
    assert len(set(lengths)) > 1
    agrees(made, tmp_path, expected)


@ENGINES
def test_sagda(engine: str, tmp_path: Path) -> None:
    """Half of the clients a round, the same ones in both phases, correct their steps by what they have sent."""
    made = made_of(engine, {"name": "sagda", "S": 4, **LOCAL, "eta_g": 1.5, "gamma_g": 0.9, "collect_batch": 3})
    clients = Clients(made)
    z, expected = clients.start, []
    for t in range(4):
        collect, _ = made.algorithm.phases(t)
        cohort = made.planner.cohort(collect.cohort, t, collect.name, None).tolist()
        sent = {i: clients.A(i, next(clients.batches(t, i, 0)), z) for i in cohort}
        c, ends = np.mean(list(sent.values()), axis=0), []
        for i in cohort:
            own = z
            for rows in clients.batches(t, i, 1):
                own = own - H * (clients.A(i, rows, own) - sent[i] + c)
            ends.append(own)
        z = z + np.repeat([1.5, 0.9], [DX, DY]) * (np.mean(ends, axis=0) - z)
        expected.append(z)
    agrees(made, tmp_path, expected)


@ENGINES
def test_fednest(engine: str, tmp_path: Path) -> None:
    """Two rounds on y at the old x, then one on x at the new y."""
    made = made_of(engine, {"name": "fednest", **LOCAL, "inner": 2})
    clients = Clients(made)
    z, expected = clients.start, []
    for t in range(3):
        for phase, block in ((0, slice(DX, None)), (2, slice(DX, None)), (4, slice(0, DX))):
            g, ends = np.mean([clients.A(i, np.arange(6), z) for i in range(N)], axis=0), []
            for i in range(N):
                own = z.copy()
                for rows in clients.batches(t, i, phase + 1):
                    d = clients.A(i, rows, own) - clients.A(i, rows, z) + g
                    own[block] = own[block] - (H * d)[block]
                ends.append(own)
            z = np.mean(ends, axis=0)
        expected.append(z)
    agrees(made, tmp_path, expected)


def distances(made: Experiment, folder: Path, rounds: int) -> list[float]:
    known = made.problem.known(made.shards)  # type: ignore[attr-defined]
    return [(z - known).norm() for z in trajectory(made, folder, rounds)]


@pytest.mark.slow
@ENGINES
def test_extra_step_contracts_on_a_bilinear_problem_where_cd_ma_spirals_out(engine: str, tmp_path: Path) -> None:
    bilinear = {"dim_x": 3, "dim_y": 3, "mu": 1e-7, "noise": 0, "identical": True}
    step = {"S": N, "K": 4, "batch": 6, "eta": 0.1}

    def of(algorithm: dict[str, Any]) -> list[float]:
        made = experiment(
            QUADRATIC, algorithm, data=bilinear, problem={"dim_x": 3, "dim_y": 3}, clients={"engine": engine}
        )
        return distances(made, tmp_path, 30)

    extra = of({"name": "extra_step_local_sgd", **step})
    plain = of({"name": "cd_ma", **step, "gamma": 0.1})
    assert np.all(np.diff(extra) < 0)
    assert np.all(np.diff(plain) > 0)


def test_coins_have_the_asked_mean_and_hang_on_the_seed_alone() -> None:
    algorithm = {"name": "catalyst_scaffold_s", "S": 4, "K": 12, "batch": 2, "eta": ETA, "stage_steps": 2000}
    made, again, other = (experiment(QUADRATIC, algorithm, seed=seed).algorithm for seed in (0, 0, 1))
    steps = np.array([made.local_steps(t) for t in range(3000)])
    lengths = steps[:, 1]
    first = lengths[:50].tolist()
    assert [again.local_steps(t)[1] for t in range(50)] == first
    assert [other.local_steps(t)[1] for t in range(50)] != first
    # Geometric with mean K = 12: its standard deviation is sqrt(K (K - 1)) = 11.5, that of the mean of 3000 is 0.21.
    assert abs(lengths.mean() - 12) < 4 * 0.21
    assert lengths.min() == 1
    for stage in range(steps[-1, 0]):
        assert 1 <= lengths[steps[:, 0] == stage].sum() <= 2000


def test_control_variates_are_kept_for_those_alone_that_took_part(tmp_path: Path) -> None:
    playing = server(made_of("loop", settings("codasca", S=2)), tmp_path)
    assert not playing.memory
    playing.play(0)
    assert len(playing.memory) == 2


def test_a_snapshot_that_a_client_has_missed_is_not_made_up(tmp_path: Path) -> None:
    algorithm = settings("fedsgda_plus", "everyone")
    playing = server(made_of("loop", algorithm), tmp_path)
    playing.play(0)
    del playing.memory[3]
    with pytest.raises(ClientError, match=r"client 3.*was not there in round 0.*clients_keep_snapshot") as raised:
        playing.play(1)
    assert raised.value.client == 3


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("fedsgda_m", {"alpha": 1.5}, r"^algorithm.alpha: should be less than or equal to 1 \(got 1.5\)"),
    ("fedsgda_m", {"beta": -0.1}, r"^algorithm.beta: should be greater than or equal to 0"),
    ("momentum_local_sgda", {"beta_x": 2.0}, r"^algorithm.beta_x: should be less than or equal to 1"),
    ("local_sgda_plus", {"snapshot_steps": 10}, r"^algorithm.snapshot_steps: 10 is no multiple of K = 4.* take 8"),
    ("local_sgda_plus", {"snapshot_steps": 1}, r"^algorithm.snapshot_steps: 1 is no multiple of K = 4.* take 4"),
    ("coda_plus", {"stage_steps": 3}, r"^algorithm.stage_steps: a stage of 3 local steps is shorter than a round"),
    ("codasca", {"stage_steps": [400, 2]}, r"^algorithm.stage_steps: a stage of 2 local steps is shorter"),
    ("catalyst_scaffold_s", {"stage_steps": 1}, r"^algorithm.stage_steps: a stage of 1 local steps is shorter"),
    ("local_scgdam", {"alpha": 1.1}, r"^algorithm.alpha: should be less than or equal to 1"),
    ("local_scgdam", {"stage_steps": [3]}, r"^algorithm.stage_steps: a stage of 3 local steps is shorter than a round"),
    ("local_sgdm", {"beta": 1.0}, r"^algorithm.beta: should be less than 1"),
    ("fedprox", {"mu": -1.0}, r"^algorithm.mu: should be greater than or equal to 0"),
    ("coda", {"dual_batch": 0}, r"^algorithm.dual_batch: should be greater than 0"),
    ("codasca", {"decay": 0.5}, r"^algorithm.decay: should be greater than or equal to 1"),
    ("codasca", {"theta": -1.0}, r"^algorithm.theta: should be greater than or equal to 0"),
    ("fedsgda_plus", {"clients_keep_snapshot": True}, r"^algorithm.clients_keep_snapshot: needs all 8 clients"),
    ("fedsgda_plus", {"snapshot_rounds": 0}, r"^algorithm.snapshot_rounds: should be greater than 0"),
    ("local_sgda", {"S": 9}, r"^algorithm.S: cannot sample 9 clients of 8"),
    ("codasca", {"clients": 5}, r"^algorithm.clients: unknown key"),
]


@pytest.mark.parametrize(("name", "changed", "message"), REFUSED)
def test_bad_hyper_parameters_are_refused_by_name(name: str, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        experiment(QUADRATIC, settings(name, **changed))
