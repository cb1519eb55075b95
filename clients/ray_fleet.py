"""The fleet of Ray actors: a pool, or actors that each host clients of their own."""

import copy
import functools
import itertools
import math
import operator
import re
import threading
import time
import uuid
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import ray
import torch
from numpy.typing import NDArray
from ray import cloudpickle
from ray.exceptions import (
    GetTimeoutError,
    ObjectLostError,
    ObjectStoreFullError,
    OutOfDiskError,
    RayActorError,
    RayError,
    RayTaskError,
)
from ray.util.metrics import Gauge
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from torch import Tensor
from torch.utils import _pytree as pytree

from clients.delivery import Delivery
from clients.engine import Engine
from clients.placement import ClientsConfig, Placement
from clients.pool import spans
from raysim.data import Sample, Shards, Split
from raysim.errors import RaysimError, ResultLost, Stopped, StoreFull, WorkerLost
from raysim.fleet import Memory, OwnMetrics
from raysim.phase import Block, Order, Partial, clients_of, pairwise_sum
from raysim.point import Point
from raysim.problems.pool import Function

# Tasks an actor of the pool has at once: the second waits at the actor, so it never idles for a round trip.
IN_FLIGHT = 2
# Of the tasks under way, those that are waited for: the oldest, since to ask Ray for one of many takes time for each.
WINDOW = 1000
# Seconds in which something comes from an object store. Where that and its disk are full, Ray tries for ever and does
# not say so.
BROUGHT_S = 600.0
# Clients whose memory is brought at a time.
TOGETHER = 1000
# Seconds that client actors may take to say whether they are at work.
ANSWER_S = 30.0
# Times that actors may be done with nothing for as long as is put up with.
HANGS = 4
# Seconds between attempts to reach an actor whose process has died: it takes calls again once it was started anew, and
# if its node has gone, Ray may take half a minute to find that out.
PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 32.0, 32.0)
# Seconds that an actor may take to start, if no more are asked for.
START_S = 600.0
# Seconds between two lines about actors that are waited for.
TELL_S = 30.0
# Tasks for each actor of the pool in a phase, at least, as far as there are blocks: fewer would leave some idle at the
# end, and each one costs milliseconds for its message and sums.
TASKS_PER_ACTOR = 2

FULL = (
    "Ray's object store is full, and so is the disk that it puts the rest on; start it with a larger "
    "--object-store-memory, or free space"
)

WAITING = Gauge("raysim_tasks_waiting", "Tasks of the phase that no client actor has yet.", ("run",))

Made = TypeVar("Made")


@dataclass(frozen=True)
class Packed:
    """A tensor on its way: Ray hands NumPy arrays on without copying, and tensors only by way of bytes."""

    array: NDArray[Any]


def own_namespace() -> str:
    """A new one: names are for people, and two runs, or one and what goes on with it, may give the same."""
    return uuid.uuid4().hex


def packed(tree: Any) -> Any:
    """The tree with its tensors packed."""
    return pytree.tree_map(lambda leaf: Packed(leaf.cpu().numpy()) if isinstance(leaf, Tensor) else leaf, tree)


def unpacked(tree: Any) -> Any:
    """The tree with its tensors unpacked. They may lie in the object store, which must not be written to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return pytree.tree_map(lambda leaf: torch.from_numpy(leaf.array) if isinstance(leaf, Packed) else leaf, tree)


@ray.remote(concurrency_groups={"evaluation": 1, "control": 1})  # type: ignore[call-overload]
class ClientActor:
    """Plays the clients it is asked to: stateless but for the engine, whose shard file is memory-mapped.

    It evaluates beside its rounds, in another thread.

    Args:
        engine: pickled, since its shards can only be opened once they are on this node.
        shards: brings them there.
        threads: of torch.
    """

    def __init__(self, engine: bytes, shards: Delivery, threads: int) -> None:
        torch.set_num_threads(threads)
        shards.arrive()
        self._engine: Engine = cloudpickle.loads(engine)
        # With a network of its own: modules are not safe to call from two threads with different weights.
        self._evaluating: Engine = replace(self._engine, problem=copy.deepcopy(self._engine.problem))
        self._at_work: set[int] = set()  # its threads that are

    @ray.method(concurrency_group="control")
    def ready(self) -> None:
        """Returns once the actor stands, whatever it is doing."""

    @ray.method(concurrency_group="control")
    def idle(self) -> bool:
        """Whether it has nothing to work on, which includes that what it is to work on has not come."""
        return not self._at_work

    @contextmanager
    def _work(self) -> Iterator[None]:
        self._at_work.add(threading.get_ident())
        try:
            yield
        finally:
            self._at_work.discard(threading.get_ident())

    def run(self, order: Order, blocks: Sequence[Block], *memories: Any) -> Any:
        """The blocks' Partial, followed by each client's memory where the phase remembers."""
        order = replace(order, message=unpacked(order.message))
        given = dict(zip(clients_of(blocks), map(unpacked, memories), strict=True)) if memories else {}
        with self._work():
            partial, kept = self._engine.run_all(order, blocks, given)
        partial = replace(partial, total=packed(partial.total))
        return (partial, *map(packed, kept)) if order.phase.remembers else partial

    @ray.method(concurrency_group="evaluation")
    def own(self, order: Order, blocks: Sequence[Block], splits: Sequence[Split], *memories: Any) -> list[OwnMetrics]:
        """Metrics of each of the blocks' clients at its own model."""
        order = replace(order, message=unpacked(order.message))
        given = dict(zip(clients_of(blocks), map(unpacked, memories), strict=True))
        with self._work():
            return [found for block in blocks for found in self._evaluating.own(order, block, given, splits)]

    @ray.method(concurrency_group="evaluation")
    def each(self, f: Function, z: Point, part: Sample, start: int, stop: int) -> NDArray[np.float64]:
        with self._work():
            values: NDArray[np.float64] = self._evaluating.each(f, unpacked(z), part, start, stop)
        return values

    @ray.method(concurrency_group="evaluation")
    def total(self, f: Function, z: Point, part: Sample, start: int, stop: int) -> Packed:
        with self._work():
            summed: Packed = packed(self._evaluating.total(f, unpacked(z), part, start, stop))
        return summed


@ray.remote(num_cpus=0)
def _all_idle(actors: Sequence[Any]) -> bool:
    return all(ray.get([actor.idle.remote() for actor in set(actors)], timeout=ANSWER_S))


def original(error: RayTaskError) -> BaseException:
    """The exception that was raised in the remote task, if it is one of ours; else Ray's own account of it."""
    cause = error.cause
    # What a task was given may be lost too, as clients' memory is with the node whose store it lay in.
    if isinstance(cause, ObjectLostError | ObjectStoreFullError | OutOfDiskError):
        return lost(cause)
    return cause if isinstance(cause, RaysimError) else error


@dataclass(eq=False)
class Task:
    """Work that has been given to an actor.

    Attributes:
        give: gives it to an actor, and returns the refs of its results.
        actor: who has it.
        refs: of the last time that it was given.
        hangs: times that its actor was ended since nothing was heard of it.
    """

    give: Callable[[Any], list[Any]]
    actor: Any
    refs: list[Any] = field(init=False)
    hangs: int = 0

    def __post_init__(self) -> None:
        self.again()

    def again(self) -> None:
        """Gives it again."""
        self.refs = self.give(self.actor)


@dataclass(frozen=True)
class RayPool:
    """Rows of a split, in tasks that the actors take turns in."""

    fleet: "RayFleet"
    part: Sample
    labels: NDArray[np.int64]

    def spread(self, rows: int) -> "RayPool":
        part = self.part.spread(rows, len(self.labels))
        return RayPool(self.fleet, part, part.labels(self.fleet.shards))

    def each(self, f: Function, z: Point) -> NDArray[np.float64]:
        return np.concatenate(self._results("each", f, z))

    def total(self, f: Function, z: Point) -> Tensor:
        total: Tensor = functools.reduce(operator.add, map(unpacked, self._results("total", f, z)))
        return total

    def _results(self, method: str, f: Function, z: Point) -> list[Any]:
        shared, actors = ray.put(packed(z)), itertools.cycle(self.fleet.actors)

        def give(span: tuple[int, int], actor: Any) -> list[Any]:
            return [getattr(actor, method).remote(f, shared, self.part, *span)]

        tasks = [Task(functools.partial(give, span), next(actors)) for span in spans(len(self.labels))]
        return [self.fleet.result(task) for task in tasks]


@dataclass(frozen=True)
class RayFleet:
    """Handles of the client actors. It can be handed to another actor.

    Attributes:
        actors: all of them.
        per_actor: with a number, client i runs on actor i // per_actor and on no other.
        shards: whose rows are evaluated on.
        timeout_s: how long no actor may be done with anything.
        retries: times that a task is given again to an actor that was started anew, after the one that had it died or
            was ended. Clients keep nothing in actors and draw nothing there: a task gives the same bits each time.
        run_name: whose it is, for people.
        source: of the files that actors need, for those on other nodes; None where there are none.
    """

    actors: Sequence[Any]
    per_actor: int | None
    shards: Shards
    timeout_s: float
    retries: int
    run_name: str
    source: Any

    @classmethod
    def start(
        cls,
        engine: Engine,
        config: ClientsConfig,
        placement: Placement,
        run: str,
        notice: Callable[[str], object] = lambda line: None,
        stop: threading.Event | None = None,
        within_s: float = START_S,
    ) -> "RayFleet":
        """Starts the actors and waits until they stand.

        Args:
            engine: which all of them run.
            config: what each of them reserves.
            placement: how many there are, and where.
            run: its name, which people see in those of the actors.
            notice: is told what is waited for.
            stop: once it is set, they are waited for no longer.
            within_s: how long they may take, which includes waiting for room on the cluster and for data.

        Raises WorkerLost where they do not stand, and Stopped.
        """
        here, namespace = ray.get_runtime_context().get_node_id(), own_namespace()
        # As long as this process lives, so does its node, and an actor that was put there is started anew there.
        alone = set(placement.nodes) <= {here}
        files = (engine.shards.folder, *engine.problem.files)
        delivery, source = Delivery(files), None
        if not alone:
            delivery, source = Delivery.of(files, here, f"{run}:data", namespace)
        # Handed over by value: Ray keeps it to start an actor anew, which it does not do with what lies in its store.
        given = (cloudpickle.dumps(engine), delivery, config.threads)
        actors = [
            ClientActor.options(  # type: ignore[attr-defined]
                name=f"{run}:client-{i}",
                namespace=namespace,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=True) if node else "DEFAULT",
                num_cpus=config.num_cpus,
                num_gpus=config.num_gpus,
                resources=config.resources,
                max_restarts=-1,
                # Tasks are given again here and not by Ray, which would keep each task, and what it was given, as long
                # as anything that came of it is kept: a client's memory comes of all its memories before.
                max_task_retries=0,
            ).remote(*given)
            for i, node in enumerate(placement.nodes or [""] * placement.actors)
        ]
        fleet = cls(actors, placement.per_actor, engine.shards, config.timeout_s, config.retries, run, source)
        try:
            fleet._await(notice, stop or threading.Event(), within_s)
        except BaseException:
            fleet.end()
            raise
        return fleet

    def end(self) -> None:
        """Ends the actors, which in a connection that outlives the run would stay."""
        for actor in self.actors:
            ray.kill(actor)
        if self.source is not None:
            ray.kill(self.source)

    def run(self, order: Order, blocks: Sequence[Block], memory: Memory) -> tuple[Partial, Memory]:
        shared = ray.put(replace(order, message=packed(order.message)))
        returns = order.phase.remembers
        handles: list[Any] = []

        def give(blocks: Sequence[Block], actor: Any) -> list[Any]:
            memories = [memory.get(client) for client in clients_of(blocks)] if returns else []
            refs = actor.run.options(num_returns=1 + len(memories)).remote(shared, blocks, *memories)
            return refs if isinstance(refs, list) else [refs]

        def arrived(task: Task) -> Partial:
            partial: Partial = self.result(task)
            handles.extend(task.refs[1:])
            return replace(partial, total=unpacked(partial.total))

        if self.per_actor is None:
            runs = self._runs(blocks)
            total = pairwise_sum(map(arrived, self._pool([functools.partial(give, run) for run in runs])))
        else:
            hosted = self._hosted(give, blocks, self.per_actor)
            total = pairwise_sum(functools.reduce(operator.add, map(arrived, block)) for block in hosted)
        return total, dict(zip(clients_of(blocks), handles, strict=True)) if returns else {}

    def own(
        self, order: Order, blocks: Sequence[Block], memory: Memory, splits: Sequence[Split]
    ) -> Sequence[OwnMetrics]:
        shared, actors = ray.put(replace(order, message=packed(order.message))), itertools.cycle(self.actors)

        def give(block: Block, actor: Any) -> list[Any]:
            return [actor.own.remote(shared, [block], splits, *map(memory.get, clients_of([block])))]

        tasks = [Task(functools.partial(give, block), next(actors)) for block in blocks]
        return [found for task in tasks for found in self.result(task)]

    def fetch(self, memory: Memory) -> Mapping[int, Any]:
        refs = list(memory.values())
        found = [one for i in range(0, len(refs), TOGETHER) for one in _get(refs[i : i + TOGETHER])]
        return dict(zip(memory, map(unpacked, found), strict=True))

    def keep(self, memories: Mapping[int, Any]) -> Memory:
        return {client: ray.put(packed(memory)) for client, memory in memories.items()}

    def pool(self, split: Split) -> RayPool:
        part = Sample(split)
        return RayPool(self, part, part.labels(self.shards))

    def beside(self, work: Callable[[], Made]) -> Callable[[], Made]:
        executor = ThreadPoolExecutor(max_workers=1)
        future = executor.submit(work)
        executor.shutdown(wait=False)
        return future.result

    def result(self, task: Task) -> Any:
        """The first of its results, once it is there; the task is given again when its actor dies or has gone.

        Raises WorkerLost where that does not help, and what the task raised.
        """
        for tries in itertools.count(1):
            try:
                return _get(self.ready([task]).refs[0])
            except RayActorError as error:
                if tries - task.hangs > self.retries:
                    raise WorkerLost(
                        f"work was lost {tries} times, the last time with its process: {_line(error)}"
                    ) from error
                self._reach(task.actor)
                task.again()
        raise AssertionError("it counts for ever")

    def _await(self, notice: Callable[[str], object], stop: threading.Event, within_s: float) -> None:
        """Waits until all actors take calls. Raises WorkerLost where one does not, and Stopped."""
        starting = [actor.ready.remote() for actor in self.actors]
        latest, tell = time.monotonic() + within_s, time.monotonic() + TELL_S
        while starting and time.monotonic() < latest:
            _, starting = ray.wait(starting, num_returns=len(starting), timeout=0.5)
            if starting and stop.is_set():
                raise Stopped("stopped while client actors were starting")
            if starting and time.monotonic() > tell:
                tell += TELL_S
                free = ray.available_resources()
                amounts = ", ".join(f"{free.get(unit, 0):g} {unit}" for unit in ("CPU", "GPU"))
                notice(
                    f"waiting for {len(starting)} of {len(self.actors)} client actors to start; the cluster has "
                    f"{amounts} free"
                )
        for actor in self.actors:
            self._reach(actor, max(1.0, latest - time.monotonic()))

    def _reach(self, actor: Any, within_s: float = START_S) -> None:
        """Waits until an actor takes calls. Raises WorkerLost where it does not."""
        for pause_s in (*PAUSES_S, None):
            try:
                ray.get(actor.ready.remote(), timeout=within_s)
            except (RayActorError, GetTimeoutError) as error:
                if getattr(error, "actor_init_failed", False):
                    raise WorkerLost(f"a client actor cannot start: {_line(error)}") from error
                if isinstance(error, GetTimeoutError):
                    raise WorkerLost(
                        "a client actor has not started in time; look at what the cluster's nodes have free, and raise "
                        "ray.wait_s for more of it"
                    ) from error
                if pause_s is None:
                    raise WorkerLost(f"a client actor that died cannot be reached: {_line(error)}") from error
                time.sleep(pause_s)
            else:
                return

    def ready(self, tasks: Sequence[Task]) -> Task:
        """One of these that is done or has failed. While none is, their actors are ended and started anew now and then.

        Raises WorkerLost where that does not help, and StoreFull where what they are to work on does not reach them.
        """
        by_ref, since = {task.refs[0]: task for task in tasks}, time.monotonic()
        look_s = min(self.timeout_s, BROUGHT_S)
        while True:
            arrived, _ = ray.wait(list(by_ref), num_returns=1, timeout=look_s)
            if not arrived and self._starved(tasks):
                # What was done in the meantime is told of a moment later than its actor is seen to be idle.
                arrived, _ = ray.wait(list(by_ref), num_returns=1, timeout=ANSWER_S)
                if not arrived:
                    raise _not_brought("what client actors are to work on", look_s)
            if arrived:
                return by_ref[arrived[0]]
            if time.monotonic() - since < self.timeout_s:
                continue
            since = time.monotonic()
            for task in tasks:
                task.hangs += 1
            if max(task.hangs for task in tasks) == HANGS:
                raise WorkerLost(
                    f"client actors were done with nothing in {self.timeout_s:g} s, {HANGS} times, and were started "
                    "anew in between; look for what blocks in the problem's code, or raise clients.timeout_s"
                )
            for actor in {task.actor for task in tasks}:
                ray.kill(actor, no_restart=False)

    def _starved(self, tasks: Sequence[Task]) -> bool:
        """Whether those that have the tasks answer, and none is at work."""
        try:
            # From another process: an actor takes what it is asked from one in order, and from here it waits for that.
            return bool(ray.get(_all_idle.remote([task.actor for task in tasks]), timeout=2 * ANSWER_S))
        except RayError:  # also of a process that could not be started, or was not in time
            return False

    def _runs(self, blocks: Sequence[Block]) -> list[Sequence[Block]]:
        """The blocks in runs of 2^k, which may be added up where they are computed; as long as actors have enough."""
        k = 0
        while math.ceil(len(blocks) / 2 ** (k + 1)) >= TASKS_PER_ACTOR * len(self.actors):
            k += 1
        return [blocks[i : i + 2**k] for i in range(0, len(blocks), 2**k)]

    def _hosted(self, give: Callable[..., list[Any]], blocks: Sequence[Block], per_actor: int) -> list[list[Task]]:
        """Each block's tasks client by client; everything is submitted at once and queues at its actor."""

        def task(one: Block) -> Task:
            return Task(functools.partial(give, [one]), self.actors[int(one.clients_C[0]) // per_actor])

        return [[task(one) for one in block.one_by_one()] for block in blocks]

    def _pool(self, calls: Sequence[Callable[[Any], list[Any]]]) -> Iterator[Task]:
        """Gives each call to the next free actor; yields the tasks in the order of `calls`, each once it is done."""
        free = deque([actor for _ in range(IN_FLIGHT) for actor in self.actors])
        waiting = deque(enumerate(calls))
        running: dict[Task, int] = {}
        done: dict[int, Task] = {}
        for turn in range(len(calls)):
            while turn not in done:
                WAITING.set(len(waiting), {"run": self.run_name})
                while free and waiting:
                    i, call = waiting.popleft()
                    running[Task(call, free.popleft())] = i
                ready = self.ready(list(itertools.islice(running, WINDOW)))
                done[running.pop(ready)] = ready
                free.append(ready.actor)
            yield done.pop(turn)
        WAITING.set(0, {"run": self.run_name})


def lost(error: RayError) -> RaysimError:
    """Ray's account of what was lost, in a line."""
    message = _line(error)
    if isinstance(error, ObjectStoreFullError | OutOfDiskError):
        return StoreFull(f"{FULL} ({message})")
    return ResultLost(message)


def _not_brought(what: str, within_s: float) -> StoreFull:
    return StoreFull(f"{what} did not come in {within_s:g} s; it seems that {FULL}")


def _line(error: RayError) -> str:
    words = " ".join(re.sub(r"\x1b\[\d+m", "", str(error)).split())  # without colours
    return f"{type(error).__name__}: {words if len(words) < 600 else f'{words[:200]} ... {words[-400:]}'}"


def _get(ref: Any) -> Any:
    """What it stands for, or they stand for, which has been computed.

    Raises what was raised there, RayActorError where its actor has died or gone, and StoreFull where it does not come.
    """
    try:
        return ray.get(ref, timeout=BROUGHT_S)
    except RayActorError:
        raise
    except GetTimeoutError as error:
        raise _not_brought("what was computed", BROUGHT_S) from error
    except RayTaskError as error:
        raise original(error) from None
    except RayError as error:
        raise lost(error) from error
