"""What comes from Ray's object store, and Ray's errors about it in a line each."""

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

# Seconds in which something comes from an object store. Where that and its disk are full, Ray tries for ever and does
# not say so.
BROUGHT_S = 600.0

FULL = (
    "Ray's object store is full, and so is the disk that it puts the rest on; start it with a larger "
    "--object-store-memory, or free space"
)


def fetched(ref: Any) -> Any:
    """Returns what a ref stands for, or what several stand for, which has been computed.

    Raises what was raised there, RayActorError where its actor has died or gone, and StoreFull where it does not come.
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
    """Returns the exception that was raised in the remote task, if it is one of ours; else Ray's own account of it."""
    cause = error.cause
    # What a task was given may be lost too, as clients' memory is with the node whose store it lay in.
    if isinstance(cause, ObjectLostError | ObjectStoreFullError | OutOfDiskError):
        return lost(cause)
    return cause if isinstance(cause, RaysimError) else error


def lost(error: RayError) -> RaysimError:
    """Returns Ray's account of what was lost as an error of one line."""
    message = one_line(error)
    if isinstance(error, ObjectStoreFullError | OutOfDiskError):
        return StoreFull(f"{FULL} ({message})")
    return ResultLost(message)


def not_brought(what: str, within_s: float) -> StoreFull:
    """Returns the error for something that has not come from the object store in time."""
    return StoreFull(f"{what} did not come in {within_s:g} s; it seems that {FULL}")


def one_line(error: RayError) -> str:
    """Returns the name and the message of an error of Ray's, without colours and line breaks, shortened."""
    words = " ".join(re.sub(r"\x1b\[\d+m", "", str(error)).split())
    return f"{type(error).__name__}: {words if len(words) < 600 else f'{words[:200]} ... {words[-400:]}'}"
