"""Ray: found or started, and what it has."""

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import ray
import torch

from clients.placement import Resources


def machine() -> Resources:
    """What this machine has for actors, by its own account. A container's memory limit counts."""
    free = psutil.virtual_memory().available
    with contextlib.suppress(OSError, ValueError):  # no control group, or no limit in it
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        free = min(free, limit - int(Path("/sys/fs/cgroup/memory.current").read_text()))
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Resources(cpus, torch.cuda.device_count(), free)


def starts_here(address: str | None) -> bool:
    """Whether a session would start a Ray of its own on this machine."""
    return target(address) == "local"


def target(address: str | None) -> str:
    """The cluster that a session would use; `local` is one that it would start."""
    if ray.is_initialized():
        return str(ray.get_runtime_context().gcs_address)
    return address or os.environ.get("RAY_ADDRESS") or "local"


@contextlib.contextmanager
def session(address: str | None) -> Iterator[Resources]:
    """A connection to Ray for as long as the context lasts, and what the cluster has for us.

    An existing connection of this process is used and left as it is. A cluster started here is stopped on the way out;
    one that was joined is not. To a running cluster nothing is passed that only its starter may set.
    """
    if ray.is_initialized():
        yield _cluster()
        return
    # Ray's own notice about GPUs on machines that have none, and its usage reports, are not this run's business.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    dashboard = False if starts_here(address) else None
    ray.init(address=target(address), include_dashboard=dashboard, log_to_driver=False, logging_level=logging.ERROR)
    try:
        yield _cluster()
    finally:
        ray.shutdown()


def _cluster() -> Resources:
    has = ray.cluster_resources()
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    stores = tuple(int(node["object_store_memory"]) for node in nodes if "object_store_memory" in node)
    return Resources(has.get("CPU", 0.0), has.get("GPU", 0.0), int(has.get("memory", 0)), stores)
