"""The fleet of Ray actors: shared actors that play any client, or actors that each host clients of their own."""

import functools
import itertools
import math
import operator
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import ray
from ray import cloudpickle
from ray.util.metrics import Gauge
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from clients.actors.client_actor import ClientActor
from clients.actors.packing import packed, unpacked
from clients.actors.pool import PoolOnActors
from clients.actors.store import fetched
from clients.actors.tasks import START_S, Supervisor, Task
from clients.delivery import Delivery
from clients.engine import Engine, files_of
from clients.placement import ClientsConfig, Placement
from raysim.data import Sample, Shards, Split
from raysim.errors import Stopped
from raysim.exchange import Block, Order, Partial, clients_of, pairwise_sum
from raysim.fleet import ClientMetrics, Memory

# Tasks that a shared actor has at once: the second waits at the actor, which is then never idle for a round trip.
IN_FLIGHT = 2
# The number of running tasks, the oldest, that are waited for: waiting for one of many costs Ray time for each.
WINDOW = 1000
# Clients whose memory is fetched at a time.
TOGETHER = 1000
# Seconds between two notices about actors that have not started.
TELL_S = 30.0
# The fewest tasks for each shared actor in a phase, where there are enough blocks: fewer would leave some actors idle
# at the end, and each task costs milliseconds for its message and sums.
TASKS_PER_ACTOR = 2

WAITING = Gauge("raysim_tasks_waiting", "Tasks of the phase that no client actor has yet.", ("run",))

Result = TypeVar("Result")


def own_namespace() -> str:
    """Returns a new namespace: names are for people, and two runs may have the same."""
    return uuid.uuid4().hex


@dataclass(frozen=True)
class RayFleet:
    """The fleet of client actors, as their handles. It can be sent to another actor.

    Attributes:
        actors: the handles of all client actors.
        per_actor: None for shared actors; with a number, client i runs on actor i // per_actor and on no other.
        shards: the data, whose labels evaluations read here.
        timeout_s, retries: see Supervisor.
        run_name: name of the run, for people.
        source: the actor that sends files to other nodes; None where there are no other nodes.
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
        """Starts the actors and waits until they have started.

        Args:
            engine: the engine that every actor runs.
            config: the resources that each actor reserves.
            placement: the number of actors and their nodes.
            run: name of the run, with which the actors' names begin.
            notice: is called with a line about actors that have not started.
            stop: an event that ends the waiting.
            within_s: seconds that starting may take, which includes waiting for room on the cluster and for data.

        Raises WorkerLost where an actor does not start, and Stopped where `stop` is set before.
        """
        here, namespace = ray.get_runtime_context().get_node_id(), own_namespace()
        # The node lives as long as this process, so that actors on it are started anew on it and files need not travel.
        single_node = set(placement.nodes) <= {here}
        files = (engine.shards.folder, *files_of(engine.problem))
        delivery, source = Delivery(files), None
        if not single_node:
            delivery, source = Delivery.of(files, here, f"{run}:data", namespace)
        # The arguments are passed by value: Ray keeps those to start an actor anew, but not objects in its store.
        arguments = (cloudpickle.dumps(engine), delivery, config.threads)
        actors = [
            ClientActor.options(  # type: ignore[attr-defined]
                name=f"{run}:client-{i}",
                namespace=namespace,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=True) if node else "DEFAULT",
                num_cpus=config.num_cpus,
                num_gpus=config.num_gpus,
                resources=config.resources,
                max_restarts=-1,
                # Lost tasks are given again here and not by Ray, which would keep each task and its inputs as long as
                # its results are kept: a client's memory is the result of a chain of tasks back to the first round.
                max_task_retries=0,
            ).remote(*arguments)
            for i, node in enumerate(placement.nodes or [""] * placement.actors)
        ]
        fleet = cls(actors, placement.per_actor, engine.shards, config.timeout_s, config.retries, run, source)
        try:
            fleet._await_actors(notice, stop or threading.Event(), within_s)
        except BaseException:
            fleet.end()
            raise
        return fleet

    @property
    def supervisor(self) -> Supervisor:
        """The supervisor that waits for the actors' tasks."""
        return Supervisor(self.timeout_s, self.retries)

    def end(self) -> None:
        """Ends the actors, which would otherwise stay as long as the connection to Ray."""
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
            partial: Partial = self.supervisor.result(task)
            handles.extend(task.refs[1:])
            return replace(partial, total=unpacked(partial.total))

        if self.per_actor is None:
            runs = self._grouped(blocks)
            total = pairwise_sum(map(arrived, self._in_turn([functools.partial(give, run) for run in runs])))
        else:
            hosted = self._hosted(give, blocks, self.per_actor)
            total = pairwise_sum(functools.reduce(operator.add, map(arrived, block)) for block in hosted)
        return total, dict(zip(clients_of(blocks), handles, strict=True)) if returns else {}

    def evaluate_models(
        self, order: Order, blocks: Sequence[Block], memory: Memory, splits: Sequence[Split]
    ) -> Sequence[ClientMetrics]:
        shared, actors = ray.put(replace(order, message=packed(order.message))), itertools.cycle(self.actors)

        def give(block: Block, actor: Any) -> list[Any]:
            return [actor.evaluate_models.remote(shared, [block], splits, *map(memory.get, clients_of([block])))]

        tasks = [Task(functools.partial(give, block), next(actors)) for block in blocks]
        return [metrics for task in tasks for metrics in self.supervisor.result(task)]

    def fetch(self, memory: Memory) -> Mapping[int, Any]:
        refs = list(memory.values())
        memories = [one for i in range(0, len(refs), TOGETHER) for one in fetched(refs[i : i + TOGETHER])]
        return dict(zip(memory, map(unpacked, memories), strict=True))

    def keep(self, memories: Mapping[int, Any]) -> Memory:
        return {client: ray.put(packed(memory)) for client, memory in memories.items()}

    def pool(self, split: Split) -> PoolOnActors:
        return PoolOnActors(self.actors, self.supervisor, self.shards, Sample(split))

    def in_background(self, work: Callable[[], Result]) -> Callable[[], Result]:
        executor = ThreadPoolExecutor(max_workers=1)
        future = executor.submit(work)
        executor.shutdown(wait=False)
        return future.result

    def _await_actors(self, notice: Callable[[str], object], stop: threading.Event, within_s: float) -> None:
        """Waits until all actors take calls. Raises WorkerLost where one does not, and Stopped where `stop` is set."""
        starting = [actor.ready.remote() for actor in self.actors]
        latest, next_notice = time.monotonic() + within_s, time.monotonic() + TELL_S
        while starting and time.monotonic() < latest:
            _, starting = ray.wait(starting, num_returns=len(starting), timeout=0.5)
            if starting and stop.is_set():
                raise Stopped("stopped while client actors were starting")
            if starting and time.monotonic() > next_notice:
                next_notice += TELL_S
                free = ray.available_resources()
                amounts = ", ".join(f"{free.get(unit, 0):g} {unit}" for unit in ("CPU", "GPU"))
                notice(
                    f"waiting for {len(starting)} of {len(self.actors)} client actors to start; the cluster has "
                    f"{amounts} free"
                )
        for actor in self.actors:
            self.supervisor.reach(actor, max(1.0, latest - time.monotonic()))

    def _grouped(self, blocks: Sequence[Block]) -> list[Sequence[Block]]:
        """Groups blocks by 2^k, which an actor adds up itself, with the largest k that leaves enough tasks for all."""
        k = 0
        while math.ceil(len(blocks) / 2 ** (k + 1)) >= TASKS_PER_ACTOR * len(self.actors):
            k += 1
        return [blocks[i : i + 2**k] for i in range(0, len(blocks), 2**k)]

    def _hosted(self, give: Callable[..., list[Any]], blocks: Sequence[Block], per_actor: int) -> list[list[Task]]:
        """Gives the work of each block client by client, all at once: the tasks wait in the queues of their actors."""

        def task(one: Block) -> Task:
            return Task(functools.partial(give, [one]), self.actors[int(one.clients_C[0]) // per_actor])

        return [[task(one) for one in block.one_by_one()] for block in blocks]

    def _in_turn(self, calls: Sequence[Callable[[Any], list[Any]]]) -> Iterator[Task]:
        """Gives each call to the next free actor. Yields the tasks in the order of `calls`, each once it is done."""
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
                ready = self.supervisor.ready(list(itertools.islice(running, WINDOW)))
                done[running.pop(ready)] = ready
                free.append(ready.actor)
            yield done.pop(turn)
        WAITING.set(0, {"run": self.run_name})
