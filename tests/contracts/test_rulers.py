"""Where each algorithm ends on quadratics of different clients whose solution is known, and how much noise it bears.

With exact gradients a round maps the state affinely, so a method that drifts has a limit in closed form: the fixed
point of its round, which is written out here for every such method.

Legend: N clients, K local steps, D = |x| + |y|. `A[i]` is client i's operator (grad_x f_i, -grad_y f_i), which all
steps descend.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from cluster.experiment import Experiment
from raysim.data import unpack_quadratic
from tests.contracts.table import TABLE, settings
from tests.play import QUADRATIC, experiment, server, settled

Array = NDArray[np.float64]
Operators = Sequence[Callable[[Array], Array]]
STEP, K, N = 0.05, 4, 8

STRONGLY_CONCAVE = {"dim_x": 4, "dim_y": 3}
# A has a negative eigenvalue and C a zero one.
NONCONVEX_PL = {"dim_x": 2, "dim_y": 4, "rank_y": 3, "shift": 1.5, "spread": 0.5}
RULERS = pytest.mark.parametrize("ruler", [STRONGLY_CONCAVE, NONCONVEX_PL], ids=["strongly concave", "nonconvex-PL"])


PL_SEED = 8  # of a nonconvex ruler on which all of these steps contract


def made_of(algorithm: dict[str, Any], ruler: dict[str, Any], **sections: Any) -> Experiment:
    dims = {key: ruler[key] for key in ("dim_x", "dim_y")}
    data = ruler | sections.pop("data", {})
    return experiment(QUADRATIC, algorithm, data=data, problem=dims, **sections)


def coefficients(made: Experiment) -> list[tuple[Array, ...]]:
    x, y = made.problem.dim_x, made.problem.dim_y  # type: ignore[attr-defined]
    means = [torch.from_numpy(made.shards.shard(i)[0].mean(0, dtype=np.float64)) for i in range(N)]
    return [tuple(part.numpy() for part in unpack_quadratic(mean, x, y)) for mean in means]


def operators(made: Experiment) -> Operators:
    def of(A: Array, B: Array, C: Array, a: Array, c: Array) -> Callable[[Array], Array]:
        matrix, shift = np.block([[A, B], [-B.T, C]]), np.concatenate([a, c])
        return lambda z: matrix @ z + shift

    return [of(*parts) for parts in coefficients(made)]


def test_the_nonconvex_ruler_is_one() -> None:
    made = made_of(settings("cd_ma", "everyone"), NONCONVEX_PL, seed=PL_SEED)
    A, B, C, _, _ = (np.mean(part, axis=0) for part in zip(*coefficients(made), strict=True))
    assert np.linalg.eigvalsh(A)[0] < -0.1, "not convex in x"
    assert abs(np.linalg.eigvalsh(C)[0]) < 1e-6, "not strongly concave in y"
    assert np.linalg.eigvalsh(A + B @ np.linalg.pinv(C, rcond=1e-5) @ B.T)[0] > 0.1, "max over y has a minimum"


# One round of each method that drifts: operators, |x| and the state to the next state, which begins with z.


def local_sgda(A: Operators, dim_x: int, state: Array) -> Array:
    ends = []
    for one in A:
        z = state
        for _ in range(K):
            z = z - STEP * one(z)
        ends.append(z)
    return np.mean(ends, axis=0)


def extra_step(A: Operators, dim_x: int, state: Array) -> Array:
    ends = []
    for one in A:
        z = state
        for _ in range(K):
            z = z - STEP * one(z - STEP * one(z))
        ends.append(z)
    return np.mean(ends, axis=0)


def snapshot(A: Operators, dim_x: int, state: Array) -> Array:
    """Once settled the snapshot is the x that a round begins with."""
    ends = []
    for one in A:
        z = state
        for _ in range(K):
            at_snapshot = np.concatenate([state[:dim_x], z[dim_x:]])
            z = z - STEP * np.concatenate([one(z)[:dim_x], one(at_snapshot)[dim_x:]])
        ends.append(z)
    return np.mean(ends, axis=0)


def proximal(A: Operators, dim_x: int, state: Array) -> Array:
    """Once settled the centre is the x that a round begins with."""
    pull = np.concatenate([np.full(dim_x, TABLE["coda_plus"].everyone["theta"]), np.zeros(len(state) - dim_x)])
    ends = []
    for one in A:
        z = state
        for _ in range(K):
            z = z - STEP * (one(z) + pull * (z - state))
        ends.append(z)
    return np.mean(ends, axis=0)


def weights(name: str, x: str, y: str, dim_x: int, dim_y: int) -> Array:
    return np.repeat([TABLE[name].everyone[x], TABLE[name].everyone[y]], [dim_x, dim_y])


def momentum(A: Operators, dim_x: int, state: Array) -> Array:
    start, direction = np.split(state, 2)
    new = weights("momentum_local_sgda", "beta_x", "beta_y", dim_x, len(start) - dim_x)
    ends = []
    for one in A:
        z, d = start, direction
        for _ in range(K):
            z = z - STEP * d
            d = (1 - new) * d + new * one(z)
        ends.append(np.concatenate([z, d]))
    return np.mean(ends, axis=0)


def recursive(A: Operators, dim_x: int, state: Array) -> Array:
    """The state is z, the estimate, and each client's last point but one."""
    start, estimate, *before = np.split(state, 2 + N)
    new = weights("fedsgda_m", "alpha", "beta", dim_x, len(start) - dim_x)
    ends, kept = [], []
    for one, own in zip(A, before, strict=True):
        z, d, z_prev = start, estimate, own
        for _ in range(K):
            d = one(z) + (1 - new) * (d - one(z_prev))
            z, z_prev = z - STEP * d, z
        ends.append(np.concatenate([z, d]))
        kept.append(z_prev)
    return np.concatenate([np.mean(ends, axis=0), *kept])


def compositional(A: Operators, dim_x: int, state: Array) -> Array:
    """The inner function is the identity, so that its estimate lags behind x."""
    start, direction, inner = np.split(state, 3)
    new = weights("local_scgdam", "beta_x", "beta_y", dim_x, len(start) - dim_x)
    alpha = TABLE["local_scgdam"].everyone["alpha"]
    ends = []
    for one in A:
        z, d, h = start, direction, inner[:dim_x]
        for _ in range(K):
            z = z - STEP * d
            h = (1 - alpha) * h + alpha * z[:dim_x]
            d = (1 - new) * d + new * one(np.concatenate([h, z[dim_x:]]))
        ends.append(np.concatenate([z, d, h, np.zeros(len(z) - dim_x)]))
    return np.mean(ends, axis=0)


def heavy_ball(A: Operators, dim_x: int, state: Array) -> Array:
    start, momentum = np.split(state, 2)
    ends = []
    for one in A:
        z, m = start, momentum
        for _ in range(K):
            m = TABLE["local_sgdm"].everyone["beta"] * m + one(z)
            z = z - STEP * m
        ends.append(np.concatenate([z, m]))
    return np.mean(ends, axis=0)


def held(A: Operators, dim_x: int, state: Array) -> Array:
    ends = []
    for one in A:
        z = state
        for _ in range(K):
            z = z - STEP * (one(z) + TABLE["fedprox"].everyone["mu"] * (z - state))
        ends.append(z)
    return np.mean(ends, axis=0)


DRIFTING: dict[str, tuple[Callable[[Operators, int, Array], Array], int]] = {
    "cd_ma": (local_sgda, 1),
    "local_sgda": (local_sgda, 1),
    "extra_step_local_sgd": (extra_step, 1),
    "local_sgda_plus": (snapshot, 1),
    "fedsgda_plus": (snapshot, 1),
    "coda": (proximal, 1),
    "coda_plus": (proximal, 1),
    "momentum_local_sgda": (momentum, 2),
    "fedsgda_m": (recursive, 2 + N),
    "local_scgdam": (compositional, 3),
    "local_sgdm": (heavy_ball, 2),
    "fedprox": (held, 1),
}
assert DRIFTING.keys() == {name for name, row in TABLE.items() if row.drifts}


def limit(made: Experiment, name: str) -> Array:
    """The fixed point of the round's affine map; where there are several, the one nearest to the start."""
    play, vectors = DRIFTING[name]
    A, x, D = operators(made), made.problem.dim_x, made.problem.dim_x + made.problem.dim_y  # type: ignore[attr-defined]
    zero = np.zeros(vectors * D)
    shift = play(A, x, zero)
    matrix = np.stack([play(A, x, e) - shift for e in np.eye(len(zero))], axis=1)
    start = np.concatenate([np.ones(D) if i != 1 else np.zeros(D) for i in range(vectors)])  # init is (1, ..., 1)
    moves = np.eye(len(zero)) - matrix
    fixed: Array = start + np.linalg.lstsq(moves, shift - moves @ start, rcond=1e-6)[0]
    return fixed[:D]


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLE)
@RULERS
def test_it_ends_at_the_solution_or_at_its_predicted_bias(name: str, ruler: dict[str, Any], tmp_path: Path) -> None:
    seed, longer = (PL_SEED, 1.5) if ruler is NONCONVEX_PL else (0, 1)
    made = made_of(settings(name, "everyone"), ruler, seed=seed, clients={"engine": "vectorized", "block": 8})
    last = settled(made, tmp_path, int(longer * TABLE[name].rounds), step=1e-7)
    known = made.problem.known(made.shards)  # type: ignore[attr-defined]
    if TABLE[name].drifts:
        np.testing.assert_allclose(torch.cat((last.x, last.y)), limit(made, name), atol=1e-5)
        assert (last - known).norm() > 1e-2
    else:
        assert (last - known).norm() < 1e-5


def mean_square(algorithm: dict[str, Any], seed: int, folder: Path, **data: Any) -> float:
    """Mean squared distance to the saddle over the second half of 100 rounds."""
    made = made_of(algorithm, STRONGLY_CONCAVE, data={"clients": 40, "rows": 20} | data, seed=seed)
    known = made.problem.known(made.shards)  # type: ignore[attr-defined]
    playing, distances = server(made, folder), []
    for t in range(100):
        playing.play(t)
        distances.append((playing.point - known).norm() ** 2)
    return float(np.mean(distances[50:]))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_cd_mage_plus_bears_the_noise_of_one_sampled_client_better_than_cd_mage(seed: int, tmp_path: Path) -> None:
    """The same constant steps; what differs is alpha. All noise comes from which client is sampled."""
    base = {"name": "cd_mage_plus", "S": 1, "K": 4, "batch": 20, "c_eta": STEP, "c_gamma": STEP, "rho": 0}
    plain, recursive = (mean_square(base | {"c_alpha": alpha}, seed, tmp_path) for alpha in (1, 0.1))
    assert recursive < plain / 2


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_fedsgda_m_bears_the_noise_of_small_batches_better_than_local_sgda(seed: int, tmp_path: Path) -> None:
    """Two clients of forty a round; clients hardly differ, and the noise comes from the minibatches."""
    base = {"name": "fedsgda_m", "S": 2, "K": 4, "batch": 1, "eta": STEP, "gamma": STEP}
    noisy = {"spread": 0.1, "noise": 3.0}
    plain, recursive = (mean_square(base | {"alpha": a, "beta": a}, seed, tmp_path, **noisy) for a in (1, 0.1))
    assert recursive < plain
