"""Bytes on the wire: the one place where they are counted."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from raysim.phase import Addressed, Installed, Phase, Same, addressed_to, is_gathered


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
        shapes = shapes_of(addressed_to(None, message))
        upload = phase.finish(shapes, phase.start(shapes, None)).upload
        known = {id(leaf) for leaf in _moved(previous)}
        held = sum(_bytes(leaf) for leaf in _moved(message) if id(leaf) in known)
        return cls(size_bytes(message), held, size_bytes(upload))


def shapes_of(tree: Any) -> Any:
    """The tree with tensors that have a shape and no numbers, for client code to be tried on."""
    return pytree.tree_map(lambda leaf: leaf.to("meta") if isinstance(leaf, Tensor) else leaf, tree)


def size_bytes(sent: Any) -> int:
    """Bytes of the tensors in a message or upload, of one client.

    Scalars (step sizes, counts) are ignored, as in the papers, and so is what clients have installed.
    """
    return sum(_bytes(part) for part in _moved(sent))


def stored_bytes(tree: Any, clients: int) -> int:
    """Bytes of all tensors in a message to so many clients, or in the sum of their uploads, in memory."""

    def stored(node: Any) -> int:
        if isinstance(node, Addressed):
            return (clients + 1) * stored_bytes(node.default, clients)
        if is_gathered(node):
            return clients * sum(stored_bytes(one, clients) for one in node.of.values())
        return _bytes(node) if isinstance(node, Tensor) else 0

    nodes = pytree.tree_leaves(tree, is_leaf=lambda node: isinstance(node, Addressed) or is_gathered(node))
    return sum(map(stored, nodes))


def _moved(sent: Any) -> list[Tensor]:
    """The tensors that are on the wire, of one client."""
    parts = pytree.tree_leaves(addressed_to(None, sent), is_leaf=lambda node: isinstance(node, Installed))
    return [part for part in parts if isinstance(part, Tensor)]


def _bytes(leaf: Tensor) -> int:
    return leaf.numel() * leaf.element_size()
