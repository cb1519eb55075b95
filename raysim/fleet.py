"""A fleet takes a phase's blocks and gives back their partial sums, in order. It is all the server sees of clients."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from raysim.data import Split
from raysim.phase import Block, Order, Partial
from raysim.point import Point

Memory = Mapping[int, Any]


class Fleet(Protocol):
    """Runs client halves. Memory travels with the work: handles go in and come out, and the server commits them."""

    def run(self, order: Order, blocks: Sequence[Block], memory: Memory) -> Iterator[tuple[Partial, Memory]]:
        """Each block's partial sums and its clients' new memory, in the order of the blocks.

        Args:
            order: the phase and its message, the same for all.
            blocks: who computes what.
            memory: handles by client number, for those who have any; opaque to the caller.
        """

    def outputs(self, z: Point, split: Split) -> NDArray[np.float64]:
        """The problem's evaluation outputs at z on all rows of "train" or "test", in the file's order."""
