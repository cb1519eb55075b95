"""The plan of a phase: its cohort and minibatches. All random choices of the phase are made here, before any work.

Legend: C clients of a block, K local steps, B minibatch, N all clients.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from raysim import draws
from raysim.errors import ConfigError, DataError
from raysim.exchange import Block, Minibatches
from raysim.phase import Cohort, LocalSteps, Same, Uniform, Work

# The fewest blocks of a phase whose clients are computed one after another, and the most clients in such a block: some
# hundred actors shall have work where thousands of clients are sampled.
AUTO_BLOCKS, MOST = 32, 10
# Random numbers that are sorted at a time.
SORTED = 100_000


@dataclass(frozen=True)
class Planner:
    """Draws cohorts and batches from counters alone.

    Attributes:
        rows_N: rows of each client's shard; clients without rows are never drawn.
        seed: the experiment's seed.
        block: most clients in a block. None makes AUTO_BLOCKS blocks, or more so that no block has more than MOST
            clients, but at most one per client. The number of actors has no say, since sums are rounded per block.
        together: clients that are best computed together; with it, a `block` of None makes 2, 4, 8, ... blocks of at
            most so many clients.
    """

    rows_N: NDArray[np.int64]
    seed: int
    block: int | None = None
    together: int | None = None

    @cached_property
    def population(self) -> NDArray[np.int64]:
        """The numbers of the clients that have rows, ascending. Raises DataError if there are none."""
        clients = np.flatnonzero(self.rows_N > 0)
        if not len(clients):
            raise DataError("every client has 0 rows; there is nothing to train on")
        return clients

    def check(self, rule: Cohort) -> None:
        """Raises ConfigError if a cohort cannot be drawn."""
        n, has_rows = len(self.rows_N), len(self.population)
        if isinstance(rule, Uniform) and has_rows < rule.S:
            empty = f" ({n - has_rows} more have no rows)" if n > has_rows else ""
            raise ConfigError("algorithm.S", f"cannot sample {rule.S} clients of {has_rows}{empty}; lower algorithm.S")

    def cohort(self, rule: Cohort, t: int, phase: str, previous: NDArray[np.int64] | None) -> NDArray[np.int64]:
        """Draws the clients of the phase's cohort, ascending; `previous` is the cohort of the round's phase before."""
        if isinstance(rule, Same):
            assert previous is not None
            return previous
        return draws.sample(self.population, rule.S, self.seed, "cohort", t, draws.code(phase))

    def samples(self, work: Work, clients_C: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the number of rows in each client's minibatches, repeats counted, (C,)."""
        n = self.rows_N[clients_C]
        if not isinstance(work, LocalSteps):
            return n
        batch, first = _sizes(work, n)
        left = work.K - 1 - -(-(n - first) // batch)  # steps after the first epoch
        epochs, steps = np.divmod(np.maximum(left, 0), -(-n // batch))
        later = epochs * n + np.minimum(steps * batch, n)
        drawn: NDArray[np.int64] = np.where(left < 0, np.minimum(first + (work.K - 1) * batch, n), n + later)
        return drawn

    def smallest(self, work: Work) -> NDArray[np.int64]:
        """Returns the rows of the smallest minibatch, or chunk of a whole shard, of each client of the population."""
        n = self.rows_N[self.population]
        if not isinstance(work, LocalSteps):
            batch = n if work.batch is None else np.minimum(work.batch, n)
            return batch - (-n % batch)
        batch, first = _sizes(work, n)
        begun = (
            1 - -(n - first) // batch
        )  # steps of the first epoch: the first minibatch, then the rest of the shard in others
        least = first if work.K == 1 else np.minimum(first, batch)
        for steps, rows in ((begun, n - first), (begun - -n // batch, n)):
            least = np.where((steps <= work.K) & (rows > 0), np.minimum(least, batch - (-rows % batch)), least)
        return least

    def blocks(self, works: Sequence[Work], t: int, phase: str, cohort: NDArray[np.int64]) -> list[Block]:
        """Draws the cohort's work in the passes of a phase, in blocks of as equal numbers of clients as can be."""
        if self.block is not None:
            n = math.ceil(len(cohort) / self.block)
        elif self.together is not None:
            # Two blocks keep two actors busy; a power of two can be grouped into equal tasks.
            n = max(2, 1 << (math.ceil(len(cohort) / self.together) - 1).bit_length())
        else:
            n = max(AUTO_BLOCKS, math.ceil(len(cohort) / MOST))
        cut = np.array_split(cohort, min(n, len(cohort)))
        # The first pass has the phase's own streams, so that methods of one pass get the same minibatches in it.
        streams = [phase if i == 0 else f"{phase}, pass {i}" for i in range(len(works))]
        passes = [self._pass(work, t, at, cut) for work, at in zip(works, streams, strict=True)]
        keys = [draws.bits(self.seed, "privacy", t, draws.code(phase), clients_C) for clients_C in cut]
        return [
            Block(clients_C, np.ones(len(clients_C)), tuple(of_block[i] for of_block in passes), keys_C)
            for i, (clients_C, keys_C) in enumerate(zip(cut, keys, strict=True))
        ]

    def _pass(self, work: Work, t: int, stream: str, cut: Sequence[NDArray[np.int64]]) -> list[Minibatches]:
        """Draws the minibatches of one pass for the clients of each block."""
        rows: Iterable[NDArray[np.int64] | None] = itertools.repeat(None)
        if isinstance(work, LocalSteps):
            rows = self._rows(work, t, stream, cut)
        keys = (draws.bits(self.seed, "noise", t, draws.code(stream), clients_C) for clients_C in cut)
        return [Minibatches(rows_CKB, keys_C) for rows_CKB, keys_C in zip(rows, keys, strict=False)]

    def _rows(self, work: LocalSteps, t: int, phase: str, cut: Sequence[NDArray[np.int64]]) -> list[NDArray[np.int64]]:
        """Draws K minibatches by reshuffling: by block (C, K, B), B its largest minibatch, -1 where one is shorter."""
        clients_C = np.concatenate(cut)
        n_C = self.rows_N[clients_C]
        lengths = np.array([len(block) for block in cut])
        starts = np.cumsum(lengths) - lengths
        block_C = np.repeat(np.arange(len(cut)), lengths)
        place_C = np.arange(len(clients_C)) - starts[block_C]
        widths = np.maximum.reduceat(np.maximum(*_sizes(work, n_C)), starts)
        rows = [np.full((C, work.K, B), -1) for C, B in zip(lengths.tolist(), widths.tolist(), strict=True)]
        # Clients of all blocks that have equally many rows are drawn together.
        for n in np.unique(n_C).tolist():
            same = np.flatnonzero(n_C == n)
            for chunk in np.array_split(same, math.ceil(len(same) * n / SORTED)):
                for rows_KB, i, c in zip(
                    self._of_size(work, t, phase, clients_C[chunk], n), block_C[chunk], place_C[chunk], strict=True
                ):
                    rows[i][c, :, : rows_KB.shape[1]] = rows_KB
        return rows

    def _of_size(self, work: LocalSteps, t: int, phase: str, clients_C: NDArray[np.int64], n: int) -> NDArray[np.int64]:
        """Draws the minibatches (C, K, B) of clients that have n rows each."""
        batch, first = (int(size) for size in _sizes(work, n))
        width = max(batch, first)

        def order(epoch: int) -> NDArray[np.int64]:
            return draws.permutation(n, self.seed, "batches", t, draws.code(phase), clients_C, epoch)

        first_epoch = order(0)
        parts = [_cut(first_epoch[:, :first], first, width), _cut(first_epoch[:, first:], batch, width)]
        epochs = math.ceil((work.K - sum(part.shape[1] for part in parts)) / math.ceil(n / batch))
        parts += [_cut(order(epoch), batch, width) for epoch in range(1, epochs + 1)]
        return np.concatenate(parts, axis=1)[:, : work.K]


def _sizes(work: LocalSteps, n: NDArray[np.int64] | int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the rows of a usual and of the first minibatch, for shards of n rows."""
    batch = np.minimum(n if work.batch is None else work.batch, n)
    return batch, batch if work.first is None else np.minimum(work.first, n)


def _cut(rows_CR: NDArray[np.int64], size: int, width: int) -> NDArray[np.int64]:
    """Cuts each client's rows into minibatches of `size`: (C, minibatches, width), -1 where one is shorter."""
    C, R = rows_CR.shape
    minibatches = math.ceil(R / size)
    cut = np.full((C, minibatches * size), -1)
    cut[:, :R] = rows_CR
    return np.pad(cut.reshape(C, minibatches, size), ((0, 0), (0, 0), (0, width - size)), constant_values=-1)
