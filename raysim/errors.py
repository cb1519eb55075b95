"""The errors a user can meet. Each message names the key, client or file, and what to do."""

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def noted(where: str) -> Iterator[None]:
    """Adds a note that says where an exception passed, which its traceback ends with; RaysimErrors get none."""
    try:
        yield
    except RaysimError:
        raise
    except Exception as error:
        error.add_note(where)
        raise


class RaysimError(Exception):
    """Base of every error that the user can mend; the console script prints it as one line."""


class ConfigError(RaysimError):
    """A setting that cannot be accepted. `key` is its dotted path in the configuration, such as ``algorithm.eta``."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(key, message)
        self.key = key
        self.message = message

    def __str__(self) -> str:
        return f"{self.key}: {self.message}" if self.key else self.message


class DataError(RaysimError):
    """A data set, file or partition that cannot be used."""


class PlacementError(RaysimError):
    """A demand that exceeds what the machine or cluster has; the message shows the arithmetic.

    Attributes:
        actors: how many were to be placed; 0 where more machines would not help.
    """

    def __init__(self, message: str, actors: int = 0) -> None:
        super().__init__(message)
        self.actors = actors


class ClientError(RaysimError):
    """An exception in (or a non-finite result of) one client's computation; the run stops.

    Attributes:
        client, round, phase: where it happened.
        trace: the traceback of the user's code, or the empty string.
    """

    def __init__(self, client: int, round: int, phase: str, cause: str, trace: str = "") -> None:
        super().__init__(client, round, phase, cause, trace)
        self.client = client
        self.round = round
        self.phase = phase
        self.cause = cause
        self.trace = trace

    def __str__(self) -> str:
        head = f"client {self.client}, round {self.round}, phase {self.phase!r}: {self.cause}"
        return f"{head}\n{self.trace}".rstrip()


class OutputError(RaysimError):
    """A file that cannot be written; an earlier file in its place is unchanged."""


class Diverged(RaysimError):
    """The server's own step has led to a point that is not finite."""


class NotEnoughDevices(RaysimError):
    """Too few devices were eligible for a phase, for longer than the server waits. The message counts the reasons."""


class RoundsFailed(RaysimError):
    """Too many rounds in a row brought too few results. The message counts what became of the invited devices."""


class CheckpointError(RaysimError):
    """A checkpoint that cannot be written, or from which a run cannot go on."""


class WorkerLost(RaysimError):
    """A process that computes died, or did not answer, more often than its work is given again."""


class ResultLost(RaysimError):
    """Results were lost with the machine that held them: the run can go on from a checkpoint."""


class StoreFull(RaysimError):
    """Ray's object store and the disk that it spills to are full, or nothing comes from the store any more."""


class JobError(RaysimError):
    """A job that cannot be sent to a cluster, or whose job server cannot be reached or knows of no such job."""


class Stopped(RaysimError):
    """A run was asked to stop and did, after a whole round. The message says how to go on."""
