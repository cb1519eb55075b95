"""The forecast of a run: what a round will move and need, found without running it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from clients.engine import LoopEngine
from clients.placement import Node, Placement, Sizes, fits_store, place
from cluster.experiment import Experiment
from raysim import wire
from raysim.dry_run import DryRun
from raysim.exchange import Order, Partial
from raysim.phase import Phase, Uniform
from raysim.wire import Traffic


@dataclass(frozen=True)
class Exchange:
    """The traffic of one phase of a steady round.

    Attributes:
        phase: the algorithm's phase.
        clients: S, the number of its clients.
        traffic: the bytes between the server and one client.
    """

    phase: Phase[Any, Any, Any, Any]
    clients: int
    traffic: Traffic

    @property
    def bytes_down(self) -> int:
        """Bytes to all S clients."""
        return self.clients * self.traffic.to(self.phase)

    @property
    def bytes_up(self) -> int:
        """Bytes from all S clients."""
        return self.clients * self.traffic.up


def largest_cohort(experiment: Experiment) -> int:
    """Returns the largest number of clients that compute at the same time."""
    phases = experiment.algorithm.phases(0)
    return max(phase.cohort.S for phase in phases if isinstance(phase.cohort, Uniform))


def placement(experiment: Experiment, nodes: Sequence[Node]) -> Placement:
    """Returns the placement of the client actors. Raises PlacementError where the nodes have no room for them."""
    return place(experiment.config.clients, experiment.shards.n_clients, largest_cohort(experiment), nodes)


def stored(experiment: Experiment, placed: Placement, nodes: Sequence[Node]) -> str | None:
    """Returns a notice about Ray's object store, or None. Raises PlacementError where it is too small."""
    clients = len(experiment.planner.population)
    return fits_store(placed, sizes(experiment), clients, largest_cohort(experiment), nodes)


def sizes(experiment: Experiment) -> Sizes:
    """Returns the bytes that the phases of the first round move and keep, from dry runs."""
    algorithm, dry_run, most = experiment.algorithm, _dry_run(experiment), largest_cohort(experiment)
    state = algorithm.init(experiment.problem.init(experiment.config.seed).to(experiment.dtype))
    found, kept = [], 0
    for phase in algorithm.phases(0):
        message = phase.sends(state)
        reply = dry_run.reply(phase, message)
        nothing = pytree.tree_map(lambda leaf: torch.zeros_like(leaf, device="cpu"), reply.upload)
        one = Partial.of(nothing, 1.0, 0, 0)
        found.append(tuple(wire.stored_bytes(tree, most) for tree in (message, one.total)))
        kept = wire.size_bytes(reply.memory) if phase.remembers else kept
        state = phase.absorb(state, one.mean(experiment.dtype), 1)
    message_bytes, sum_bytes = map(max, zip(*found, strict=True))
    return Sizes(message_bytes, sum_bytes, kept)


def rehearse(experiment: Experiment) -> list[Exchange]:
    """Returns the traffic of a steady round, measured by playing rounds 0 and 1 with one real client per phase.

    It runs the algorithm, problem and model together for the first time, so a fault in one of them shows here.
    """
    algorithm, planner, dry_run = experiment.algorithm, experiment.planner, _dry_run(experiment)
    state = algorithm.init(experiment.problem.init(experiment.config.seed).to(experiment.dtype))
    engine = LoopEngine(experiment.problem, experiment.shards, experiment.screen, experiment.dtype)
    exchanges: list[Exchange] = []
    memory: dict[int, Any] = {}
    for t in (0, 1):
        exchanges, cohort, before = [], None, None
        for phase in algorithm.phases(t):
            cohort = planner.cohort(phase.cohort, t, phase.name, cohort)
            message = phase.sends(state)
            (one,) = planner.blocks(phase.works, t, phase.name, cohort[:1])
            partial, kept = engine.run(Order(t, phase, message), one, memory)
            memory |= dict(zip(one.clients_C.tolist(), kept, strict=True)) if phase.remembers else {}
            exchanges.append(Exchange(phase, len(cohort), dry_run.traffic(phase, message, before)))
            state, before = phase.absorb(state, partial.mean(experiment.dtype), 1), message
    return exchanges


def _dry_run(experiment: Experiment) -> DryRun:
    return DryRun(experiment.problem, experiment.shards.shape)
