"""Code for one client's tensor, run on those of several at once."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from clients.per_client import Buffers, Known, PerClient

C = 3


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(C, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


OWN = (drawn(4), drawn(4, seed=1))
SAME = drawn(4, seed=2)[0]
CODE: dict[str, Callable[[Any, Any, Any], Any]] = {
    "a step": lambda a, b, s: a - 0.1 * (a - b + s),
    "what cancels": lambda a, b, s: (a - s) + (s - a) + b,
    "a quotient": lambda a, b, s: (a + b) / 3,
    "a tensor's quotient": lambda a, b, s: a / (b.abs() + 1),
    "a product of two": lambda a, b, s: 2 * a * s,
    "a negative": lambda a, b, s: -a + 0 * b,
    "reversed": lambda a, b, s: 1.5 - a,
    "with a number": lambda a, b, s: s + 1 + a,
    "a norm": lambda a, b, s: a / torch.linalg.vector_norm(a),
    "a method": lambda a, b, s: (a @ b) * s.clamp(min=0),
    "an index": lambda a, b, s: a[1:] + s[:3],
    "zeros": lambda a, b, s: torch.zeros_like(a) - s,
    "only shared": lambda a, b, s: torch.exp(s) + s.sum(),
    "in place": lambda a, b, s: a.mul_(2).sub_(s) + a,
    "in place, augmented": lambda a, b, s: _augmented(a) + s,
    "in place, an item": lambda a, b, s: _item(a) + s,
    "joined": lambda a, b, s: torch.cat((a, s, b)),
    "shapes": lambda a, b, s: a.reshape(2, 2).T.flatten() * len(s) * s.numel(),
    "several results": lambda a, b, s: torch.add(*a.split(2)) + s[0],
}


def _augmented(a: Any) -> Any:
    a += 1
    return a


def _item(a: Any) -> Any:
    a[0] = 7.0
    return a


@pytest.mark.parametrize("code", CODE.values(), ids=CODE)
def test_each_client_gets_what_it_would_get_alone(code: Callable[[Any, Any, Any], Any]) -> None:
    a, b = (PerClient.stacked(t.clone()) for t in OWN)
    s = PerClient.shared(SAME.clone(), C)
    result = code(a, b, s)
    weights_C = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)
    folded = result.folded(weights_C)
    known = Buffers().settle(result).known()
    expected = torch.stack([code(OWN[0][c].clone(), OWN[1][c].clone(), SAME.clone()) for c in range(C)])
    got = known.tensor.expand_as(expected) if known.shared else known.tensor
    torch.testing.assert_close(got, expected, rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(folded, torch.einsum("c,c...->...", weights_C, expected), rtol=1e-13, atol=1e-13)
    assert result.shape == expected[0].shape


def test_what_is_written_into_is_a_copy() -> None:
    t = OWN[0].clone()
    a = PerClient.stacked(t)
    same, sum_before = a + 0.0 * a, a + a
    a.zero_()
    assert torch.equal(t, OWN[0])
    assert torch.equal(same.known().tensor, OWN[0])
    assert torch.equal(sum_before.known().tensor, 2 * OWN[0])
    assert not a.known().tensor.any()


def test_a_branch_on_a_value_is_refused() -> None:
    a = PerClient.stacked(OWN[0].clone())
    with pytest.raises(RuntimeError, match="data-dependent"):
        bool(a.sum() > 0)


def test_a_carry_is_stepped_in_place_only_where_nothing_else_needs_its_memory() -> None:
    buffers, s = Buffers(), PerClient.shared(SAME.clone(), C)
    own = PerClient.stacked(OWN[0].clone())
    z = buffers.settle({"z": s - 0.1 * own})["z"]
    where = z.known().tensor.data_ptr()
    z = buffers.settle({"z": z - 0.1 * s})["z"]
    assert z.known().tensor.data_ptr() == where, "its only user"
    carry = buffers.settle({"z": z - 0.1 * s, "before": z})
    assert carry["before"].known().tensor.data_ptr() == where, "still needed"
    expected = SAME - 0.1 * OWN[0] - 0.1 * SAME
    torch.testing.assert_close(carry["before"].known().tensor, expected)
    torch.testing.assert_close(carry["z"].known().tensor, expected - 0.1 * SAME)
    for _ in range(5):
        carry = buffers.settle({"z": carry["z"] + (carry["z"] - carry["before"]), "before": carry["z"]})
    assert len(buffers.own) + len(buffers.free) == 3, "two are read while a third is written; memory is used again"
    torch.testing.assert_close(carry["z"].known().tensor, expected - 0.6 * SAME)
    assert torch.equal(own.known().tensor, OWN[0])


def test_equal_terms_cancel_before_they_are_computed() -> None:
    class Dear:
        def ready(self) -> None:
            raise AssertionError("computed")

        def add_to(self, out: Tensor, scale: float) -> None:
            raise AssertionError("added")

        def fold_into(self, out: Tensor, weights_C: Tensor) -> None:
            raise AssertionError("folded")

    g = PerClient.of(SAME, C, {Dear(): 1.0})
    z = PerClient.stacked(OWN[0].clone())
    step = Buffers().settle(z - 0.1 * (g - g + z))
    torch.testing.assert_close(step.known().tensor, 0.9 * OWN[0])
    assert isinstance(step.known(), Known)
