"""Trees of tensors on their way through Ray's object store."""

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils import _pytree as pytree


@dataclass(frozen=True)
class Packed:
    """A tensor as a NumPy array, which Ray passes on without a copy, while it turns tensors into bytes."""

    array: NDArray[Any]


def packed(tree: Any) -> Any:
    """Returns the tree with its tensors packed."""
    return pytree.tree_map(lambda leaf: Packed(leaf.cpu().numpy()) if isinstance(leaf, Tensor) else leaf, tree)


def unpacked(tree: Any) -> Any:
    """Returns the tree with its tensors unpacked. They may lie in the object store, which must not be written to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return pytree.tree_map(lambda leaf: torch.from_numpy(leaf.array) if isinstance(leaf, Packed) else leaf, tree)
