"""Bytes on the wire are counted here, and nowhere else."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from raysim.exchange import addressed_to, is_gathered
from raysim.phase import Addressed, Installed, Phase, Same


@dataclass(frozen=True)
class Traffic:
    """Bytes of a phase's exchange with one client.

    Attributes:
        down: bytes of the message.
        held: bytes of the message that a client which received the round's previous message has already.
        up: bytes of the upload.
    """

    down: int
    held: int
    up: int

    def to(self, phase: Phase[Any, Any, Any, Any]) -> int:
        """Returns the bytes down where clients are always there: the same cohort as before keeps what it was sent."""
        return self.down - self.held if isinstance(phase.cohort, Same) else self.down

    @classmethod
    def of(cls, message: Any, previous: Any, upload: Any) -> "Traffic":
        """Counts the bytes of a message and an upload; `previous` is the message of the phase before, or None."""
        known = {id(leaf) for leaf in _transferred(previous)}
        held = sum(_bytes(leaf) for leaf in _transferred(message) if id(leaf) in known)
        return cls(size_bytes(message), held, size_bytes(upload))


def shapes_of(tree: Any) -> Any:
    """Returns the tree with tensors that have a shape and no numbers."""
    return pytree.tree_map(lambda leaf: leaf.to("meta") if isinstance(leaf, Tensor) else leaf, tree)


def size_bytes(sent: Any) -> int:
    """Counts the bytes of the tensors in a message or upload of one client.

    Scalars (step sizes, counts) are ignored, as in the papers, and so is what clients have installed.
    """
    return sum(_bytes(part) for part in _transferred(sent))


def stored_bytes(tree: Any, clients: int) -> int:
    """Counts the bytes in memory of a message to so many clients, or of the sum of their uploads."""

    def bytes_of(node: Any) -> int:
        if isinstance(node, Addressed):
            return (clients + 1) * stored_bytes(node.default, clients)
        if is_gathered(node):
            return clients * sum(stored_bytes(one, clients) for one in node.of.values())
        return _bytes(node) if isinstance(node, Tensor) else 0

    nodes = pytree.tree_leaves(tree, is_leaf=lambda node: isinstance(node, Addressed) or is_gathered(node))
    return sum(map(bytes_of, nodes))


def _transferred(sent: Any) -> list[Tensor]:
    """Returns the tensors that are on the wire, of one client."""
    parts = pytree.tree_leaves(addressed_to(None, sent), is_leaf=lambda node: isinstance(node, Installed))
    return [part for part in parts if isinstance(part, Tensor)]


def _bytes(leaf: Tensor) -> int:
    return leaf.numel() * leaf.element_size()
