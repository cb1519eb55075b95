"""How fast CD-MAGE and CD-MAGE+ make the gradient of Phi(x) = max_y f(x, y) small, beside their theory.

    python -m tests.studies.rates [--out docs/img/rates.png] [--save]

Measured is the mean over rounds t < T of ||grad Phi(x_t)||^2 for S clients a phase, and the exponents of T and S are
fitted. J. Xie, C. Zhang, Z. Shen, W. Liu, H. Qian (2021, https://arxiv.org/abs/2105.14216v2) bound it, where what
sampling clients does outweighs the 1/T of the start, by (S T)^(-1/2) for CD-MAGE (theorem 1) and, up to log T, by
S^(-1/3) T^(-2/3) for CD-MAGE+ (theorem 2; there of the local iterates). The steps are scaled as in the theorems:

    CD-MAGE     K eta = K gamma = 0.5 / L_f * (S / T)^(1/2), another run for each T
    CD-MAGE+    K eta_t = K gamma_t = 1 / L_f * (S / (t+1))^(1/3), alpha_t = min(1, 2 S^(-1/3) (t+1)^(-2/3)), one run

with L_f the smoothness of f. Their constants are not the theorems', which are made for proofs: 1 / (100 K L_f) would
cap the step of CD-MAGE+ for the first 10^6 S rounds, and 0.8 / S be its alpha.

The problem is a quadratic of 2000 clients, strongly convex-concave, on which equal primal and dual steps converge.
Clients differ in all coefficients. In the data `quadratic` the mean of a client's rows is free of `noise`, so its rows
are dealt at random to clients of 4: then the means of a and c differ between clients by noise / sqrt(8) in each
coordinate. That is what sampling clients adds to a gradient; noise on minibatches alone would cancel in eq. (4). It is
the regime to be measured when three things hold:

- The start is forgotten. At noise 300 the squared gradient there is a fortieth of one client's variance. The fit begins
  at T = 128: before, the 1 / (K eta mu) rounds in which x moves are no small part of T for CD-MAGE at S = 1.
- Steps are small. K eta L_f is at most 0.7 for CD-MAGE, at S = 64 and T = 32. With CD-MAGE+ and S = 64 it falls from 4
  to 1 in 64 rounds; a local step is half of that, and shrinks the distance to the saddle all the same.
- N is large. Drawing without replacement makes the variance 3 % smaller than sigma^2 / S at S = 64.

Constants, noise and where the fit begins were chosen after trials, in which other choices gave other exponents. In that
regime the statement of theorem 2 is loose in S, but not its proof: the sum before its last two lines has the
start over eta_{T-1} T, which is S^(-1/3) T^(-2/3), and sigma^2 log T over S eta_{T-1} T, which is S^(-4/3) T^(-2/3).
The table gives both exponents. In theorem 1 both terms scale as (S T)^(-1/2).

At these T the exponents of CD-MAGE+ are on their way. At S = 64, where alpha_t is smallest, the first estimate's error
is not yet forgotten, and falls as 1/T. At S = 1, where K eta_t is smallest, x does not follow the estimate at once: the
less it does, the more the error is that of a plain step, S^(-2/3) T^(-1/3). Both keep the exponent of S above -4/3.

It takes some 10 minutes on one core.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from cluster.experiment import Experiment
from raysim.algorithms import CDMage, CDMagePlus
from raysim.data import Shards, unpack_quadratic
from tests.play import experiment, server

SIZES = (1, 4, 16, 64)
HORIZONS = {"CD-MAGE": (32, 64, 128, 256, 512, 1024), "CD-MAGE+": (32, 64, 128, 256, 512, 1024, 2048)}
FIT_FROM = 128  # rounds
REPETITIONS = 4  # of everything, with other draws
ROUNDS = 256  # a repetition's rounds for a short horizon, at least: several runs
K, BATCH, DIM, CLIENTS, ROWS = 2, 2, 20, 2000, 4
THEORY_T = {"CD-MAGE": str(CDMage.rate.T), "CD-MAGE+": str(CDMagePlus.rate.T)}
THEORY_S = {"CD-MAGE": str(CDMage.rate.S), "CD-MAGE+": str(CDMagePlus.rate.S)}
NOISE_TERM_S = {"CD-MAGE": "-1/2", "CD-MAGE+": "-4/3"}
BASE: dict[str, Any] = {
    "name": "rates",
    "rounds": 1,
    "precision": "float64",
    "data": {
        "name": "quadratic",
        "clients": CLIENTS * ROWS // 2,
        "rows": 2,
        "dim_x": DIM,
        "dim_y": DIM,
        "mu": 10.0,
        "noise": 300.0,
    },
    "partition": {"name": "iid", "clients": CLIENTS},
    "problem": {"name": "quadratic", "dim_x": DIM, "dim_y": DIM},
    "clients": {"engine": "vectorized", "block": max(SIZES)},
}


@dataclass(frozen=True)
class Primal:
    """Phi(x) = 1/2 x'Hx + h'x + constant.

    Attributes:
        H: (X, X).
        h: (X,).
        smoothness: L_f, of f in (x, y).
    """

    H: NDArray[np.float64]
    h: NDArray[np.float64]
    smoothness: float

    @classmethod
    def of(cls, shards: Shards) -> "Primal":
        """Of f, the mean over clients, which hold equally many rows."""
        A, B, C, a, c = unpack_quadratic(shards.train.features.mean(0, dtype=np.float64), DIM, DIM)
        smoothness = float(np.linalg.norm(np.block([[A, B], [-B.T, C]]), 2))
        return cls(A + B @ np.linalg.solve(C, B.T), a - B @ np.linalg.solve(C, c), smoothness)

    def squared_gradient(self, x: torch.Tensor) -> float:
        """||grad Phi(x)||^2."""
        return float(np.square(self.H @ x.numpy() + self.h).sum())


def steps(algorithm: str, S: int, T: int, smoothness: float) -> dict[str, Any]:
    """The algorithm's section of the configuration; T matters to CD-MAGE alone."""
    common = {"S": S, "K": K, "batch": BATCH}
    if algorithm == "CD-MAGE":
        step = 0.5 / (K * smoothness) * (S / T) ** (1 / 2)
        return {"name": "cd_mage", **common, "eta": step, "gamma": step}
    step = S ** (1 / 3) / (K * smoothness)
    return {"name": "cd_mage_plus", **common, "c_eta": step, "c_gamma": step, "c_alpha": 2 * S ** (-1 / 3)}


def squared_gradients(made: Experiment, primal: Primal, draw: int, rounds: int) -> NDArray[np.float64]:
    """(rounds,) of one run, before each round; `draw` numbers its cohorts and minibatches, the data being the same."""
    playing = server(replace(made, planner=replace(made.planner, seed=draw)), Path())
    found = np.empty(rounds)
    for t in range(rounds):
        found[t] = primal.squared_gradient(playing.point.x)
        playing.play(t)
    return found


def measured(algorithm: str, S: int, base: Mapping[str, Any], primal: Primal) -> NDArray[np.float64]:
    """(REPETITIONS, horizons) means over the rounds of each horizon."""
    horizons = HORIZONS[algorithm]
    means = np.empty((REPETITIONS, len(horizons)))
    if algorithm == "CD-MAGE+":  # its steps know of no horizon: one run serves all
        made = experiment(dict(base), steps(algorithm, S, 0, primal.smoothness))
        for r in range(REPETITIONS):
            so_far = np.cumsum(squared_gradients(made, primal, r, max(horizons)))
            means[r] = [so_far[T - 1] / T for T in horizons]
        return means
    for place, T in enumerate(horizons):
        made, runs = experiment(dict(base), steps(algorithm, S, T, primal.smoothness)), max(1, ROUNDS // T)
        for r in range(REPETITIONS):
            draws = range(r * runs, (r + 1) * runs)
            means[r, place] = np.mean([squared_gradients(made, primal, draw, T) for draw in draws])
    return means


def exponents(across: tuple[int, ...], values: NDArray[np.float64]) -> str:
    """The slope of log values (REPETITIONS, n) over log across (n,): the mean of repetitions and its standard error."""
    slopes = np.polyfit(np.log(across), np.log(values).T, 1)[0]
    return f"{slopes.mean():.2f} ± {slopes.std(ddof=1) / len(slopes) ** 0.5:.2f}"


def tables(found: Mapping[str, NDArray[np.float64]]) -> str:
    """Markdown, from (REPETITIONS, sizes, horizons) means by algorithm."""
    lines = ["", f"Exponent of T, fitted from T = {FIT_FROM} on", ""]
    lines += _row("", "T up to", "theory", *(f"S = {S}" for S in SIZES)) + _row(*["---"] * (3 + len(SIZES)))
    for algorithm, means in found.items():
        T, fits = _fitted(algorithm)
        slopes = [exponents(T, means[:, s, fits]) for s in range(len(SIZES))]
        lines += _row(algorithm, str(max(T)), THEORY_T[algorithm], *slopes)
    common = [T for T in HORIZONS["CD-MAGE"] if T >= FIT_FROM]
    lines += ["", f"Exponent of S, fitted from S = {SIZES[0]} to {SIZES[-1]}", ""]
    lines += _row("", "theory", "its noise term", *(f"T = {T}" for T in common)) + _row(*["---"] * (3 + len(common)))
    for algorithm, means in found.items():
        slopes = [exponents(SIZES, means[:, :, HORIZONS[algorithm].index(T)]) for T in common]
        lines += _row(algorithm, THEORY_S[algorithm], NOISE_TERM_S[algorithm], *slopes)
    return "\n".join(lines)


def draw(found: Mapping[str, NDArray[np.float64]]) -> Figure:
    """A panel for each algorithm: the mean of the repetitions, each of them, and the theory's slope through the fit."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    axes: NDArray[Any] = figure.subplots(1, len(found), sharey=True)
    for ax, (algorithm, means) in zip(axes, found.items(), strict=True):
        _panel(ax, algorithm, means)
    axes[0].set_ylabel("mean of ||grad Phi(x)||² over T rounds")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(SIZES) + 1, frameon=False, fontsize=9)
    return figure


def _panel(ax: Axes, algorithm: str, means: NDArray[np.float64]) -> None:
    T, fits = _fitted(algorithm)
    up, down = (int(part) for part in THEORY_T[algorithm].split("/"))
    for s, S in enumerate(SIZES):
        (line,) = ax.plot(HORIZONS[algorithm], means[:, s].mean(0), label=f"S = {S}", linewidth=1.6)
        ax.plot(HORIZONS[algorithm], means[:, s].T, color=line.get_color(), alpha=0.5, linewidth=0.6)
        middle = np.exp(np.log(means[:, s, fits]).mean() - up / down * np.log(T).mean())
        ax.plot(T, middle * np.array(T) ** (up / down), color="0.2", linewidth=1, linestyle="--")
    ax.plot([], [], color="0.2", linewidth=1, linestyle="--", label="slope of the theory")
    ax.set_title(f"{algorithm}: T^({THEORY_T[algorithm]})", fontsize=10)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xlabel("T")
    ax.grid(alpha=0.3)
    ax.spines[["top", "right"]].set_visible(False)


def _fitted(algorithm: str) -> tuple[tuple[int, ...], NDArray[np.bool_]]:
    """The horizons that are fitted, and which of all they are."""
    fits = np.array(HORIZONS[algorithm]) >= FIT_FROM
    return tuple(np.array(HORIZONS[algorithm])[fits].tolist()), fits


def _row(*cells: str) -> list[str]:
    return [f"| {' | '.join(cells)} |"]


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/img/rates.png"), help="the figure")
    parser.add_argument("--save", action="store_true", help="also write the numbers, as JSON beside the figure")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    with tempfile.TemporaryDirectory() as cache:
        base = BASE | {"output": {"cache": cache}}
        primal = Primal.of(experiment(base, steps("CD-MAGE", 1, 1, 1.0)).shards)
        for algorithm in HORIZONS:
            per_size = []
            for S in SIZES:
                started = time.perf_counter()
                per_size.append(measured(algorithm, S, base, primal))
                _say(f"{algorithm}, S = {S}: {time.perf_counter() - started:.0f} s")
            found[algorithm] = np.stack(per_size, axis=1)
    _say(tables(found))
    draw(found).savefig(asked.out, dpi=150)
    if asked.save:
        numbers = {
            algorithm: {"S": SIZES, "T": HORIZONS[algorithm], "repetitions": means.tolist()}
            for algorithm, means in found.items()
        }
        asked.out.with_suffix(".json").write_text(json.dumps(numbers, indent=1) + "\n")


if __name__ == "__main__":
    main()
