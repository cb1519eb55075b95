"""Saving: when a checkpoint is begun, and what is still being written while rounds are played."""

import contextlib
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from raysim.fleet import Fleet
from server.checkpoint import Checkpoints, Standing

# Rounds between checkpoints, at least, and the share of the time that writing them may take, if nothing is asked for.
PAUSE_ROUNDS = 10
CHECKPOINT_SHARE = 0.02


@dataclass
class _Last:
    """The last checkpoint, or the start: rounds by then, when it was, and how long it took to write."""

    rounds: int
    since_s: float
    cost_s: float = 0.0


@dataclass
class Saving:
    """Writes checkpoints in the background.

    Attributes:
        checkpoints: where they go.
        every: rounds between them; None is PAUSE_ROUNDS, or more so that they take at most CHECKPOINT_SHARE of the
            time.
        last_round: T, after which there is one in any case.
    """

    checkpoints: Checkpoints
    every: int | None
    last_round: int
    _changed: set[int] = field(default_factory=set)  # clients whose memory the last checkpoint does not have
    _last: _Last = field(default_factory=lambda: _Last(0, time.perf_counter()))
    _writing: Future[None] | None = None

    def restart(self, rounds: int) -> None:
        """Counts from a checkpoint of so many rounds, from which a run goes on."""
        self._last = _Last(rounds, time.perf_counter())

    def remembered(self, clients: Iterable[int]) -> None:
        """Notes that the memory of these clients has changed."""
        self._changed.update(clients)

    def due(self, rounds: int) -> bool:
        """Returns True if there is to be a checkpoint after so many rounds."""
        if rounds == self.last_round or self.every is not None:
            return rounds == self.last_round or rounds % (self.every or 1) == 0
        writes = self._writing is not None and not self._writing.done()
        enough = rounds - self._last.rounds >= PAUSE_ROUNDS and not writes
        return enough and CHECKPOINT_SHARE * (time.perf_counter() - self._last.since_s) >= self._last.cost_s

    def begin(self, standing: Standing, handles: Mapping[int, Any], fleet: Fleet) -> None:
        """Begins to write a checkpoint, once the one before is written.

        Args:
            standing: where the run stands, without clients' memory.
            handles: of all clients' memory, which is fetched from the fleet as far as it has changed.
            fleet: see `handles`.
        """
        self.finish()
        whole = self.checkpoints.needs_all(len(self._changed), len(handles))
        wanted = {client: handle for client, handle in handles.items() if whole or client in self._changed}
        self._changed = set()
        self._last = _Last(standing.rounds, time.perf_counter())

        def write(last: _Last) -> None:
            self.checkpoints.save(replace(standing, memory=fleet.fetch(wanted)), whole)
            last.cost_s = time.perf_counter() - last.since_s

        executor = ThreadPoolExecutor(max_workers=1)
        self._writing = executor.submit(write, self._last)
        executor.shutdown(wait=False)

    def finish(self) -> None:
        """Waits for the checkpoint that is being written. Raises what it failed with."""
        if self._writing is not None:
            writing, self._writing = self._writing, None
            writing.result()

    def abandon(self) -> None:
        """Waits for it where another exception is being raised already."""
        with contextlib.suppress(Exception):
            self.finish()
