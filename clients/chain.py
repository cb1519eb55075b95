"""Networks that are chains of common layers, run for many clients at once: forward and backward as batched products.

Images have the rows of the minibatch innermost: a convolution is then a matrix product whose operand is copied together
in long runs, and whose result has the layout that the next convolution takes. Gradients of linear layers stay factored:
a step along one adds the product of its factors straight into the weights, and no matrix is written but the weights.

The layers stand in one file, long as it is: each relies on the memory layout that the others leave behind.

Legend: C clients, B rows of a batch, D weights of the network; w is (C, D), or (1, D) where all clients share it.
Features are (C, B, F), images (C, channels, height, width, B).
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree


@dataclass(frozen=True)
class Outer:
    """The gradient of a matrix of weights, sum_b left_b right_b', from `left` (C, B, out) and `right` (C, B, in).

    The matrix (out, in) begins at the number `first` of w.
    """

    first: int
    left: Tensor
    right: Tensor

    def add_to(self, out: Tensor, scale: float) -> None:
        """Adds `scale` times the gradient to its place in `out` (C, D)."""
        rows, columns = self.left.shape[-1], self.right.shape[-1]
        target = out[:, self.first : self.first + rows * columns].view(-1, rows, columns)
        target.baddbmm_(self.left.mT, self.right, alpha=scale)

    def fold_into(self, out: Tensor, weights_C: Tensor) -> None:
        """Adds the gradient's weighted sum over the clients to its place in `out` (D,)."""
        rows, columns = self.left.shape[-1], self.right.shape[-1]
        target = out[self.first : self.first + rows * columns].view(rows, columns)
        left = self.left * weights_C[:, None, None]
        target.addmm_(left.reshape(-1, rows).mT, self.right.reshape(-1, columns))

    def of(self, clients: slice) -> "Outer":
        """Returns the gradient of some of the clients."""
        return Outer(self.first, self.left[clients], self.right[clients])


@dataclass(frozen=True)
class Dense:
    """The gradient `values` (C, n) of n neighbouring weights, which begin at the number `first` of w."""

    first: int
    values: Tensor

    def add_to(self, out: Tensor, scale: float) -> None:
        """Adds `scale` times the gradient to its place in `out` (C, D)."""
        out[:, self.first : self.first + self.values.shape[1]].add_(self.values, alpha=scale)

    def fold_into(self, out: Tensor, weights_C: Tensor) -> None:
        """Adds the gradient's weighted sum over the clients to its place in `out` (D,)."""
        out[self.first : self.first + self.values.shape[1]].add_(weights_C @ self.values)

    def of(self, clients: slice) -> "Dense":
        """Returns the gradient of some of the clients."""
        return Dense(self.first, self.values[clients])


Piece = Outer | Dense


class Layer(Protocol):
    """A layer, with its forward and its backward pass for all clients."""

    def forward(self, w: Tensor, a: Tensor) -> tuple[Tensor, Any]:
        """Returns the output for the input a, and the values that `backward` needs."""

    def backward(self, w: Tensor, kept: Any, d: Tensor, inputs: bool) -> tuple[Tensor | None, list[Piece]]:
        """Returns the gradients with respect to the input, if `inputs`, and to the layer's weights.

        Args:
            w: the weights.
            kept: the values that `forward` kept.
            d: the gradient with respect to the output.
            inputs: True if the gradient with respect to the input is needed; otherwise it may be None.
        """


@dataclass(frozen=True)
class Linear:
    """nn.Linear, where `weight` and `bias` are the numbers of w at which its parameters begin."""

    rows: int
    columns: int
    weight: int
    bias: int | None

    def forward(self, w: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        matrix = self._matrix(w).mT
        if self.bias is None:
            return _times(a, matrix), a
        bias = w[:, None, self.bias : self.bias + self.rows]
        return (_times(a, matrix).add_(bias) if len(w) < len(a) else torch.baddbmm(bias, a, matrix)), a

    def backward(self, w: Tensor, kept: Tensor, d: Tensor, inputs: bool) -> tuple[Tensor | None, list[Piece]]:
        pieces: list[Piece] = [Outer(self.weight, d, kept)]
        if self.bias is not None:
            pieces.append(Dense(self.bias, d.sum(1)))
        return (_times(d, self._matrix(w)) if inputs else None), pieces

    def _matrix(self, w: Tensor) -> Tensor:
        return w[:, self.weight : self.weight + self.rows * self.columns].view(-1, self.rows, self.columns)


@dataclass(frozen=True)
class Conv:
    """nn.Conv2d without groups or dilation: a matrix product for each row of the kernel.

    The operand is the image copied once for each column of the kernel, so that all columns are one product. Copies for
    the rows too would save products, but they would not stay in the processor's cache.
    """

    into: int
    out: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    weight: int
    bias: int | None

    def forward(self, w: Tensor, a: Tensor) -> tuple[Tensor, tuple[Tensor, torch.Size]]:
        py, px = self.padding
        if py or px:
            a = F.pad(a, (0, 0, px, px, py, py))
        C, _, rows, columns, B = a.shape
        height, width = ((n - k) // s + 1 for n, k, s in zip((rows, columns), self.kernel, self.stride, strict=True))
        copied = self._copy_columns(a, width)
        first, *others = self._by_row(w, C)
        y = torch.bmm(first, self._inputs_of_row(copied, 0, height))
        for i, matrix in enumerate(others, 1):
            y.baddbmm_(matrix, self._inputs_of_row(copied, i, height))
        if self.bias is not None:
            y += w[:, self.bias : self.bias + self.out, None]
        return y.view(C, self.out, height, width, B), (copied, a.shape)

    def backward(
        self, w: Tensor, kept: tuple[Tensor, torch.Size], d: Tensor, inputs: bool
    ) -> tuple[Tensor | None, list[Piece]]:
        copied, shape = kept
        C, _, height, width, _ = d.shape
        flat = d.reshape(C, self.out, -1)
        # The factors have many more numbers than the gradient, so that the product is formed here, once.
        gradient = flat.new_empty(C, self.out, self.into, *self.kernel)
        for i in range(self.kernel[0]):
            product = torch.bmm(flat, self._inputs_of_row(copied, i, height).mT)
            gradient[:, :, :, i] = product.view(C, self.out, self.into, -1)
        pieces: list[Piece] = [Dense(self.weight, gradient.view(C, -1))]
        if self.bias is not None:
            pieces.append(Dense(self.bias, flat.sum(-1)))
        return (self._input_gradient(w, flat, shape, height, width) if inputs else None), pieces

    def _input_gradient(self, w: Tensor, d: Tensor, shape: torch.Size, height: int, width: int) -> Tensor:
        C, _, rows, columns, B = shape
        (sy, sx), (py, px) = self.stride, self.padding
        copied = d.new_zeros(C, self.into * self.kernel[1], rows, width * B)
        for i, matrix in enumerate(self._by_row(w, C)):
            if sy == 1:
                self._inputs_of_row(copied, i, height).baddbmm_(matrix.mT, d)
            else:
                copied[:, :, i : i + sy * height : sy] += torch.bmm(matrix.mT, d).view(C, -1, height, width * B)
        parts = copied.view(C, self.into, -1, rows, width, B)
        da = d.new_zeros(shape)
        for j in range(self.kernel[1]):
            da[:, :, :, j : j + sx * width : sx] += parts[:, :, j]
        return da[:, :, py : rows - py, px : columns - px]

    def _by_row(self, w: Tensor, clients: int) -> list[Tensor]:
        """Returns the matrix (C, out, into * columns) of each row of the kernel."""
        n = self.out * self.into * math.prod(self.kernel)
        kernels = w[:, self.weight : self.weight + n].view(-1, self.out, self.into, *self.kernel)
        return [k.reshape(len(w), self.out, -1).expand(clients, -1, -1) for k in kernels.unbind(3)]

    def _copy_columns(self, a: Tensor, width: int) -> Tensor:
        """Returns the inputs of each column of the kernel, (C, into * columns of the kernel, rows, width * B)."""
        C, _, rows, _, B = a.shape
        c, channel, y, x, b = a.contiguous().stride()
        size, stride = (C, self.into, self.kernel[1], rows, width, B), (c, channel, x, y, self.stride[1] * x, b)
        return a.contiguous().as_strided(size, stride).reshape(C, -1, rows, width * B)

    def _inputs_of_row(self, copied: Tensor, i: int, height: int) -> Tensor:
        """Returns the inputs of row i of the kernel, (C, into * columns of the kernel, height * width * B)."""
        sy = self.stride[0]
        return copied[:, :, i : i + sy * height : sy].flatten(2)


@dataclass(frozen=True)
class ReLU:
    """nn.ReLU, which writes into its input, since nothing else refers to that."""

    def forward(self, w: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        y = a.relu_()
        return y, y

    def backward(self, w: Tensor, kept: Tensor, d: Tensor, inputs: bool) -> tuple[Tensor | None, list[Piece]]:
        return torch.ops.aten.threshold_backward(d, kept, 0), []


@dataclass(frozen=True)
class Tanh:
    """nn.Tanh, which leaves its input as it is, since pooling before it finds the maxima by that."""

    def forward(self, w: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        y = a.tanh()
        return y, y

    def backward(self, w: Tensor, kept: Tensor, d: Tensor, inputs: bool) -> tuple[Tensor | None, list[Piece]]:
        return torch.ops.aten.tanh_backward(d, kept), []


@dataclass(frozen=True)
class MaxPool:
    """nn.MaxPool2d whose windows touch but do not overlap: along the width, then along the height.

    The first of equal values in a window gets the gradient, as in PyTorch.
    """

    kernel: tuple[int, int]

    def forward(self, w: Tensor, a: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        along = _pooled(a, 3, self.kernel[1])
        y = _pooled(along, 2, self.kernel[0])
        return y, (a, along, y)

    def backward(
        self, w: Tensor, kept: tuple[Tensor, Tensor, Tensor], d: Tensor, inputs: bool
    ) -> tuple[Tensor | None, list[Piece]]:
        a, along, y = kept
        return _unpooled(_unpooled(d, along, y, 2, self.kernel[0]), a, along, 3, self.kernel[1]), []


@dataclass(frozen=True)
class Images:
    """A layer that puts the rows of a minibatch of images innermost."""

    def forward(self, w: Tensor, a: Tensor) -> tuple[Tensor, None]:
        return a.movedim(1, -1).contiguous(), None

    def backward(self, w: Tensor, kept: None, d: Tensor, inputs: bool) -> tuple[Tensor | None, list[Piece]]:
        return d.movedim(-1, 1), []


@dataclass(frozen=True)
class Flatten:
    """nn.Flatten: images, or inputs of any shape behind their rows, become features."""

    images: bool

    def forward(self, w: Tensor, a: Tensor) -> tuple[Tensor, torch.Size]:
        return (a.flatten(1, -2).mT.contiguous() if self.images else a.flatten(2)), a.shape

    def backward(self, w: Tensor, kept: torch.Size, d: Tensor, inputs: bool) -> tuple[Tensor | None, list[Piece]]:
        return (d.mT if self.images else d).reshape(kept), []


@dataclass(frozen=True)
class Chain:
    """A network whose layers follow one after another."""

    layers: Sequence[Layer]

    @classmethod
    def of(cls, module: nn.Module) -> "Chain | None":
        """Returns the module as a chain; None if it is no chain, or has a layer of another kind."""
        try:
            graph = torch.fx.symbolic_trace(module).graph
        except Exception:  # noqa: BLE001 - whatever its forward does that cannot be traced
            return None
        nodes = list(graph.nodes)
        straight = [node.op for node in nodes] == ["placeholder", *["call_module"] * (len(nodes) - 2), "output"]
        if not straight or any(node.args != (before,) for before, node in itertools.pairwise(nodes)):
            return None
        first, begins = 0, {}
        for name, p in module.named_parameters():
            begins[name] = first
            first += p.numel()
        layers: list[Layer] = []
        images = False
        for node in nodes[1:-1]:
            layer = _layer(module.get_submodule(node.target), node.target, begins, images)
            fresh = any(isinstance(before, Linear | Conv) for before in layers)
            if layer is None or (isinstance(layer, ReLU) and not fresh):  # a ReLU would write into the inputs
                return None
            if isinstance(layer, Conv | MaxPool) and not images:
                layers.append(Images())
            images = isinstance(layer, Conv | MaxPool) or (images and isinstance(layer, ReLU | Tanh))
            layers.append(layer)
        learned = [layer for layer in layers if isinstance(layer, Linear | Conv)]
        shared = len({layer.weight for layer in learned}) < len(learned)
        return None if images or shared or not learned else cls(_reordered(layers))

    def forward(self, w: Tensor, inputs: Tensor) -> tuple[Tensor, list[Any]]:
        """Returns outputs (C, B, outputs) for inputs (C, B, ...), and the values that `backward` needs."""
        a, tape = inputs, []
        for layer in self.layers:
            a, kept = layer.forward(w, a)
            tape.append(kept)
        return a, tape

    def numbers_per_row(self, weights: int, shape: Sequence[int]) -> int:
        """Returns the number of numbers that `forward` keeps for each row of inputs of this shape."""
        _, tape = self.forward(torch.empty(1, weights, device="meta"), torch.empty(1, 1, *shape, device="meta"))
        return sum(leaf.numel() for leaf in pytree.tree_leaves(tape) if isinstance(leaf, Tensor))

    def backward(
        self, w: Tensor, tape: Sequence[Any], d: Tensor, inputs: bool = False
    ) -> tuple[list[Piece], Tensor | None]:
        """Returns the gradient with respect to w, and to the inputs if `inputs`, from that of the outputs, d."""
        pieces: list[Piece] = []
        back: Tensor | None = d
        learning = next(i for i, layer in enumerate(self.layers) if isinstance(layer, Linear | Conv))
        first = 0 if inputs else learning
        for i in reversed(range(first, len(self.layers))):
            assert back is not None
            back, more = self.layers[i].backward(w, tape[i], back, i > first or inputs)
            pieces += more
        return pieces, back


def _layer(layer: nn.Module, name: str, begins: dict[str, int], images: bool) -> Layer | None:
    weight, bias = begins.get(f"{name}.weight", 0), begins.get(f"{name}.bias")
    match layer:
        case nn.Flatten() if (layer.start_dim, layer.end_dim) == (1, -1):
            return Flatten(images)
        case nn.ReLU():
            return ReLU()
        case nn.Tanh():
            return Tanh()
        case nn.Linear():
            return Linear(layer.out_features, layer.in_features, weight, bias)
        case nn.Conv2d() if _plain(layer):
            kernel, stride, padding = (_pair(v) for v in (layer.kernel_size, layer.stride, layer.padding))
            return Conv(layer.in_channels, layer.out_channels, kernel, stride, padding, weight, bias)
        case nn.MaxPool2d() if _pair(layer.stride) == _pair(layer.kernel_size) and _plain_pool(layer):
            return MaxPool(_pair(layer.kernel_size))
    return None


def _plain(layer: nn.Conv2d) -> bool:
    return (
        layer.groups == 1
        and _pair(layer.dilation) == (1, 1)
        and layer.padding_mode == "zeros"
        and not isinstance(layer.padding, str)
    )


def _plain_pool(layer: nn.MaxPool2d) -> bool:
    return (
        min(_pair(layer.kernel_size)) > 1
        and _pair(layer.padding) == (0, 0)
        and _pair(layer.dilation) == (1, 1)
        and not (layer.ceil_mode or layer.return_indices)
    )


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def _reordered(layers: list[Layer]) -> list[Layer]:
    """Returns the layers with pooling before ReLU and tanh: the same function for a fraction of the work."""
    layers = list(layers)
    for i in range(len(layers) - 1):
        if isinstance(layers[i], ReLU | Tanh) and isinstance(layers[i + 1], MaxPool):
            layers[i], layers[i + 1] = layers[i + 1], layers[i]
    return layers


def _times(a: Tensor, matrix: Tensor) -> Tensor:
    """Returns a (C, B, n) times matrix (C or 1, n, m), as one product where all clients share the matrix."""
    if len(matrix) == len(a):
        return torch.bmm(a, matrix)
    return torch.mm(a.reshape(-1, a.shape[-1]), matrix[0]).view(*a.shape[:2], -1)


def _taps(a: Tensor, dim: int, k: int) -> list[Tensor]:
    """Returns views of the first, second, ... element of all windows of k along `dim`."""
    whole = a.narrow(dim, 0, a.shape[dim] // k * k)
    return [whole[(slice(None),) * dim + (slice(j, None, k),)] for j in range(k)]


def _pooled(a: Tensor, dim: int, k: int) -> Tensor:
    first, *others = _taps(a, dim, k)
    for other in others:
        first = torch.maximum(first, other)
    return first


def _unpooled(d: Tensor, a: Tensor, y: Tensor, dim: int, k: int) -> Tensor:
    """Returns the gradient with respect to the input a of `_pooled`, from that of its result y, d."""
    out = torch.empty_like(a) if a.shape[dim] % k == 0 else torch.zeros_like(a)
    *places, last = _taps(out, dim, k)
    for j, (tap, place) in enumerate(zip(_taps(a, dim, k), places, strict=False)):
        # The comparison has a float result, since a product with a boolean one would convert it first.
        torch.mul(d, torch.eq(tap, y, out=torch.empty_like(y)), out=place)
        d = torch.sub(d, place, out=last if j == k - 2 else None)
    return out
