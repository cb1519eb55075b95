"""The placement of client actors: their number, clients and nodes, from the resources that there are.

Errors show the arithmetic.
"""

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
        """The resources that an actor reserves, by Ray's names."""
        gpus = {"GPU": self.num_gpus} if self.num_gpus else {}
        return {"CPU": self.num_cpus, **gpus, **self.resources}

    @model_validator(mode="after")
    def _require_possible(self) -> "ClientsConfig":
        if self.per_actor != "auto" and self.actors != "auto":
            raise ValueError("give per_actor or actors, not both: one follows from the other")
        if self.num_gpus > 1 and self.num_gpus % 1:
            raise ValueError("num_gpus is a fraction of one GPU, or a whole number of them")
        if reserved := self.resources.keys() & {"CPU", "GPU", "memory", "object_store_memory"}:
            raise ValueError(f"resources are of other names than {min(reserved)}; see num_cpus and num_gpus")
        return self


@dataclass(frozen=True)
class Node:
    """A machine, or a node of a cluster, and its resources.

    Attributes:
        cpus, gpus, memory_bytes: its processors, GPUs and memory.
        store_bytes: size of its object store; None before Ray is started.
        resources: resources of other names.
        name: Ray's identifier of the node; empty before Ray is started.
    """

    cpus: float
    gpus: float
    memory_bytes: int
    store_bytes: int | None = None
    resources: Mapping[str, float] = field(default_factory=dict)
    name: str = ""


@dataclass(frozen=True)
class Sizes:
    """The sizes of the objects in Ray's object store.

    Attributes:
        message_bytes: the largest message to the clients among an algorithm's phases.
        sum_bytes: the largest sum of uploads from an actor.
        memory_bytes: the memory that one client keeps from round to round.
    """

    message_bytes: int
    sum_bytes: int
    memory_bytes: int


@dataclass(frozen=True)
class Placement:
    """The placement of clients on actors, and of actors on nodes.

    Attributes:
        actors: the number of actors to start.
        per_actor: clients that each actor hosts, in order of client number; None for a pool.
        nodes: the name of each actor's node; empty before Ray is started.
    """

    actors: int
    per_actor: int | None
    nodes: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """A description in a few words."""
        hosts = f"each for {self.per_actor} of the clients" if self.per_actor else "each for any client"
        shares = sorted(Counter(self.nodes).values(), reverse=True)
        return f"{self.actors}, {hosts}{_spread(shares) if len(shares) > 1 else ''}"

    @property
    def memory_bytes(self) -> int:
        """The memory that all actors need together while they are idle."""
        return self.actors * ACTOR_BYTES


def place(config: ClientsConfig, n_clients: int, cohort: int, nodes: Sequence[Node]) -> Placement:
    """Returns the placement for `n_clients` clients of which at most `cohort` compute at a time.

    Every node gets a share of the actors in proportion to how many it has room for.

    Raises PlacementError, with the arithmetic, where the actors do not fit.
    """
    rooms = [_room(config, node) for node in nodes]
    if config.per_actor != "auto":
        actors, per_actor = math.ceil(n_clients / config.per_actor), config.per_actor
    elif config.actors != "auto":
        actors, per_actor = config.actors, None
    else:
        actors, per_actor = max(1, min(sum(rooms), cohort)), None
    _require_room(actors, config, n_clients, nodes, rooms)
    return Placement(actors, per_actor, tuple(nodes[i].name for i in _nodes_of_actors(actors, rooms) if nodes[i].name))


def _room(config: ClientsConfig, node: Node) -> int:
    """Returns the number of actors that a node has room for."""

    def times(available: float, each: float) -> int:
        return math.floor(available / each * (1 + 1e-9))  # twenty tenths are two, also after rounding errors

    room = [times(node.cpus, config.num_cpus), times(node.memory_bytes, ACTOR_BYTES)]
    if config.num_gpus:  # a fraction must fit on a single GPU
        room.append(
            times(node.gpus, config.num_gpus) if config.num_gpus >= 1 else int(node.gpus) * times(1, config.num_gpus)
        )
    room += [times(node.resources.get(name, 0), each) for name, each in config.resources.items()]
    return min(room)


def _nodes_of_actors(actors: int, rooms: Sequence[int]) -> list[int]:
    """Returns the node of each actor, so that all nodes are filled to about the same share of their room."""
    # The i-th actor of a node with room for r would fill it to i / r.
    fills = [((i + 1) / room, node) for node, room in enumerate(rooms) for i in range(min(room, actors))]
    return [node for _, node in sorted(fills)[:actors]]


def _spread(shares: Sequence[int]) -> str:
    nodes_by_share = Counter(shares).items()
    return f", on {len(shares)} nodes ({', '.join(f'{n} with {share}' for share, n in nodes_by_share)})"


def fits_store(placement: Placement, sizes: Sizes, n_clients: int, cohort: int, nodes: Sequence[Node]) -> str | None:
    """Returns a warning where clients' memory will not fit into the object store; otherwise None.

    Raises PlacementError, with the arithmetic, where the store cannot hold a phase's message and sums.
    """
    stores_bytes = [node.store_bytes for node in nodes if node.store_bytes is not None]
    if not stores_bytes:
        return None
    # An actor of the pool may have its next sum ready before the last is added up; hosting actors have one a client.
    sums = cohort if placement.per_actor else min(2 * placement.actors, cohort)
    smallest, sums = min(stores_bytes), math.ceil(sums / len(stores_bytes))
    needed = sizes.message_bytes + sums * sizes.sum_bytes
    if needed > smallest:
        raise PlacementError(
            f"a message of {sizes.message_bytes / 1e6:.1f} MB + {sums} sums of {sizes.sum_bytes / 1e6:.1f} MB = "
            f"{needed / 1e6:.1f} MB, but Ray's object store has {smallest / 1e6:.1f} MB: start Ray with a larger "
            "--object-store-memory, or lower clients.actors"
        )
    kept, store = n_clients * sizes.memory_bytes, sum(stores_bytes)
    if kept <= store - needed * len(stores_bytes):
        return None
    return (
        f"the memory of {n_clients} clients x {sizes.memory_bytes / 1e6:.2f} MB = {kept / 1e6:.0f} MB will not fit "
        f"into Ray's object store of {store / 1e6:.0f} MB, and Ray will put the rest on disk, which is slow; start it "
        "with a larger --object-store-memory"
    )


def _require_room(n: int, config: ClientsConfig, n_clients: int, nodes: Sequence[Node], rooms: Sequence[int]) -> None:
    actors = f"{n} client actor{'s' if n > 1 else ''}"
    wanted = [
        ("CPU", "num_cpus", config.num_cpus, sum(node.cpus for node in nodes)),
        ("GPU", "num_gpus", config.num_gpus, sum(node.gpus for node in nodes)),
    ] + [
        (name, f"resources.{name}", each, sum(node.resources.get(name, 0) for node in nodes))
        for name, each in config.resources.items()
    ]
    for unit, key, each, available in wanted:
        if n * each > available * (1 + 1e-9):
            most = math.floor(available / n * 1e4) / 1e4  # rounded down to the ten-thousandths that Ray counts in
            ways = [f"lower clients.{key} (at most {most:g})", *_fewer(config, n_clients, available / each)]
            raise PlacementError(
                f"{actors} x {each:g} {unit} = {n * each:g} {unit}, but there {'is' if available == 1 else 'are'} "
                f"{available:g}: {', or '.join(ways)}",
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
    if n > sum(rooms):  # the cluster has enough, but not on single nodes
        ways = _fewer(config, n_clients, sum(rooms)) or ["let an actor reserve less"]
        bundle = ", ".join(f"{amount:g} {unit}" for unit, amount in config.bundle.items())
        by_room = ", ".join(f"{times} with room for {room}" for room, times in Counter(rooms).items())
        raise PlacementError(
            f"{actors} of {bundle} each, but the {len(nodes)} node{'s have' if len(nodes) > 1 else ' has'} room for "
            f"{sum(rooms)} ({by_room}): {', or '.join(ways)}",
            n,
        )


def _fewer(config: ClientsConfig, n_clients: int, room: float) -> list[str]:
    """Returns the settings that start no more actors than there is room for, as ends of an error message."""
    fit = math.floor(room * (1 + 1e-9))
    if not fit:
        return []
    if config.actors != "auto":
        return [f"set clients.actors to {fit} or fewer"]
    if config.per_actor != "auto":
        return [f"set clients.per_actor to auto, or to {math.ceil(n_clients / fit)} or more"]
    return []
