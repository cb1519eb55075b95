"""The plan of a phase: who takes part and on which rows. All chance of the phase is drawn here, before any work.

Legend: C clients of a block, K local steps, B minibatch, N all clients.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from raysim import draws
from raysim.errors import ConfigError, DataError
from raysim.phase import Block, Cohort, LocalSteps, Same, Uniform, Work

# More tasks than this in a phase balance no better and cost their calls.
AUTO_BLOCKS = 32


@dataclass(frozen=True)
class Planner:
    """Draws cohorts and batches from counters alone.

    Attributes:
        rows_N: rows of each client's shard; clients without any are never drawn.
        seed: of the experiment.
        block: most clients in a block; None makes AUTO_BLOCKS blocks, or one per client if those are fewer: however
            many actors there are, since sums are rounded per block.
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
        per_epoch = -(-n // work.batch)
        epochs, steps = np.divmod(work.K, per_epoch)
        drawn: NDArray[np.int64] = epochs * n + np.minimum(steps * work.batch, n)
        return drawn

    def blocks(self, work: Work, t: int, phase: str, cohort: NDArray[np.int64]) -> list[Block]:
        """The cohort's work, cut into blocks as equal as can be."""
        if self.block is not None:
            n = math.ceil(len(cohort) / self.block)
        elif self.together is not None:
            # Two keep two actors busy; powers of two make equal tasks of several.
            n = max(2, 1 << (math.ceil(len(cohort) / self.together) - 1).bit_length())
        else:
            n = AUTO_BLOCKS
        cut = np.array_split(cohort, min(n, len(cohort)))
        return [self._block(work, t, phase, clients_C) for clients_C in cut]

    def _block(self, work: Work, t: int, phase: str, clients_C: NDArray[np.int64]) -> Block:
        rows_CKB = None
        if isinstance(work, LocalSteps):
            rows_CKB = np.stack([self._batches(work, t, phase, client) for client in clients_C.tolist()])
        return Block(clients_C, np.ones(len(clients_C)), rows_CKB)

    def _batches(self, work: LocalSteps, t: int, phase: str, client: int) -> NDArray[np.int64]:
        """Rows of K minibatches by reshuffling, shape (K, B), -1 where a batch is short."""
        n = int(self.rows_N[client])
        per_epoch = math.ceil(n / work.batch)
        epochs = []
        for epoch in range(math.ceil(work.K / per_epoch)):
            rows = np.full(per_epoch * work.batch, -1, dtype=np.int64)
            rows[:n] = draws.permutation(n, self.seed, "batches", t, draws.code(phase), client, epoch)
            epochs.append(rows.reshape(per_epoch, work.batch))
        return np.concatenate(epochs)[: work.K]
