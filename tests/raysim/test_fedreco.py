"""FedReCo against its pseudo-code, and what it is the same as."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from raysim.algorithms.fedreco import consistency_gradients, distance
from raysim.batch import Batch
from raysim.errors import ConfigError
from raysim.problems.classification import Classification
from tests.contracts.table import settings
from tests.play import OWN, experiment, server

ENGINES = pytest.mark.parametrize("engine", ["loop", pytest.param("vectorized", marks=pytest.mark.slow)])


class ByHand:
    """One client's model and rows, with plain autograd."""

    def __init__(self, made: Any, client: int) -> None:
        self.problem: Classification = made.problem
        features, labels = made.shards.shard(client)
        self.inputs = torch.tensor(features, dtype=torch.float64) * made.shards.mul + made.shards.add
        self.labels = torch.tensor(labels)

    def parts(self, u: Tensor, v: Tensor, rows: Any) -> tuple[Tensor, Tensor]:
        """The rows' features and mean cross-entropy, of extractor and head written out."""
        W, b = u[: 8 * 64].view(8, 64), u[8 * 64 :]
        features = torch.tanh(self.inputs[rows].flatten(1) @ W.T + b)
        logits = features @ v[:80].view(10, 8).T + v[80:]
        return features, torch.nn.functional.cross_entropy(logits, self.labels[rows])

    @staticmethod
    def clipped(g: Tensor, most: float) -> Tensor:
        return g if g.norm() <= most else most * g / g.norm()


@ENGINES
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_a_round_of_algorithm_1_written_out(engine: str, reduction: str, tmp_path: Path) -> None:
    """Heads first, then extractors with the new heads, then the gradient at u_0; twice, with what clients keep."""
    algorithm = settings("fedreco", reduction=reduction, clip=1.5, decay=0.9, shard_gradient=False)
    made = experiment(OWN, algorithm, clients={"engine": engine})
    playing = server(made, tmp_path)
    z = made.problem.init(0).to(torch.float64)
    u_0, v_0 = z.x.split((made.problem.extractor_size, len(z.x) - made.problem.extractor_size))
    kept: dict[int, tuple[Tensor, Tensor]] = {}
    was_clipped = False
    for t in range(2):
        (phase,) = made.algorithm.phases(t)
        cohort = made.planner.cohort(phase.cohort, t, "update", None)
        sent = []
        for client in cohort.tolist():
            (block,) = made.planner.blocks(phase.works, t, "update", np.array([client]))
            heads, extractors, last = (drawn.rows_CKB[0] for drawn in block.minibatches)  # type: ignore[index]
            mine = ByHand(made, client)
            u, v = (part.clone() for part in kept.get(client, (u_0, v_0)))
            for rows in heads:
                v.requires_grad_()
                (g,) = torch.autograd.grad(mine.parts(u, v, rows)[1], v)
                v = (v - 0.9**t * 0.1 * mine.clipped(g, 1.5)).detach()
            for rows in extractors:
                u.requires_grad_()
                features, f = mine.parts(u, v, rows)
                H = ((features - mine.parts(u_0, v, rows)[0]) ** 2).sum(1)
                H = H.sum() if reduction == "sum" else H.mean()
                (g,) = torch.autograd.grad(f + 0.3 / 2 * H, u)
                was_clipped |= bool(g.norm() > 1.5)
                u = (u - 0.9**t * 0.05 * mine.clipped(g, 1.5)).detach()
            common = u_0.clone().requires_grad_()
            H = ((mine.parts(u, v, last[0])[0] - mine.parts(common, v, last[0])[0]) ** 2).sum(1)
            sent.append(torch.autograd.grad(H.sum() if reduction == "sum" else H.mean(), common)[0])
            kept[client] = u, v
        u_0 = u_0 - 0.02 * ByHand.clipped(torch.stack(sent).mean(0), 1.5)
        playing.play(t)
        torch.testing.assert_close(playing.state.u, u_0, rtol=1e-9, atol=1e-11)
        for client, (u, v) in kept.items():
            torch.testing.assert_close(playing.memory[client].u, u, rtol=1e-9, atol=1e-11)
            torch.testing.assert_close(playing.memory[client].v, v, rtol=1e-9, atol=1e-11)
    assert was_clipped
    assert len(kept) > 4, "some took part once"


@pytest.mark.parametrize("name", ["fedreco", "fedreco_pvr"])
def test_without_consistency_clients_train_alone(name: str, tmp_path: Path) -> None:
    ends = []
    for eta_0 in (0.0, 50.0):
        playing = server(experiment(OWN, settings(name, weight=0.0, eta_0=eta_0, S=10)), tmp_path)
        for t in range(3):
            playing.play(t)
        ends.append(playing)
    alone, other = ends
    assert (alone.point - other.point).norm() > 1
    for client, memory in alone.memory.items():
        assert torch.equal(memory.u, other.memory[client].u)
        assert torch.equal(memory.v, other.memory[client].v)


@ENGINES
def test_on_whole_shards_variance_reduction_changes_nothing(engine: str, tmp_path: Path) -> None:
    """A minibatch is the shard then, its gradient is the control variate, and the two cancel."""
    base = OWN | {"partition": {"name": "iid", "clients": 3, "test_fraction": 0.3}, "clients": {"engine": engine}}
    made = experiment(base, settings("fedreco", S=3))
    sizes = set(made.shards.rows_N.tolist())
    assert len(sizes) == 1, "H is the sum over a minibatch in one and B times the mean in the other"
    shard = {"batch": sizes.pop(), "S": 3, "clip": 1e6}
    plain, reduced = (
        server(experiment(base, settings(name, **shard)), tmp_path) for name in ("fedreco", "fedreco_pvr")
    )
    for t in range(4):
        plain.play(t)
        reduced.play(t)
    torch.testing.assert_close(reduced.state.u, plain.state.u, rtol=1e-9, atol=1e-11)
    for client, memory in plain.memory.items():
        torch.testing.assert_close(reduced.memory[client].u, memory.u, rtol=1e-9, atol=1e-11)
    assert (plain.state.u - plain.job.problem.init(0).x[: len(plain.state.u)]).norm() > 1e-3


def test_with_variance_reduction_clients_keep_the_gradient_of_all_rows(tmp_path: Path) -> None:
    made = experiment(OWN, settings("fedreco_pvr", S=10))
    playing = server(made, tmp_path)
    for t in range(2):
        playing.play(t)
        for client, memory in playing.memory.items():
            mine = ByHand(made, client)
            rows = np.arange(len(mine.labels))
            batch = Batch(mine.inputs, mine.labels, torch.full((len(rows),), 5 / len(rows), dtype=torch.float64))
            at_u, _ = consistency_gradients(mine.problem, memory.u, memory.u_0, batch.weights, batch)
            torch.testing.assert_close(memory.g, at_u, rtol=1e-9, atol=1e-12)


def test_clients_that_are_not_asked_keep_their_models(tmp_path: Path) -> None:
    made = experiment(OWN, settings("fedreco", S=3))
    playing = server(made, tmp_path)
    for t in range(6):
        before = dict(playing.memory)
        playing.play(t)
        (phase,) = made.algorithm.phases(t)
        cohort = set(made.planner.cohort(phase.cohort, t, "update", None).tolist())
        for client, memory in before.items():
            same = torch.equal(playing.memory[client].u, memory.u)
            assert same == (client not in cohort)


def test_the_server_takes_steps_of_a_bounded_length(tmp_path: Path) -> None:
    playing = server(experiment(OWN, settings("fedreco", eta_0=1.0, clip=0.01, shard_gradient=True)), tmp_path)
    playing.play(0)
    before = playing.state.u
    playing.play(1)
    assert float((playing.state.u - before).norm()) == pytest.approx(0.01, rel=1e-9)


def test_gradients_of_the_consistency_agree_with_central_differences() -> None:
    made = experiment(OWN, settings("fedreco"))
    problem, mine = made.problem, ByHand(made, 0)
    generator = torch.Generator().manual_seed(0)
    u, u_0, d, e = (
        torch.randn(made.problem.extractor_size, dtype=torch.float64, generator=generator) for _ in range(4)
    )
    batch = Batch(mine.inputs, mine.labels, torch.full((len(mine.labels),), 1.0, dtype=torch.float64))

    def H(u: Tensor, u_0: Tensor) -> float:
        return float(distance(problem.features(u, batch), problem.features(u_0, batch), batch.weights))

    at_u, at_u_0 = consistency_gradients(problem, u, u_0, batch.weights, batch)
    h = 1e-6
    assert float(at_u @ d) == pytest.approx((H(u + h * d, u_0) - H(u - h * d, u_0)) / (2 * h), rel=1e-6)
    assert float(at_u_0 @ e) == pytest.approx((H(u, u_0 + h * e) - H(u, u_0 - h * e)) / (2 * h), rel=1e-6)


def test_further_steps_are_for_the_evaluation_alone(tmp_path: Path) -> None:
    plain, tuned = (
        server(experiment(OWN, settings("fedreco", tune_v=tune, tune_u=tune), rounds=3), tmp_path) for tune in (0, 20)
    )
    (*_, without), (*_, after) = (list(playing.run()) for playing in (plain, tuned))
    assert torch.equal(plain.point.x, tuned.point.x)
    for client, memory in plain.memory.items():
        assert torch.equal(memory.u, tuned.memory[client].u)
    assert after.metrics["test"]["value"] < without.metrics["test"]["value"]


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"model": {"name": "mlp"}}, "'mlp' has no submodule 'extractor', which is needed here"),
        ({"problem": {"name": "fair"}}, "Fair has no feature extractor and head; take classification"),
        ({"model": {"name": "tests.toys:HeadFirst"}}, "has its head before its extractor; make the extractor first"),
        ({"model": {"name": "tests.toys:ThreeParts"}}, "has weights outside of its submodules extractor and head"),
    ],
)
def test_a_network_without_the_two_parts_is_refused(sections: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        experiment(OWN | sections, settings("fedreco"))
