"""Statistics of a population for BatchNorm in evaluation, where a batch's own would let its rows depend on each other.

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
    """Returns the BatchNorm layers of a module."""
    return [layer for layer in module.modules() if isinstance(layer, BatchNorm)]


def moments(modules: Sequence[nn.Module], run: Callable[[], Any]) -> Tensor:
    """Returns mean and mean square of the inputs of each BatchNorm channel while `run` runs, (2, M) float64.

    A layer that is called several times counts with its last call; a layer that is never called has zeros.
    """

    def watch(layer: BatchNorm, args: tuple[Tensor]) -> None:
        (inputs,) = args
        variance, mean = torch.var_mean(inputs.detach(), [0, *range(2, inputs.dim())], correction=0)
        mean, variance = mean.cpu().double(), variance.cpu().double()
        moments_of[layer] = torch.stack((mean, variance + mean**2))

    batch_norms = [layer for module in modules for layer in layers(module)]
    moments_of = {layer: torch.zeros(2, layer.num_features, dtype=torch.float64) for layer in batch_norms}
    hooks = [layer.register_forward_pre_hook(watch) for layer in batch_norms]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return torch.cat([moments_of[layer] for layer in batch_norms], dim=1)


@contextmanager
def normalised(modules: Sequence[nn.Module], moments: Tensor) -> Iterator[None]:
    """Lets the modules' BatchNorm layers take these moments (2, M) instead of the batch's, within a with block."""
    batch_norms = [layer for module in modules for layer in layers(module)]
    training = [layer.training for layer in batch_norms]
    pieces = moments.split([layer.num_features for layer in batch_norms], dim=1)
    hooks = []
    for layer, (mean, square) in zip(batch_norms, pieces, strict=True):
        layer.eval()
        hooks.append(layer.register_forward_pre_hook(functools.partial(_set_statistics, mean, square - mean**2)))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for layer, before in zip(batch_norms, training, strict=True):
            layer.running_mean = layer.running_var = None
            layer.train(before)


def _set_statistics(mean: Tensor, variance: Tensor, layer: BatchNorm, args: tuple[Tensor]) -> None:
    """Gives a layer its statistics in the type of its inputs, which may differ from that of its weights."""
    (inputs,) = args
    layer.running_mean, layer.running_var = mean.to(inputs), variance.clamp(min=0).to(inputs)
