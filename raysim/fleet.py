"""A fleet takes a phase's blocks and gives back their sum. It is all the server sees of clients."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from raysim.data import Split
from raysim.exchange import Block, Order, Partial
from raysim.problems import Pool

Memory = Mapping[int, Any]
# A client's metrics by split and name; nothing in a split that it has no rows of.
ClientMetrics = Mapping[Split, Mapping[str, float | None]]
Made = TypeVar("Made")


class Fleet(Protocol):
    """Runs client halves. Memory travels with the work: handles go in and come out, and the server commits them."""

    def run(self, order: Order, blocks: Sequence[Block], memory: Memory) -> tuple[Partial, Memory]:
        """The pairwise sum of what the blocks' clients upload, and handles of their new memory.

        Args:
            order: the phase and its message, the same for all.
            blocks: who computes what.
            memory: handles by client number, for those who have any; opaque to the caller.
        """

    def evaluate_models(
        self, order: Order, blocks: Sequence[Block], memory: Memory, splits: Sequence[Split]
    ) -> Sequence[ClientMetrics]:
        """Metrics of each client's own model on its own rows, in the order of the blocks' clients.

        Args:
            order: a phase whose uploads are the models; nothing is remembered of it.
            blocks, memory: as for `run`.
            splits: what is evaluated on.
        """

    def fetch(self, memory: Memory) -> Mapping[int, Any]:
        """The memories that these handles stand for."""

    def keep(self, memories: Mapping[int, Any]) -> Memory:
        """Handles for these memories."""

    def pool(self, split: Split) -> Pool:
        """All rows of "train" or "test", in the file's order."""

    def in_background(self, work: Callable[[], Made]) -> Callable[[], Made]:
        """Starts work that asks pools while rounds are run. Returns a call that waits for its result or exception."""
