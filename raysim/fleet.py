"""A fleet takes a phase's blocks and gives back their sum. It is all the server sees of clients."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from raysim.data import Split
from raysim.phase import Block, Order, Partial
from raysim.point import Point

Memory = Mapping[int, Any]


class Fleet(Protocol):
    """Runs client halves. Memory travels with the work: handles go in and come out, and the server commits them."""

    def run(self, order: Order, blocks: Sequence[Block], memory: Memory) -> tuple[Partial, Memory]:
        """The pairwise sum of what the blocks' clients upload, and handles of their new memory.

        Args:
            order: the phase and its message, the same for all.
            blocks: who computes what.
            memory: handles by client number, for those who have any; opaque to the caller.
        """

    def outputs(self, z: Point, split: Split) -> Callable[[], NDArray[np.float64]]:
        """Starts to compute the problem's evaluation outputs at z on all rows of "train" or "test".

        What it returns waits for them, and gives them in the file's order; rounds may be run before.
        """
