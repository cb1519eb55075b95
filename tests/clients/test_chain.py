"""Networks by hand against PyTorch's own derivatives, and what is not a chain left alone."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clients.chain import Chain
from raysim.models import MLP, LeNet5, ReLUCNN, TanhCNN, TutorialCNN

C, B = 3, 4
NETWORKS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "mlp": (lambda: MLP((1, 4, 5), 3, (7, 6)), (1, 4, 5)),
    "lenet5": (lambda: LeNet5((1, 16, 16), 3), (1, 16, 16)),
    "lenet5 with a last relu": (lambda: LeNet5((1, 18, 18), 3, final_relu=True), (1, 18, 18)),
    "tutorial_cnn": (lambda: TutorialCNN((3, 18, 18), 3), (3, 18, 18)),
    "tanh_cnn": (lambda: TanhCNN((1, 12, 12), 3), (1, 12, 12)),
    "relu_cnn": (lambda: ReLUCNN((3, 9, 9), 3), (3, 9, 9)),
    "padding, strides, no bias, odd sides": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 3, (3, 2), stride=(2, 3), padding=(1, 2), bias=False),
            nn.ReLU(),
            nn.MaxPool2d((2, 3)),
            nn.Flatten(),
            nn.Linear(24, 5, bias=False),
            nn.ReLU(),
            nn.Linear(5, 2),
        ),
        (2, 17, 19),
    ),
    "pooling first": (
        lambda: nn.Sequential(nn.MaxPool2d(3), nn.Conv2d(1, 2, 2), nn.Flatten(), nn.Linear(18, 2)),
        (1, 12, 12),
    ),
    "features": (lambda: nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 1)), (6,)),
}


def case(name: str) -> tuple[nn.Module, Chain, Tensor, Tensor]:
    """A network, its chain, C clients' weights and their inputs, with equal neighbours for pooling to choose among."""
    build, shape = NETWORKS[name]
    torch.manual_seed(0)
    module = build().double()
    chain = Chain.of(module)
    assert chain is not None
    weights = torch.cat([p.detach().reshape(-1) for p in module.parameters()])
    inputs = torch.rand(C, B, *shape, dtype=torch.float64)
    inputs[:, 0] = 1.0
    return module, chain, weights + 0.1 * torch.randn(C, len(weights), dtype=torch.float64), inputs


def outputs_of(module: nn.Module, w: Tensor, inputs: Tensor) -> Tensor:
    parts, first = {}, 0
    for name, p in module.named_parameters():
        parts[name] = w[first : first + p.numel()].view(p.shape)
        first += p.numel()
    return torch.func.functional_call(module, parts, (inputs,))  # type: ignore[no-any-return]


def squares(module: nn.Module, w: Tensor, inputs: Tensor, rows: Tensor) -> Tensor:
    return (rows * outputs_of(module, w, inputs).square().sum(1)).sum()


@pytest.mark.parametrize("shared", [False, True], ids=["weights of their own", "weights in common"])
@pytest.mark.parametrize("name", NETWORKS)
def test_outputs_and_gradients_are_those_of_pytorch(name: str, shared: bool) -> None:
    module, chain, w, inputs = case(name)
    given = inputs.clone()
    w = w[:1] if shared else w
    outputs, tape = chain.forward(w, inputs)
    rows = torch.rand(C, B, dtype=torch.float64)
    pieces, _ = chain.backward(w, tape, 2 * rows[:, :, None] * outputs)
    assert torch.equal(inputs, given)
    mine = torch.ones(C, w.shape[1], dtype=torch.float64)
    for piece in pieces:
        piece.add_to(mine, -0.5)
    weights_C = torch.tensor([1.0, 0.0, 2.5], dtype=torch.float64)
    folded = torch.zeros(w.shape[1], dtype=torch.float64)
    for piece in pieces:
        piece.fold_into(folded, weights_C)
    one = torch.zeros(1, w.shape[1], dtype=torch.float64)
    for piece in pieces:
        piece.of(slice(1, 2)).add_to(one, 1.0)
    theirs = []
    for c in range(C):
        own = w[0 if shared else c]
        torch.testing.assert_close(outputs[c], outputs_of(module, own, inputs[c]), rtol=1e-12, atol=1e-12)
        theirs.append(torch.func.grad(squares, argnums=1)(module, own, inputs[c], rows[c]))
    torch.testing.assert_close(mine, 1 - 0.5 * torch.stack(theirs), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(folded, weights_C @ torch.stack(theirs), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(one[0], theirs[1], rtol=1e-10, atol=1e-12)


class Skipping(nn.Module):
    """Not one layer after another."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + self.linear(inputs)  # type: ignore[no-any-return]


class Twice(nn.Module):
    """The same weights in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.linear(self.linear(inputs))  # type: ignore[no-any-return]


class Branching(nn.Module):
    """Cannot be traced."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.linear(inputs) if inputs.sum() > 0 else inputs  # type: ignore[no-any-return]


class Functional(nn.Module):
    """Calls a function where a chain has a module."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        return F.gelu(self.linear(inputs))


@pytest.mark.parametrize(
    "module",
    [
        Skipping(),
        Twice(),
        Branching(),
        Functional(),
        nn.Sequential(nn.ReLU(), nn.Linear(4, 1)),
        nn.Sequential(nn.Linear(4, 4), nn.GroupNorm(2, 4)),
        nn.Sequential(nn.Conv2d(2, 2, 3, groups=2), nn.Flatten(), nn.Linear(2, 1)),
        nn.Sequential(nn.Conv2d(1, 2, 3, padding="same"), nn.Flatten(), nn.Linear(2, 1)),
        nn.Sequential(nn.Conv2d(1, 2, 3, dilation=2), nn.Flatten(), nn.Linear(2, 1)),
        nn.Sequential(nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular"), nn.Flatten(), nn.Linear(2, 1)),
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(3, stride=2), nn.Flatten(), nn.Linear(2, 1)),
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2, padding=1), nn.Flatten(), nn.Linear(2, 1)),
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2, ceil_mode=True), nn.Flatten(), nn.Linear(2, 1)),
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU()),
        nn.Sequential(nn.Flatten(start_dim=2), nn.Linear(4, 1)),
        nn.Flatten(),
    ],
    ids=lambda module: str(module).replace("\n", "")[:60],
)
def test_what_is_no_chain_of_known_layers_is_left_to_autograd(module: nn.Module) -> None:
    assert Chain.of(module) is None


def test_the_numbers_kept_for_a_row_are_counted() -> None:
    chain = Chain.of(nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2)))
    assert chain is not None
    assert chain.numbers_per_row(6 * 4 + 4 + 4 * 2 + 2, (2, 3)) == 6 + 4 + 4
