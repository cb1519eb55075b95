"""Bytes on the wire: the one place where they are counted."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from raysim.phase import Installed, Phase, Same


@dataclass(frozen=True)
class Traffic:
    """Bytes of a phase's exchange with one client.

    Attributes:
        down: of the message.
        held: those of them that a client which got the round's previous message has already.
        up: of the upload.
    """

    down: int
    held: int
    up: int

    def to(self, phase: Phase[Any, Any, Any, Any]) -> int:
        """Bytes down where clients are always there: the same ones as in the phase before keep what they were sent."""
        return self.down - self.held if isinstance(phase.cohort, Same) else self.down

    @classmethod
    def of(cls, phase: Phase[Any, Any, Any, Any], message: Any, previous: Any) -> "Traffic":
        """From shapes alone, before anything is computed; `previous` is the message of the round's phase before."""
        shapes = shapes_of(message)
        upload = phase.finish(shapes, phase.start(shapes, None)).upload
        known = {id(leaf) for leaf in pytree.tree_leaves(previous) if isinstance(leaf, Tensor)}
        held = sum(_bytes(leaf) for leaf in pytree.tree_leaves(message) if id(leaf) in known)
        return cls(size_bytes(message), held, size_bytes(upload))


def shapes_of(tree: Any) -> Any:
    """The tree with tensors that have a shape and no numbers, for client code to be tried on."""
    return pytree.tree_map(lambda leaf: leaf.to("meta") if isinstance(leaf, Tensor) else leaf, tree)


def size_bytes(sent: Any) -> int:
    """Bytes of the tensors in a message or upload.

    Scalars (step sizes, counts) are ignored, as in the papers, and so is what clients have installed.
    """
    parts = pytree.tree_leaves(sent, is_leaf=lambda node: isinstance(node, Installed))
    return sum(_bytes(part) for part in parts if isinstance(part, Tensor))


def _bytes(leaf: Tensor) -> int:
    return leaf.numel() * leaf.element_size()
