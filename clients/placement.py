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
    """Section `clients` of a configuration. None of it but `block` changes a number in the results.

    Attributes:
        fleet: `ray` runs client actors; `in_process` runs all clients in the server's process without Ray.
        per_actor: clients an actor hosts; 1 gives every client an actor of its own, `auto` a pool any of whose actors
            plays any client.
        actors: size of the pool; `auto` takes what the machine can hold.
        num_cpus, num_gpus: what an actor reserves in Ray, fractions allowed; with `num_gpus` clients compute on the GPU.
        threads: torch threads of an actor.
        block: most clients in one task; `auto` makes at most 32 tasks a phase. Sums are rounded per block.
    """

    model_config = STRICT

    fleet: Literal["ray", "in_process"] = "ray"
    per_actor: Count | Literal["auto"] = "auto"
    actors: Count | Literal["auto"] = "auto"
    num_cpus: Annotated[float, Field(gt=0)] = 1.0
    num_gpus: Annotated[float, Field(ge=0)] = 0.0
    threads: Count = 1
    block: Count | Literal["auto"] = "auto"

    @model_validator(mode="after")
    def _one_way_to_say_it(self) -> "ClientsConfig":
        if self.per_actor != "auto" and self.actors != "auto":
            raise ValueError("give per_actor or actors, not both: one follows from the other")
        return self


@dataclass(frozen=True)
class Resources:
    """What the machine or cluster has."""

    cpus: float
    gpus: float
    memory_bytes: int


@dataclass(frozen=True)
class Placement:
    """Attributes:
    actors: how many to start.
    per_actor: clients each of them hosts, in order of client number; None for a pool.
    """

    actors: int
    per_actor: int | None

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


def _fits(placement: Placement, config: ClientsConfig, n_clients: int, has: Resources) -> None:
    n = placement.actors
    wants = [
        ("CPU", n * config.num_cpus, has.cpus, f"{n} client actors x {config.num_cpus:g} CPU", "clients.num_cpus"),
        ("GPU", n * config.num_gpus, has.gpus, f"{n} client actors x {config.num_gpus:g} GPU", "clients.num_gpus"),
    ]
    for unit, wanted, there, sum_, key in wants:
        if wanted > there * (1 + 1e-9):
            raise PlacementError(
                f"{sum_} = {wanted:g} {unit}, but there are {there:g}: lower {key} (at most {there / n:.3g}), "
                f"or host more clients per actor (clients.per_actor: auto)"
            )
    if placement.memory_bytes > has.memory_bytes:
        fits = max(1, has.memory_bytes // ACTOR_BYTES)
        raise PlacementError(
            f"{n} client actors x {ACTOR_BYTES / 1e6:.0f} MB = {placement.memory_bytes / 1e9:.1f} GB, but "
            f"{has.memory_bytes / 1e9:.1f} GB of memory are free: set clients.per_actor to auto, or to "
            f"{math.ceil(n_clients / fits)} or more"
        )
