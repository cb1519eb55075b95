"""A configuration made real: data, problem, algorithm and plan, everything that can be refused before Ray starts."""

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import platformdirs
import torch

from clients.engine import LoopEngine
from clients.placement import Placement, Resources, place
from cluster.config import Choice, Config
from raysim import wire
from raysim.algorithms import ALGORITHMS
from raysim.data import PARTITIONERS, SOURCES, Shards, build
from raysim.errors import ConfigError
from raysim.models import MODELS, NetworkFactory
from raysim.phase import Algorithm, Order, Uniform
from raysim.problems import PROBLEMS, DataSpec, Problem
from raysim.registry import Registry
from server.plan import Planner
from server.rounds import Job


@dataclass(frozen=True)
class Traffic:
    """Bytes one phase of a round moves, all clients together."""

    phase: str
    clients: int
    bytes_down: int
    bytes_up: int


@dataclass(frozen=True)
class Experiment:
    """Attributes:
    config: as given.
    shards: the clients' data, memory-mapped.
    problem, algorithm, planner: built and checked against each other.
    """

    config: Config
    shards: Shards
    problem: Problem
    algorithm: Algorithm[Any]
    planner: Planner

    @classmethod
    def build(cls, config: Config) -> "Experiment":
        """Builds the data (or finds it in the cache) and the rest. Raises ConfigError or DataError."""
        algorithm = _made(ALGORITHMS, config.algorithm, "algorithm")
        PROBLEMS.settings(config.problem.name, config.problem.settings)
        if config.model is not None:
            MODELS.settings(config.model.name, config.model.settings)
        elif PROBLEMS.takes(config.problem.name, "network"):
            raise ConfigError("model", f"the problem {config.problem.name!r} needs a network; name one here")
        source = _made(SOURCES, config.data, "data")
        partitioner = _made(PARTITIONERS, config.partition, "partition")
        shards = Shards.open(build(source, partitioner, config.seed, cache_folder(config)))
        spec = DataSpec(shards.shape, tuple(shards.class_counts().tolist()))
        problem = PROBLEMS.build(
            config.problem.name, config.problem.settings, network=_network(config, spec), data=spec
        )
        block = None if config.clients.block == "auto" else config.clients.block
        planner = Planner(shards.rows_N, config.seed, block)
        for phase in algorithm.phases(0):
            planner.check(phase.cohort)
        return cls(config, shards, problem, algorithm, planner)

    @cached_property
    def resolved(self) -> dict[str, Any]:
        """The configuration with every default filled in."""
        tree = self.config.model_dump(mode="json")
        for registry, choice in (
            (SOURCES, self.config.data),
            (PARTITIONERS, self.config.partition),
            (PROBLEMS, self.config.problem),
            (MODELS, self.config.model),
            (ALGORITHMS, self.config.algorithm),
        ):
            if choice is not None:
                settings = registry.settings(choice.name, choice.settings)
                tree[registry.kind] = {"name": choice.name} | {k: _plain(v) for k, v in settings.items()}
        return tree

    @property
    def dtype(self) -> torch.dtype:
        return torch.float64 if self.config.precision == "float64" else torch.float32

    @property
    def largest_cohort(self) -> int:
        """Clients that compute at a time, at most."""
        return max(p.cohort.S for p in self.algorithm.phases(0) if isinstance(p.cohort, Uniform))

    def placement(self, has: Resources) -> Placement:
        """Of the client actors. Raises PlacementError where they do not fit into what there is."""
        return place(self.config.clients, self.shards.n_clients, self.largest_cohort, has)

    def engine(self) -> LoopEngine:
        """The engine that client actors run."""
        device = "cuda" if self.config.clients.num_gpus else "cpu"
        return LoopEngine(self.problem, self.shards, self.dtype, device)

    def job(self, folder: Path) -> Job:
        """What the server gets."""
        labels = {s: getattr(self.shards, s).labels for s in self.config.evaluate.splits}
        return Job(
            self.algorithm, self.problem, self.planner, {s: y for s, y in labels.items() if len(y)},
            self.config.rounds, self.config.evaluate.every, self.dtype, folder,
        )  # fmt: skip

    def traffic(self) -> list[Traffic]:
        """What a steady round moves, measured by playing rounds 0 and 1 with one real client per phase.

        It runs the algorithm, problem and model together for the first time, so a fault in one of them shows here.
        """
        state = self.algorithm.init(self.problem.init(self.config.seed).to(self.dtype))
        engine = LoopEngine(self.problem, self.shards, self.dtype)
        moved: list[Traffic] = []
        for t in (0, 1):
            moved, cohort = [], None
            for phase in self.algorithm.phases(t):
                cohort = self.planner.cohort(phase.cohort, t, phase.name, cohort)
                order = Order(t, phase, phase.sends(state))
                one = self.planner.blocks(phase.work, t, phase.name, cohort[:1])[0]
                partial, _ = engine.run(order, one, {})
                state = phase.absorb(state, partial.mean(self.dtype))
                n = len(cohort)
                moved.append(Traffic(phase.name, n, n * wire.size_bytes(order.message), n * partial.bytes_up))
        return moved


def cache_folder(config: Config) -> Path:
    """Where shard files are kept."""
    return Path(config.output.cache or os.environ.get("RAYSIM_CACHE") or platformdirs.user_cache_dir("raysim"))


def _made(registry: Registry, choice: Choice, key: str) -> Any:
    return registry.build(choice.name, choice.settings, key)


def _network(config: Config, spec: DataSpec) -> NetworkFactory | None:
    if config.model is None:
        return None
    return NetworkFactory(MODELS, config.model.name, spec.shape, config.model.settings)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
