"""Finds a running Ray cluster or starts one, and tells what its nodes have."""

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import psutil
import ray
import torch
from ray.autoscaler.sdk import request_resources

from clients.placement import Node, Placement
from raysim.errors import PlacementError, Stopped

# Seconds between two checks whether the missing nodes have joined.
LOOK_S = 2.0

Place = Callable[[Sequence[Node]], Placement]


def machine() -> Node:
    """Returns this machine's cores, GPUs and memory for actors. A container's memory limit counts."""
    free = psutil.virtual_memory().available
    with contextlib.suppress(OSError, ValueError):  # there is no control group, or it has no limit
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        free = min(free, limit - int(Path("/sys/fs/cgroup/memory.current").read_text()))
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Node(cpus, torch.cuda.device_count(), free)


def starts_here(address: str | None) -> bool:
    """Returns True if a session would start a Ray of its own on this machine."""
    return target(address) == "local"


def target(address: str | None) -> str:
    """Returns the address of the cluster that a session would use; `local` is one that it would start."""
    if ray.is_initialized():
        return str(ray.get_runtime_context().gcs_address)
    return address or os.environ.get("RAY_ADDRESS") or "local"


@contextlib.contextmanager
def session(address: str | None) -> Iterator[None]:
    """Connects to Ray for as long as the context lasts.

    An existing connection of this process is used and left as it is. A cluster started here is stopped on the way out;
    one that was joined is not. To a running cluster nothing is passed that only its starter may set.
    """
    if ray.is_initialized():
        yield
        return
    # Ray's notice about missing GPUs is noise here, and its usage reports are the user's choice.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    dashboard = False if starts_here(address) else None
    heard = signal.getsignal(signal.SIGTERM)
    ray.init(address=target(address), include_dashboard=dashboard, log_to_driver=False, logging_level=logging.ERROR)
    if callable(heard) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, heard)  # Ray has replaced the handler with its own
    try:
        yield
    finally:
        ray.shutdown()


def nodes() -> tuple[Node, ...]:
    """Returns the nodes of the cluster, as Ray lists them."""
    return tuple(_node(found["NodeID"], found["Resources"]) for found in ray.nodes() if found["Alive"])


def placed(
    place: Place,
    bundle: Mapping[str, float],
    wait_s: float,
    notice: Callable[[str], object],
    stop: threading.Event,
) -> Placement:
    """Waits until the cluster has room for the client actors, and returns their placement.

    Args:
        place: places the actors on the given nodes, or raises PlacementError.
        bundle: the resources that one actor reserves, for which an autoscaler is asked.
        wait_s: seconds to wait for missing nodes.
        notice: told a line about what is missing.
        stop: once it is set, the wait ends.

    Raises PlacementError where there is no room in time, and Stopped after `stop`.
    """
    begun, asked, seen = time.monotonic(), False, 0
    try:
        while True:
            there = nodes()
            try:
                return place(there)
            except PlacementError as error:
                waited_s = time.monotonic() - begun
                if waited_s >= wait_s:
                    waited = f" (waited {waited_s:.0f} s for nodes, ray.wait_s)" if wait_s else ""
                    raise PlacementError(f"{error}{waited}") from None
                if error.actors:  # repeated, since another waiting run overwrites the request
                    request_resources(bundles=[dict(bundle)] * error.actors)
                    asked = True
                if len(there) != seen:
                    notice(f"waiting for nodes, up to {wait_s:.0f} s in all ({len(there)} there): {error}")
                    seen = len(there)
            if stop.wait(LOOK_S):
                raise Stopped("stopped while nodes were awaited")
    finally:
        if asked:
            request_resources(bundles=[])  # nodes in use stay; the request is no longer needed


def _node(name: str, resources: Mapping[str, float]) -> Node:
    known = {"CPU", "GPU", "memory", "object_store_memory"}
    store = resources.get("object_store_memory")
    return Node(
        resources.get("CPU", 0.0),
        resources.get("GPU", 0.0),
        int(resources.get("memory", 0)),
        None if store is None else int(store),
        {unit: amount for unit, amount in resources.items() if unit not in known},
        name,
    )
