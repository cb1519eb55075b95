"""BatchNorm's statistics of a population, for evaluation: a batch's own would make its rows depend on each other.

Networks keep no running statistics, which would pass from client to client. Instead they are taken anew for each
evaluation, in a pass over training rows at the point that is evaluated: "static batch normalisation" of E. Diao,
J. Ding, V. Tarokh, "HeteroFL", ICLR 2021, https://arxiv.org/abs/2010.01264, section 3.

Legend: N rows, B of a batch, M numbers: the channels of all BatchNorm layers of some networks, one after another.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

BatchNorm = nn.modules.batchnorm._BatchNorm


def layers(module: nn.Module) -> list[BatchNorm]:
    """Its BatchNorm layers."""
    return [layer for layer in module.modules() if isinstance(layer, BatchNorm)]


def moments(modules: Sequence[nn.Module], run: Callable[[], Any]) -> Tensor:
    """Mean and mean square of what each channel of their BatchNorm layers is given while `run` runs, (2, M) in float64.

    A layer that is called several times counts with its last; one that is never called has zeros.
    """

    def watch(layer: BatchNorm, args: tuple[Tensor]) -> None:
        (inputs,) = args
        variance, mean = torch.var_mean(inputs.detach(), [0, *range(2, inputs.dim())], correction=0)
        mean, variance = mean.cpu().double(), variance.cpu().double()
        given[layer] = torch.stack((mean, variance + mean**2))

    own = [layer for module in modules for layer in layers(module)]
    given = {layer: torch.zeros(2, layer.num_features, dtype=torch.float64) for layer in own}
    hooks = [layer.register_forward_pre_hook(watch) for layer in own]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return torch.cat([given[layer] for layer in own], dim=1)


@contextmanager
def normalised(modules: Sequence[nn.Module], moments: Tensor) -> Iterator[None]:
    """While it lasts, their BatchNorm layers take these statistics (2, M) instead of the batch's."""
    own = [layer for module in modules for layer in layers(module)]
    training = [layer.training for layer in own]
    pieces = moments.split([layer.num_features for layer in own], dim=1)
    hooks = []
    for layer, (mean, square) in zip(own, pieces, strict=True):
        layer.eval()
        hooks.append(layer.register_forward_pre_hook(functools.partial(_take, mean, square - mean**2)))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for layer, before in zip(own, training, strict=True):
            layer.running_mean = layer.running_var = None
            layer.train(before)


def _take(mean: Tensor, variance: Tensor, layer: BatchNorm, args: tuple[Tensor]) -> None:
    """Statistics in the type of what the layer is given, which its own weights need not have."""
    (inputs,) = args
    layer.running_mean, layer.running_var = mean.to(inputs), variance.clamp(min=0).to(inputs)
