"""Compositional AUC: the Jacobian's product against finite differences, and where descent on it leads."""

import pytest
import torch
from torch import Tensor

from raysim.batch import Batch
from raysim.errors import ConfigError
from raysim.models import MODELS, NetworkFactory
from raysim.point import Point
from raysim.problems import AUC, PROBLEMS, BinaryCrossEntropy, CompositionalAUC, DataSpec

COUNTS = (10, 30, 60)


def problem(model: str = "mlp", **settings: object) -> CompositionalAUC:
    shape, own = ((5,), {"hidden": [4]}) if model == "mlp" else ((1, 8, 8), {})
    factory = NetworkFactory(MODELS, model, shape, own)
    return CompositionalAUC(network=factory, data=DataSpec(shape, COUNTS), **settings)  # type: ignore[arg-type]


def batch(made: CompositionalAUC, rows: int = 12, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows, *made.data.shape, generator=generator, dtype=torch.float64)
    return Batch(inputs, torch.arange(rows) % 3, torch.full((rows,), 1 / rows, dtype=torch.float64))


def somewhere(made: CompositionalAUC, seed: int = 2) -> Point:
    z = made.init(1).to(torch.float64)
    generator = torch.Generator().manual_seed(seed)
    far = 0.1 if len(z.x) < 1000 else 0.01  # a large network would saturate
    return Point(z.x + far * torch.randn(z.x.shape, generator=generator, dtype=torch.float64), z.y + 0.7)


def inner(made: CompositionalAUC, x: Tensor, rows: Batch, eps: float = 1e-6) -> Tensor:
    """g(x) by central differences of the cross-entropy, which is told of none of the problem's own gradients."""
    slope = torch.zeros_like(x)
    for i in range(len(x) - 2):
        ends = []
        for sign in (1, -1):
            moved = x.clone()
            moved[i] += sign * eps
            ends.append(float(made.cross_entropy(moved, rows)))
        slope[i] = (ends[0] - ends[1]) / (2 * eps)
    return x - made.rho * slope


def test_the_inner_function_is_a_step_on_the_cross_entropy_of_the_weights_alone() -> None:
    made = problem(rho=0.3)
    rows, z = batch(made), somewhere(made)
    h, _ = made.composed(z, z.x, 1.0, rows, rows)
    torch.testing.assert_close(h, inner(made, z.x, rows), rtol=1e-7, atol=1e-9)
    assert torch.equal(h[-2:], z.x[-2:])
    assert (h[:-2] - z.x[:-2]).norm() > 1e-3


def test_the_cross_entropy_is_that_of_the_problem_of_this_name() -> None:
    made = problem()
    rows, z = batch(made), somewhere(made)
    plain = BinaryCrossEntropy(network=made.network, data=made.data)
    assert float(made.cross_entropy(z.x, rows)) == pytest.approx(float(plain.value(Point(z.x[:-2], z.y[:0]), rows)))


@pytest.mark.parametrize("alpha", [1.0, 0.9, 0.3])
def test_the_estimate_moves_by_alpha(alpha: float) -> None:
    made = problem(rho=0.3)
    rows, z = batch(made), somewhere(made)
    before = somewhere(made, seed=5).x
    h, _ = made.composed(z, before, alpha, rows, rows)
    torch.testing.assert_close(h, (1 - alpha) * before + alpha * inner(made, z.x, rows), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("model", ["mlp", "bn_cnn"])
def test_the_product_with_the_hessian_agrees_with_central_differences(model: str) -> None:
    """q - rho (grad CE(w + e q) - grad CE(w - e q)) / 2e, also through BatchNorm and pooling."""
    made = problem(model, rho=0.3)
    rows, z = batch(made), somewhere(made)
    before = somewhere(made, seed=5)
    h, got = made.composed(z, before.x, 0.6, rows, rows)
    q = AUC.gradient(made, Point(h, z.y), rows)
    slope = torch.func.grad(lambda x: made.cross_entropy(x, rows))
    eps = 1e-6 / float(q.x.norm())
    curved = (slope(z.x + eps * q.x) - slope(z.x - eps * q.x)) / (2 * eps)
    torch.testing.assert_close(got.x, q.x - made.rho * curved, rtol=1e-6, atol=1e-7 * float(curved.abs().max()))
    torch.testing.assert_close(got.y, q.y, rtol=0, atol=0)
    assert curved[:-2].norm() > 1e-3
    assert torch.equal(curved[-2:], torch.zeros_like(curved[-2:]))


def test_with_the_whole_of_the_new_value_it_is_the_gradient_of_the_composition() -> None:
    """alpha = 1: of x -> f(g(x), y), differentiated as one function of which nothing is written out."""
    made = problem(rho=0.5)
    rows, z = batch(made), somewhere(made)

    def whole(x: Tensor, y: Tensor) -> Tensor:
        down = torch.func.grad(lambda x: made.cross_entropy(x, rows))(x)
        return made.value(Point(x - made.rho * down, y), rows)

    _, got = made.composed(z, z.x, 1.0, rows, rows)
    g_x, g_y = torch.func.grad(whole, argnums=(0, 1))(z.x, z.y)
    torch.testing.assert_close(got.x, g_x, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(got.y, g_y, rtol=1e-10, atol=1e-12)


def test_the_inner_function_is_of_its_own_rows() -> None:
    made = problem(rho=0.5)
    xi, zeta, z = batch(made, seed=0), batch(made, seed=1), somewhere(made)

    def whole(x: Tensor, y: Tensor) -> Tensor:
        down = torch.func.grad(lambda x: made.cross_entropy(x, xi))(x)
        return made.value(Point(x - made.rho * down, y), zeta)

    h, got = made.composed(z, z.x, 1.0, xi, zeta)
    torch.testing.assert_close(h, inner(made, z.x, xi), rtol=1e-7, atol=1e-9)
    g_x, g_y = torch.func.grad(whole, argnums=(0, 1))(z.x, z.y)
    torch.testing.assert_close(got.x, g_x, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(got.y, g_y, rtol=1e-10, atol=1e-12)


def test_first_order_leaves_the_hessian_out_and_nothing_else() -> None:
    exact, ablation = problem(rho=0.5), problem(rho=0.5, first_order=True)
    rows, z = batch(exact), somewhere(exact)
    h, right = exact.composed(z, z.x, 0.9, rows, rows)
    same, wrong = ablation.composed(z, z.x, 0.9, rows, rows)
    assert torch.equal(same, h)
    torch.testing.assert_close(wrong.x, exact.gradient(Point(h, z.y), rows).x, rtol=1e-12, atol=1e-14)
    assert (wrong.x - right.x).norm() > 1e-3 * right.x.norm()
    assert torch.equal(wrong.y, right.y)


def test_the_inner_step_can_be_shrunk() -> None:
    made, smaller = problem(rho=0.5), problem(rho=0.05)
    rows, z = batch(made), somewhere(made)
    h, g = made.composed(z, z.x, 1.0, rows, rows, 0.1)
    expected, d = smaller.composed(z, z.x, 1.0, rows, rows)
    torch.testing.assert_close(h, expected, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(g.x, d.x, rtol=1e-12, atol=1e-14)


def test_nothing_that_it_gives_keeps_its_graph() -> None:
    made = problem()
    rows, z = batch(made), somewhere(made)
    h, g = made.composed(z, z.x, 1.0, rows, rows)
    assert not any(leaf.requires_grad for leaf in (h, g.x, g.y))


def test_other_scores_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"problem.score: should be 'sigmoid'"):
        PROBLEMS.settings("compositional_auc", {"score": "softmax"})
