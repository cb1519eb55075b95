"""Objects from Ray's object store, and Ray's errors about them in a line each."""

import re
from typing import Any

import ray
from ray.exceptions import (
    GetTimeoutError,
    ObjectLostError,
    ObjectStoreFullError,
    OutOfDiskError,
    RayActorError,
    RayError,
    RayTaskError,
)

from raysim.errors import RaysimError, ResultLost, StoreFull

# Seconds in which an object comes from the object store. Where the store and its disk are full, Ray tries for ever and
# does not say so.
BROUGHT_S = 600.0

FULL = (
    "Ray's object store is full, and so is the disk that it puts the rest on; start it with a larger "
    "--object-store-memory, or free space"
)


def fetched(ref: Any) -> Any:
    """Returns the object of a ref, or the objects of several refs, whose tasks are done.

    Raises the exception of a task that failed, RayActorError where its actor has died, ResultLost where an object was
    lost, and StoreFull where it does not come in BROUGHT_S.
    """
    try:
        return ray.get(ref, timeout=BROUGHT_S)
    except RayActorError:
        raise
    except GetTimeoutError as error:
        raise not_brought("what was computed", BROUGHT_S) from error
    except RayTaskError as error:
        raise original(error) from None
    except RayError as error:
        raise lost(error) from error


def original(error: RayTaskError) -> BaseException:
    """Returns the exception of the remote task, if it is a RaysimError; otherwise Ray's own error about it."""
    cause = error.cause
    # An input of the task may be lost too: clients' memory is lost with the node whose store holds it.
    if isinstance(cause, ObjectLostError | ObjectStoreFullError | OutOfDiskError):
        return lost(cause)
    return cause if isinstance(cause, RaysimError) else error


def lost(error: RayError) -> RaysimError:
    """Returns Ray's error about a lost object as an error of one line."""
    message = one_line(error)
    if isinstance(error, ObjectStoreFullError | OutOfDiskError):
        return StoreFull(f"{FULL} ({message})")
    return ResultLost(message)


def not_brought(what: str, within_s: float) -> StoreFull:
    """Returns the error for an object that has not come from the object store in time."""
    return StoreFull(f"{what} did not come in {within_s:g} s; it seems that {FULL}")


def one_line(error: RayError) -> str:
    """Returns the name and the message of an error of Ray's, without colours and line breaks, shortened."""
    text = " ".join(re.sub(r"\x1b\[\d+m", "", str(error)).split())
    return f"{type(error).__name__}: {text if len(text) < 600 else f'{text[:200]} ... {text[-400:]}'}"
