"""The plan of a phase: who takes part and on which rows. All chance of the phase is drawn here, before any work.

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

# Blocks of a phase whose clients are computed one after another, at least, and clients of one of them at most: some
# hundred actors are to have work where thousands of clients are sampled.
AUTO_BLOCKS, MOST = 32, 10
# Numbers that are sorted at a time.
SORTED = 100_000


@dataclass(frozen=True)
class Planner:
    """Draws cohorts and batches from counters alone.

    Attributes:
        rows_N: rows of each client's shard; clients without any are never drawn.
        seed: of the experiment.
        block: most clients in a block; None makes AUTO_BLOCKS blocks, or as many more as it takes for none to have more
            than MOST clients, or one per client: however many actors there are, since sums are rounded per block.
        together: clients that are best computed together; with it, None makes 2, 4, 8, ... blocks of at most so many.
    """

    rows_N: NDArray[np.int64]
    seed: int
    block: int | None = None
    together: int | None = None

    @cached_property
    def population(self) -> NDArray[np.int64]:
        """Clients that have data."""
        found = np.flatnonzero(self.rows_N > 0)
        if not len(found):
            raise DataError("every client has 0 rows; there is nothing to train on")
        return found

    def check(self, rule: Cohort) -> None:
        """Raises ConfigError if a cohort cannot be drawn."""
        n, has_rows = len(self.rows_N), len(self.population)
        if isinstance(rule, Uniform) and has_rows < rule.S:
            empty = f" ({n - has_rows} more have no rows)" if n > has_rows else ""
            raise ConfigError("algorithm.S", f"cannot sample {rule.S} clients of {has_rows}{empty}; lower algorithm.S")

    def cohort(self, rule: Cohort, t: int, phase: str, previous: NDArray[np.int64] | None) -> NDArray[np.int64]:
        """Client numbers of the phase's cohort, ascending; `previous` is the cohort of the round's phase before."""
        if isinstance(rule, Same):
            assert previous is not None
            return previous
        return draws.sample(self.population, rule.S, self.seed, "cohort", t, draws.code(phase))

    def samples(self, work: Work, clients_C: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows that each client's steps pass over, repeats counted, shape (C,)."""
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
        """Rows of the smallest minibatch of each client of the population, where whole shards are cut into them too."""
        n = self.rows_N[self.population]
        if not isinstance(work, LocalSteps):
            batch = n if work.batch is None else np.minimum(work.batch, n)
            return batch - (-n % batch)
        batch, first = _sizes(work, n)
        begun = 1 - -(n - first) // batch  # steps of the first epoch, in which what follows the first is cut anew
        least = first if work.K == 1 else np.minimum(first, batch)
        for steps, rows in ((begun, n - first), (begun - -n // batch, n)):
            least = np.where((steps <= work.K) & (rows > 0), np.minimum(least, batch - (-rows % batch)), least)
        return least

    def blocks(self, works: Sequence[Work], t: int, phase: str, cohort: NDArray[np.int64]) -> list[Block]:
        """The cohort's work in the passes of a phase, cut into blocks as equal as can be."""
        if self.block is not None:
            n = math.ceil(len(cohort) / self.block)
        elif self.together is not None:
            # Two keep two actors busy; powers of two make equal tasks of several.
            n = max(2, 1 << (math.ceil(len(cohort) / self.together) - 1).bit_length())
        else:
            n = max(AUTO_BLOCKS, math.ceil(len(cohort) / MOST))
        cut = np.array_split(cohort, min(n, len(cohort)))
        # The first pass has the phase's own streams: methods of one pass meet the same minibatches in it.
        streams = [phase if i == 0 else f"{phase}, pass {i}" for i in range(len(works))]
        passes = [self._pass(work, t, at, cut) for work, at in zip(works, streams, strict=True)]
        keys = [draws.bits(self.seed, "privacy", t, draws.code(phase), clients_C) for clients_C in cut]
        return [
            Block(clients_C, np.ones(len(clients_C)), tuple(of_block[i] for of_block in passes), keys_C)
            for i, (clients_C, keys_C) in enumerate(zip(cut, keys, strict=True))
        ]

    def _pass(self, work: Work, t: int, stream: str, cut: Sequence[NDArray[np.int64]]) -> list[Minibatches]:
        """Draws a pass of each block's clients."""
        rows: Iterable[NDArray[np.int64] | None] = itertools.repeat(None)
        if isinstance(work, LocalSteps):
            rows = self._rows(work, t, stream, cut)
        keys = (draws.bits(self.seed, "noise", t, draws.code(stream), clients_C) for clients_C in cut)
        return [Minibatches(rows_CKB, keys_C) for rows_CKB, keys_C in zip(rows, keys, strict=False)]

    def _rows(self, work: LocalSteps, t: int, phase: str, cut: Sequence[NDArray[np.int64]]) -> list[NDArray[np.int64]]:
        """By block, rows of K minibatches by reshuffling, shape (C, K, B) with its largest B, -1 where one is short."""
        clients_C = np.concatenate(cut)
        n_C = self.rows_N[clients_C]
        lengths = np.array([len(block) for block in cut])
        starts = np.cumsum(lengths) - lengths
        block_C = np.repeat(np.arange(len(cut)), lengths)
        place_C = np.arange(len(clients_C)) - starts[block_C]
        widths = np.maximum.reduceat(np.maximum(*_sizes(work, n_C)), starts)
        made = [np.full((C, work.K, B), -1) for C, B in zip(lengths.tolist(), widths.tolist(), strict=True)]
        # All clients with equally many rows, of whatever block, at a time.
        for n in np.unique(n_C).tolist():
            same = np.flatnonzero(n_C == n)
            for some in np.array_split(same, math.ceil(len(same) * n / SORTED)):
                for rows_KB, i, c in zip(
                    self._of_size(work, t, phase, clients_C[some], n), block_C[some], place_C[some], strict=True
                ):
                    made[i][c, :, : rows_KB.shape[1]] = rows_KB
        return made

    def _of_size(self, work: LocalSteps, t: int, phase: str, clients_C: NDArray[np.int64], n: int) -> NDArray[np.int64]:
        """The minibatches of clients that have n rows each."""
        batch, first = (int(size) for size in _sizes(work, n))
        width = max(batch, first)

        def order(epoch: int) -> NDArray[np.int64]:
            return draws.permutation(n, self.seed, "batches", t, draws.code(phase), clients_C, epoch)

        begun = order(0)
        parts = [_cut(begun[:, :first], first, width), _cut(begun[:, first:], batch, width)]
        epochs = math.ceil((work.K - sum(part.shape[1] for part in parts)) / math.ceil(n / batch))
        parts += [_cut(order(epoch), batch, width) for epoch in range(1, epochs + 1)]
        return np.concatenate(parts, axis=1)[:, : work.K]


def _sizes(work: LocalSteps, n: NDArray[np.int64] | int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of a usual and of the first minibatch of shards of n rows."""
    batch = np.minimum(n if work.batch is None else work.batch, n)
    return batch, batch if work.first is None else np.minimum(work.first, n)


def _cut(rows_CR: NDArray[np.int64], size: int, width: int) -> NDArray[np.int64]:
    """Each client's rows in minibatches of `size`, shape (C, minibatches, width), -1 where one is shorter."""
    C, R = rows_CR.shape
    minibatches = math.ceil(R / size)
    cut = np.full((C, minibatches * size), -1)
    cut[:, :R] = rows_CR
    return np.pad(cut.reshape(C, minibatches, size), ((0, 0), (0, 0), (0, width - size)), constant_values=-1)
