"""The Ray actor that runs an engine."""

import copy
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import ray
import torch
from numpy.typing import NDArray
from ray import cloudpickle

from clients.actors.packing import Packed, packed, unpacked
from clients.delivery import Delivery
from clients.engine import Engine
from raysim.data import Sample, Split
from raysim.exchange import Block, Order, clients_of
from raysim.fleet import ClientMetrics
from raysim.point import Point
from raysim.problems.pool import Function


@ray.remote(concurrency_groups={"evaluation": 1, "control": 1})  # type: ignore[call-overload]
class ClientActor:
    """Plays any client that it is asked to. Its only state is the engine, whose shard file is memory-mapped.

    Evaluations run in another thread than rounds.

    Args:
        engine: the engine, pickled, since its shards can only be opened once they are on this node.
        shards: the delivery that brings the shards to the node.
        threads: number of torch threads.
    """

    def __init__(self, engine: bytes, shards: Delivery, threads: int) -> None:
        torch.set_num_threads(threads)
        shards.arrive()
        self._engine: Engine = cloudpickle.loads(engine)
        # Evaluations have a network of their own: two threads must not call one module with different weights.
        self._evaluating: Engine = replace(self._engine, problem=copy.deepcopy(self._engine.problem))
        self._at_work: set[int] = set()  # identifiers of the threads that work

    @ray.method(concurrency_group="control")
    def ready(self) -> None:
        """Returns once the actor has started, whatever it is doing."""

    @ray.method(concurrency_group="control")
    def idle(self) -> bool:
        """Returns True if no thread is working, also where the inputs of a task have not arrived."""
        return not self._at_work

    @contextmanager
    def _work(self) -> Iterator[None]:
        self._at_work.add(threading.get_ident())
        try:
            yield
        finally:
            self._at_work.discard(threading.get_ident())

    def run(self, order: Order, blocks: Sequence[Block], *memories: Any) -> Any:
        """Returns the blocks' Partial, followed by each client's memory where the phase remembers."""
        order = replace(order, message=unpacked(order.message))
        memory_of = dict(zip(clients_of(blocks), map(unpacked, memories), strict=True)) if memories else {}
        with self._work():
            partial, kept = self._engine.run_all(order, blocks, memory_of)
        partial = replace(partial, total=packed(partial.total))
        return (partial, *map(packed, kept)) if order.phase.remembers else partial

    @ray.method(concurrency_group="evaluation")
    def evaluate_models(
        self, order: Order, blocks: Sequence[Block], splits: Sequence[Split], *memories: Any
    ) -> list[ClientMetrics]:
        """Returns the metrics of each of the blocks' clients at its own model."""
        order = replace(order, message=unpacked(order.message))
        memory_of = dict(zip(clients_of(blocks), map(unpacked, memories), strict=True))
        with self._work():
            return [
                metrics
                for block in blocks
                for metrics in self._evaluating.evaluate_models(order, block, memory_of, splits)
            ]

    @ray.method(concurrency_group="evaluation")
    def each(self, f: Function, z: Point, part: Sample, start: int, stop: int) -> NDArray[np.float64]:
        """Returns f's results on the rows start..stop-1 of a sample, one after another."""
        with self._work():
            values: NDArray[np.float64] = self._evaluating.each(f, unpacked(z), part, start, stop)
        return values

    @ray.method(concurrency_group="evaluation")
    def total(self, f: Function, z: Point, part: Sample, start: int, stop: int) -> Packed:
        """Returns the sum of f's results on the rows start..stop-1 of a sample."""
        with self._work():
            summed: Packed = packed(self._evaluating.total(f, unpacked(z), part, start, stop))
        return summed


@ray.remote(num_cpus=0)
def all_idle(actors: Sequence[Any], within_s: float) -> bool:
    """Returns True if none of these actors has anything to work on. Raises GetTimeoutError if one does not answer."""
    return all(ray.get([actor.idle.remote() for actor in set(actors)], timeout=within_s))
