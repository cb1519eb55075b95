"""Bytes on the wire: the one place where they are counted."""

from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree


def size_bytes(sent: Any) -> int:
    """Bytes of the tensors in a message or upload. Scalars (step sizes, counts) are ignored, as in the papers."""
    return sum(leaf.numel() * leaf.element_size() for leaf in pytree.tree_leaves(sent) if isinstance(leaf, Tensor))
