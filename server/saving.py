"""The saving of checkpoints: when one is begun, and the one that is written while rounds are played."""

import contextlib
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from raysim.fleet import Fleet
from server.checkpoint import Checkpoints, Standing

# The fewest rounds between checkpoints, and the largest share of time for writing them, where the job does not say.
PAUSE_ROUNDS = 10
CHECKPOINT_SHARE = 0.02


@dataclass
class _Last:
    """The last checkpoint, or the start of the run.

    Attributes:
        rounds: rounds that were done by then.
        since_s: time when it was begun, by the machine's clock.
        cost_s: seconds that it took to write.
    """

    rounds: int
    since_s: float
    cost_s: float = 0.0


@dataclass
class Saving:
    """Writes checkpoints in the background.

    Attributes:
        checkpoints: the checkpoints of the run.
        every: rounds between checkpoints; None is PAUSE_ROUNDS, or more so that writing takes at most CHECKPOINT_SHARE
            of the time.
        last_round: T, after which there is a checkpoint in any case.
    """

    checkpoints: Checkpoints
    every: int | None
    last_round: int
    _changed: set[int] = field(default_factory=set)  # clients whose memory has changed since the last checkpoint
    _last: _Last = field(default_factory=lambda: _Last(0, time.perf_counter()))
    _writing: Future[None] | None = None

    def restart(self, rounds: int) -> None:
        """Starts counting at the checkpoint of so many rounds from which a run goes on."""
        self._last = _Last(rounds, time.perf_counter())

    def remembered(self, clients: Iterable[int]) -> None:
        """Notes that the memory of these clients has changed."""
        self._changed.update(clients)

    def due(self, rounds: int) -> bool:
        """Returns True if a checkpoint is due after so many rounds."""
        if rounds == self.last_round or self.every is not None:
            return rounds == self.last_round or rounds % (self.every or 1) == 0
        writes = self._writing is not None and not self._writing.done()
        enough = rounds - self._last.rounds >= PAUSE_ROUNDS and not writes
        return enough and CHECKPOINT_SHARE * (time.perf_counter() - self._last.since_s) >= self._last.cost_s

    def begin(self, standing: Standing, handles: Mapping[int, Any], fleet: Fleet) -> None:
        """Waits for the checkpoint before, and begins to write a new one.

        Args:
            standing: the run's standing, without clients' memory.
            handles: handles of all clients' memory.
            fleet: the fleet that changed memory is fetched from.
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
        """Waits for the checkpoint that is being written. Raises the error of one that failed."""
        if self._writing is not None:
            writing, self._writing = self._writing, None
            writing.result()

    def abandon(self) -> None:
        """Waits for the checkpoint that is being written, and drops its errors, where another is being raised."""
        with contextlib.suppress(Exception):
            self.finish()
