"""A fleet computes the blocks of a phase and returns their sum. It is all that the server sees of clients."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from raysim.data import Split
from raysim.exchange import Block, Order, Partial
from raysim.problems import Pool

Memory = Mapping[int, Any]
# A client's metrics by split and name; a split of which the client has no rows is left out.
ClientMetrics = Mapping[Split, Mapping[str, float | None]]
Result = TypeVar("Result")


class Fleet(Protocol):
    """Runs client halves. Memory travels with the work: handles go in and come out, and the server commits them."""

    def run(self, order: Order, blocks: Sequence[Block], memory: Memory) -> tuple[Partial, Memory]:
        """Returns the pairwise sum of the uploads of the blocks' clients, and handles of their new memory.

        Args:
            order: the phase and its message, the same for all.
            blocks: the clients, and the minibatches of each.
            memory: handles by client number, for clients that have memory; opaque to the caller.

        Raises ClientError where a client's code fails or its upload cannot be used and is not to be rejected.
        """

    def evaluate_models(
        self, order: Order, blocks: Sequence[Block], memory: Memory, splits: Sequence[Split]
    ) -> Sequence[ClientMetrics]:
        """Returns the metrics of each client's own model on its own rows, in the order of the blocks' clients.

        Args:
            order: a phase whose uploads are the models; the clients remember nothing of it.
            blocks, memory: as for `run`.
            splits: the splits whose rows are evaluated on.
        """

    def fetch(self, memory: Memory) -> Mapping[int, Any]:
        """Returns the memories that the handles stand for, by client number."""

    def keep(self, memories: Mapping[int, Any]) -> Memory:
        """Stores memories and returns their handles, by client number."""

    def pool(self, split: Split) -> Pool:
        """Returns all rows of "train" or "test", in the file's order."""

    def in_background(self, work: Callable[[], Result]) -> Callable[[], Result]:
        """Starts work that asks pools while rounds are run. Returns a function that waits for its result or error."""
