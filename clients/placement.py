"""How many client actors, hosting how many clients each: decided from what there is, with the arithmetic shown."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import BaseModel, Field, model_validator

from raysim.errors import PlacementError
from raysim.registry import STRICT

# Resident memory of a Ray actor that has imported torch, measured; it comes before the model and its gradients.
ACTOR_BYTES = 350_000_000

Count = Annotated[int, Field(ge=1)]


class ClientsConfig(BaseModel):
    """Holds section `clients`. Of its keys only `engine` and `block` can change a number in the results.

    Attributes:
        fleet: `ray` runs client actors; `in_process` runs all clients in the server's process, without Ray.
        per_actor: how many clients an actor hosts. 1 gives every client an actor of its own; `auto` makes a pool, any
            of whose actors plays any client.
        actors: the size of the pool; `auto` is what the machine can hold.
        num_cpus, num_gpus: what an actor reserves in Ray. Fractions are allowed, of a GPU up to one. With `num_gpus`
            actors compute on the GPU.
        resources: what else an actor reserves, by the names with which nodes were started (`ray start --resources`).
        threads: how many torch threads an actor has.
        engine: `loop` computes one client after another, `vectorized` all clients of a task at once; the two agree up
            to rounding. `auto` is `vectorized`, unless the problem's network has layers for which that is no faster.
        retries: how often work is given out again whose process has died, and how often a server is started anew that
            gets no further. Each takes seconds.
        timeout_s: how many seconds may pass in which no actor completes anything, before the actors that have work are
            ended and started anew.
        block: the most clients in a block, which is the least part of a task. Uploads are summed, and rounded, per
            block. `auto` makes 32 blocks for the loop engine, or more where blocks would have over 10 clients; for the
            vectorised engine it makes 2, 4, 8, ... blocks of at most 10 clients, 100 on a GPU or without a network.
    """

    model_config = STRICT

    fleet: Literal["ray", "in_process"] = "ray"
    per_actor: Count | Literal["auto"] = "auto"
    actors: Count | Literal["auto"] = "auto"
    num_cpus: Annotated[float, Field(ge=1e-4)] = 1.0  # Ray counts in ten-thousandths
    num_gpus: Annotated[float, Field(ge=0)] = 0.0
    resources: dict[str, Annotated[float, Field(ge=1e-4)]] = {}
    threads: Count = 1
    engine: Literal["auto", "loop", "vectorized"] = "auto"
    retries: Annotated[int, Field(ge=0)] = 10
    timeout_s: Annotated[float, Field(gt=0)] = 3600.0
    block: Count | Literal["auto"] = "auto"

    @property
    def bundle(self) -> dict[str, float]:
        """What an actor reserves, by Ray's names."""
        gpus = {"GPU": self.num_gpus} if self.num_gpus else {}
        return {"CPU": self.num_cpus, **gpus, **self.resources}

    @model_validator(mode="after")
    def _can_be(self) -> "ClientsConfig":
        if self.per_actor != "auto" and self.actors != "auto":
            raise ValueError("give per_actor or actors, not both: one follows from the other")
        if self.num_gpus > 1 and self.num_gpus % 1:
            raise ValueError("num_gpus is a fraction of one GPU, or a whole number of them")
        if reserved := self.resources.keys() & {"CPU", "GPU", "memory", "object_store_memory"}:
            raise ValueError(f"resources are of other names than {min(reserved)}; see num_cpus and num_gpus")
        return self


@dataclass(frozen=True)
class Node:
    """What one machine, or one node of a cluster, has.

    Attributes:
        cpus, gpus, memory_bytes: in all.
        store_bytes: of its object store; None as long as Ray is not there.
        resources: of any other name.
        name: Ray's for it; empty as long as Ray is not there.
    """

    cpus: float
    gpus: float
    memory_bytes: int
    store_bytes: int | None = None
    resources: Mapping[str, float] = field(default_factory=dict)
    name: str = ""


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
        nodes: the name of each actor's; empty where Ray is not there yet.
    """

    actors: int
    per_actor: int | None
    nodes: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """It in a few words."""
        hosts = f"each for {self.per_actor} of the clients" if self.per_actor else "each for any client"
        shares = sorted(Counter(self.nodes).values(), reverse=True)
        return f"{self.actors}, {hosts}{_on(shares) if len(shares) > 1 else ''}"

    @property
    def memory_bytes(self) -> int:
        """Memory the idle actors want together."""
        return self.actors * ACTOR_BYTES


def place(config: ClientsConfig, n_clients: int, cohort: int, nodes: Sequence[Node]) -> Placement:
    """The placement for `n_clients` clients of which at most `cohort` compute at a time.

    Every node gets its share of the actors, by how many it has room for.

    Raises PlacementError, with the arithmetic, where they do not fit.
    """
    rooms = [_room(config, node) for node in nodes]
    if config.per_actor != "auto":
        actors, per_actor = math.ceil(n_clients / config.per_actor), config.per_actor
    elif config.actors != "auto":
        actors, per_actor = config.actors, None
    else:
        actors, per_actor = max(1, min(sum(rooms), cohort)), None
    _fits(actors, config, n_clients, nodes, rooms)
    return Placement(actors, per_actor, tuple(nodes[i].name for i in _dealt(actors, rooms) if nodes[i].name))


def _room(config: ClientsConfig, node: Node) -> int:
    """How many actors a node has room for."""

    def times(there: float, each: float) -> int:
        return math.floor(there / each * (1 + 1e-9))  # twenty tenths are two, whatever floats say

    room = [times(node.cpus, config.num_cpus), times(node.memory_bytes, ACTOR_BYTES)]
    if config.num_gpus:  # a fraction is one of a single GPU
        room.append(
            times(node.gpus, config.num_gpus) if config.num_gpus >= 1 else int(node.gpus) * times(1, config.num_gpus)
        )
    room += [times(node.resources.get(name, 0), each) for name, each in config.resources.items()]
    return min(room)


def _dealt(actors: int, rooms: Sequence[int]) -> list[int]:
    """The node of each actor, none of which gets more than there is room for, and all about the same share of it."""
    # The i-th actor of a node with room for r would fill it to i / r.
    fills = [((i + 1) / room, node) for node, room in enumerate(rooms) for i in range(min(room, actors))]
    return [node for _, node in sorted(fills)[:actors]]


def _on(shares: Sequence[int]) -> str:
    some = Counter(shares).items()
    return f", on {len(shares)} nodes ({', '.join(f'{n} with {share}' for share, n in some)})"


def fits_store(placement: Placement, sizes: Sizes, n_clients: int, cohort: int, nodes: Sequence[Node]) -> str | None:
    """What is to be known of the object store before the run, if anything.

    Raises PlacementError, with the arithmetic, where it cannot hold what a phase needs at a time.
    """
    stores_bytes = [node.store_bytes for node in nodes if node.store_bytes is not None]
    if not stores_bytes:
        return None
    # An actor of the pool may have its next sum ready before the last is added up; hosts have one for each client.
    sums = cohort if placement.per_actor else min(2 * placement.actors, cohort)
    smallest, sums = min(stores_bytes), math.ceil(sums / len(stores_bytes))
    needed = sizes.message_bytes + sums * sizes.sum_bytes
    if needed > smallest:
        raise PlacementError(
            f"a message of {sizes.message_bytes / 1e6:.1f} MB + {sums} sums of {sizes.sum_bytes / 1e6:.1f} MB = "
            f"{needed / 1e6:.1f} MB, but Ray's object store has {smallest / 1e6:.1f} MB: start Ray with a larger "
            "--object-store-memory, or lower clients.actors"
        )
    kept, there = n_clients * sizes.memory_bytes, sum(stores_bytes)
    if kept <= there - needed * len(stores_bytes):
        return None
    return (
        f"the memory of {n_clients} clients x {sizes.memory_bytes / 1e6:.2f} MB = {kept / 1e6:.0f} MB will not fit "
        f"into Ray's object store of {there / 1e6:.0f} MB, and Ray will put the rest on disk, which is slow; start it "
        "with a larger --object-store-memory"
    )


def _fits(n: int, config: ClientsConfig, n_clients: int, nodes: Sequence[Node], rooms: Sequence[int]) -> None:
    actors = f"{n} client actor{'s' if n > 1 else ''}"
    wanted = [
        ("CPU", "num_cpus", config.num_cpus, sum(node.cpus for node in nodes)),
        ("GPU", "num_gpus", config.num_gpus, sum(node.gpus for node in nodes)),
    ] + [
        (name, f"resources.{name}", each, sum(node.resources.get(name, 0) for node in nodes))
        for name, each in config.resources.items()
    ]
    for unit, key, each, there in wanted:
        if n * each > there * (1 + 1e-9):
            most = math.floor(there / n * 1e4) / 1e4  # rounded down, in Ray's own grains
            ways = [f"lower clients.{key} (at most {most:g})", *_fewer(config, n_clients, there / each)]
            raise PlacementError(
                f"{actors} x {each:g} {unit} = {n * each:g} {unit}, but there {'is' if there == 1 else 'are'} "
                f"{there:g}: {', or '.join(ways)}",
                n,
            )
    memory_bytes = sum(node.memory_bytes for node in nodes)
    if n * ACTOR_BYTES > memory_bytes:
        ways = _fewer(config, n_clients, memory_bytes / ACTOR_BYTES) or ["end other programs"]
        raise PlacementError(
            f"{actors} x {ACTOR_BYTES / 1e6:.0f} MB = {n * ACTOR_BYTES / 1e9:.1f} GB, but "
            f"{memory_bytes / 1e9:.1f} GB of memory are free: {', or '.join(ways)}",
            n,
        )
    if n > sum(rooms):  # there is enough, but not enough in one place
        ways = _fewer(config, n_clients, sum(rooms)) or ["let an actor reserve less"]
        bundle = ", ".join(f"{amount:g} {unit}" for unit, amount in config.bundle.items())
        some = ", ".join(f"{times} with room for {room}" for room, times in Counter(rooms).items())
        raise PlacementError(
            f"{actors} of {bundle} each, but the {len(nodes)} node{'s have' if len(nodes) > 1 else ' has'} room for "
            f"{sum(rooms)} ({some}): {', or '.join(ways)}",
            n,
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
