"""How many client actors, hosting how many clients each: decided from what there is, with the arithmetic shown."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, Field, model_validator

from raysim.errors import PlacementError
from raysim.registry import STRICT

# Resident memory of a Ray actor that has imported torch, measured; it comes before the model and its gradients.
ACTOR_BYTES = 350_000_000

Count = Annotated[int, Field(ge=1)]


class ClientsConfig(BaseModel):
    """Section `clients` of a configuration. None of it but `engine` and `block` changes a number in the results.

    Attributes:
        fleet: `ray` runs client actors; `in_process` runs all clients in the server's process without Ray.
        per_actor: clients an actor hosts; 1 gives every client an actor of its own, `auto` a pool any of whose
            actors plays any client.
        actors: size of the pool; `auto` takes what the machine can hold.
        num_cpus, num_gpus: what an actor reserves in Ray, fractions allowed; with `num_gpus` they
            compute on the GPU.
        threads: torch threads of an actor.
        engine: `loop` computes one client after another, `vectorized` all clients of a task at once; they agree up to
            rounding. `auto` is `vectorized`, unless the problem's network has layers for which that is no faster.
        retries: times that work is given again whose process has died, and that a server is started anew which gets no
            further; each takes seconds.
        timeout_s: how long no actor may be done with anything before those that have work are ended and started anew.
        block: most clients in a block, the least part of a task; `auto` makes 32 blocks for the loop engine, and for
            the vectorised one 2, 4, 8, ... of at most 10 clients, 100 on a GPU or without a network. Sums are rounded
            per block.
    """

    model_config = STRICT

    fleet: Literal["ray", "in_process"] = "ray"
    per_actor: Count | Literal["auto"] = "auto"
    actors: Count | Literal["auto"] = "auto"
    num_cpus: Annotated[float, Field(ge=1e-4)] = 1.0  # Ray counts in ten-thousandths
    num_gpus: Annotated[float, Field(ge=0)] = 0.0
    threads: Count = 1
    engine: Literal["auto", "loop", "vectorized"] = "auto"
    retries: Annotated[int, Field(ge=0)] = 10
    timeout_s: Annotated[float, Field(gt=0)] = 3600.0
    block: Count | Literal["auto"] = "auto"

    @model_validator(mode="after")
    def _one_way_to_say_it(self) -> "ClientsConfig":
        if self.per_actor != "auto" and self.actors != "auto":
            raise ValueError("give per_actor or actors, not both: one follows from the other")
        return self


@dataclass(frozen=True)
class Resources:
    """What the machine or cluster has.

    Attributes:
        cpus, gpus, memory_bytes: of all nodes together.
        stores_bytes: of each node's object store; empty as long as Ray is not there.
    """

    cpus: float
    gpus: float
    memory_bytes: int
    stores_bytes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Sizes:
    """What lies in Ray's object store.

    Attributes:
        message_bytes: to the clients, the largest of an algorithm's phases.
        sum_bytes: of uploads, from an actor, the largest too.
        memory_bytes: that one client keeps from round to round.
    """

    message_bytes: int
    sum_bytes: int
    memory_bytes: int


@dataclass(frozen=True)
class Placement:
    """Where clients will run.

    Attributes:
        actors: how many to start.
        per_actor: clients each of them hosts, in order of client number; None for a pool.
    """

    actors: int
    per_actor: int | None

    @property
    def words(self) -> str:
        """It in a few words."""
        hosts = f"each for {self.per_actor} of the clients" if self.per_actor else "each for any client"
        return f"{self.actors}, {hosts}"

    @property
    def memory_bytes(self) -> int:
        """Memory the idle actors want together."""
        return self.actors * ACTOR_BYTES


def place(config: ClientsConfig, n_clients: int, cohort: int, has: Resources) -> Placement:
    """The placement for `n_clients` clients of which at most `cohort` compute at a time.

    Raises PlacementError, with the arithmetic, where it does not fit.
    """
    if config.per_actor != "auto":
        placement = Placement(math.ceil(n_clients / config.per_actor), config.per_actor)
    elif config.actors != "auto":
        placement = Placement(config.actors, None)
    else:
        room = [has.cpus / config.num_cpus, has.memory_bytes / ACTOR_BYTES, cohort]
        if config.num_gpus:
            room.append(has.gpus / config.num_gpus)
        placement = Placement(max(1, math.floor(min(room))), None)
    _fits(placement, config, n_clients, has)
    return placement


def fits_store(placement: Placement, sizes: Sizes, n_clients: int, cohort: int, has: Resources) -> str | None:
    """What is to be known of the object store before the run, if anything.

    Raises PlacementError, with the arithmetic, where it cannot hold what a phase needs at a time.
    """
    if not has.stores_bytes:
        return None
    # An actor of the pool may have its next sum ready before the last is added up; hosts have one for each client.
    sums = cohort if placement.per_actor else min(2 * placement.actors, cohort)
    smallest, sums = min(has.stores_bytes), math.ceil(sums / len(has.stores_bytes))
    needed = sizes.message_bytes + sums * sizes.sum_bytes
    if needed > smallest:
        raise PlacementError(
            f"a message of {sizes.message_bytes / 1e6:.1f} MB + {sums} sums of {sizes.sum_bytes / 1e6:.1f} MB = "
            f"{needed / 1e6:.1f} MB, but Ray's object store has {smallest / 1e6:.1f} MB: start Ray with a larger "
            "--object-store-memory, or lower clients.actors"
        )
    kept, there = n_clients * sizes.memory_bytes, sum(has.stores_bytes)
    if kept <= there - needed * len(has.stores_bytes):
        return None
    return (
        f"the memory of {n_clients} clients x {sizes.memory_bytes / 1e6:.2f} MB = {kept / 1e6:.0f} MB will not fit "
        f"into Ray's object store of {there / 1e6:.0f} MB, and Ray will put the rest on disk, which is slow; start it "
        "with a larger --object-store-memory"
    )


def _fits(placement: Placement, config: ClientsConfig, n_clients: int, has: Resources) -> None:
    n = placement.actors
    actors = f"{n} client actor{'s' if n > 1 else ''}"
    for unit, each, there in (("CPU", config.num_cpus, has.cpus), ("GPU", config.num_gpus, has.gpus)):
        if n * each > there * (1 + 1e-9):
            most = math.floor(there / n * 1e4) / 1e4  # rounded down, in Ray's own grains
            ways = [f"lower clients.num_{unit.lower()}s (at most {most:g})", *_fewer(config, n_clients, there / each)]
            raise PlacementError(
                f"{actors} x {each:g} {unit} = {n * each:g} {unit}, but there {'is' if there == 1 else 'are'} "
                f"{there:g}: {', or '.join(ways)}"
            )
    if placement.memory_bytes > has.memory_bytes:
        ways = _fewer(config, n_clients, has.memory_bytes / ACTOR_BYTES) or ["end other programs"]
        raise PlacementError(
            f"{actors} x {ACTOR_BYTES / 1e6:.0f} MB = {placement.memory_bytes / 1e9:.1f} GB, but "
            f"{has.memory_bytes / 1e9:.1f} GB of memory are free: {', or '.join(ways)}"
        )


def _fewer(config: ClientsConfig, n_clients: int, room: float) -> list[str]:
    """What would start no more actors than there is room for."""
    fit = math.floor(room * (1 + 1e-9))
    if not fit:
        return []
    if config.actors != "auto":
        return [f"set clients.actors to {fit} or fewer"]
    if config.per_actor != "auto":
        return [f"set clients.per_actor to auto, or to {math.ceil(n_clients / fit)} or more"]
    return []
