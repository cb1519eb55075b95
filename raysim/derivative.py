"""Gradients of functions, within and without PyTorch's function transforms."""

from collections.abc import Callable

import torch
from torch import Tensor


def gradients(f: Callable[..., Tensor], *at: Tensor) -> tuple[Tensor, ...]:
    """Returns the gradients of the scalar f(*at) with respect to each argument, zeros where f does not depend on it.

    The values are those of torch.func.grad, which is called within torch.func.vmap. Anywhere else plain autograd is
    called, whose results are detached: torch.func.grad loads PyTorch's compiler, which costs several seconds and
    200 MB in each process that computes gradients.
    """
    if torch._C._functorch.maybe_current_level() is not None:  # PyTorch has no public way to ask
        return tuple(torch.func.grad(f, argnums=tuple(range(len(at))))(*at))
    leaves = [tensor.detach().requires_grad_() for tensor in at]
    with torch.enable_grad():
        value = f(*leaves)
    if not value.requires_grad:
        return tuple(torch.zeros_like(tensor) for tensor in at)
    return torch.autograd.grad(value, leaves, materialize_grads=True)
