"""Points and the bytes of what is sent."""

from typing import NamedTuple

import pytest
import torch
from torch.utils import _pytree as pytree

from raysim import wire
from raysim.point import Point


class Message(NamedTuple):
    z: Point
    step: float
    nothing: None


def test_descent_ascent_goes_down_in_x_and_up_in_y() -> None:
    z = Point(torch.tensor([1.0, 2.0]), torch.tensor([3.0]))
    d = Point(torch.tensor([10.0, 20.0]), torch.tensor([30.0]))
    moved = z.descent_ascent(d, 0.1, 0.01)
    assert moved.x.tolist() == pytest.approx([0.0, 0.0])
    assert moved.y.tolist() == pytest.approx([3.3])


def test_arithmetic_is_per_block() -> None:
    a, b = Point(torch.tensor([1.0]), torch.tensor([2.0])), Point(torch.tensor([10.0]), torch.tensor([20.0]))
    total = a + 2 * b - a
    assert (total.x.item(), total.y.item()) == (20.0, 40.0)
    assert Point(torch.tensor([3.0]), torch.tensor([4.0])).norm() == 5.0


def test_a_point_is_a_tree_for_torch_func() -> None:
    z = Point(torch.ones(3, 2), torch.zeros(3, 1))
    assert pytree.tree_map(torch.Tensor.dim, z) == Point(2, 2)  # type: ignore[arg-type]
    doubled = torch.func.vmap(lambda point: point + point)(z)
    assert doubled.x.tolist() == [[2.0, 2.0]] * 3


def test_bytes_count_tensors_and_not_scalars() -> None:
    z = Point(torch.zeros(5), torch.zeros(2, dtype=torch.float64))
    assert wire.size_bytes(Message(z, 0.1, None)) == 5 * 4 + 2 * 8
    assert wire.size_bytes((z, {"u": z})) == 2 * 36
