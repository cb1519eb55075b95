"""A configuration made real: data, problem, algorithm and plan, everything that can be refused before Ray starts."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import torch
from numpy.typing import NDArray
from pydantic_core import to_jsonable_python
from torch.utils import _pytree as pytree

from clients.engine import Engine, LoopEngine
from clients.placement import Node, Placement, Sizes, fits_store, place
from clients.screen import Screen
from clients.vectorized import VectorizedEngine, pays
from cluster.config import Choice, Config
from raysim import wire
from raysim.algorithms import ALGORITHMS
from raysim.data import PARTITIONERS, SOURCES, Shards, build
from raysim.devices import AVAILABILITY, Availability, DeviceModel, Population
from raysim.errors import ConfigError
from raysim.models import MODELS, NetworkFactory
from raysim.phase import Algorithm, LocalSteps, Order, Partial, Phase, Uniform, addressed_to
from raysim.privacy import require_accountant
from raysim.problems import PROBLEMS, DataSpec, Problem
from raysim.registry import Registry
from raysim.wire import Traffic
from server.checkpoint import Checkpoints, Store
from server.dispatch import Devices, Dispatcher, Ideal
from server.evaluation import Target
from server.participation import Grouping
from server.plan import Planner
from server.rounds import Job, Progress


@dataclass(frozen=True)
class Exchange:
    """What one phase of a steady round moves.

    Attributes:
        phase: of the algorithm.
        clients: S.
        traffic: with one client.
    """

    phase: Phase[Any, Any, Any, Any]
    clients: int
    traffic: Traffic

    @property
    def bytes_down(self) -> int:
        """To S clients."""
        return self.clients * self.traffic.to(self.phase)

    @property
    def bytes_up(self) -> int:
        """From S clients."""
        return self.clients * self.traffic.up


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
        require_known(config)
        source = _made(SOURCES, config.data, "data")
        partitioner = _made(PARTITIONERS, config.partition, "partition")
        shards = Shards.open(build(source, partitioner, config.seed, cache_folder(config)))
        clients = int(np.count_nonzero(shards.rows_N))
        spec = DataSpec(shards.shape, tuple(shards.class_counts().tolist()))
        problem = PROBLEMS.build(
            config.problem.name, config.problem.settings, network=_network(config, spec), data=spec
        )
        supplied = {"clients": clients, "seed": config.seed, "classes": spec.classes}
        for size in ("extractor_size", "feature_size", "code_size"):
            if ALGORITHMS.takes(config.algorithm.name, size):
                supplied[size] = getattr(problem, size)
        algorithm = _made(ALGORITHMS, config.algorithm, "algorithm", **supplied)
        block = None if config.clients.block == "auto" else config.clients.block
        together = _together(config, problem) if _vectorized(config, problem) else None
        planner = Planner(shards.rows_N, config.seed, block, together)
        for phase in algorithm.phases(0):
            planner.check(phase.cohort)
            if phase.privacy is not None:
                require_accountant()
            if problem.mixes_rows:
                _require_statistics(planner, phase)
        if (
            algorithm.personal
            and shards.test_offsets_N1 is None
            and "test" in config.evaluate.splits
            and len(shards.test)
        ):
            raise ConfigError(
                "partition.test_fraction",
                f"is needed by {config.algorithm.name}: its clients have models of their own, which are evaluated on "
                "tests of their own; take 0.3, perhaps",
            )
        made = cls(config, shards, problem, algorithm, planner)
        _ = made.dispatcher(), made.groupings  # devices and label scores that cannot be are refused here
        return made

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
        if self.config.devices is not None:
            choice = self.config.devices.availability
            settings = AVAILABILITY.settings(choice.name, choice.settings)
            tree["devices"]["availability"] = {"name": choice.name} | {k: _plain(v) for k, v in settings.items()}
        return tree

    def prepared(self, report: Callable[[str], None]) -> "Experiment":
        """With what it takes to evaluate the problem, which may take minutes to make; `report` is told so."""
        return replace(self, problem=self.problem.prepared(self.shards, cache_folder(self.config), report))

    @cached_property
    def beside(self) -> tuple[str, ...]:
        """Names of the points that are evaluated beside the algorithm's own."""
        return tuple(self.algorithm.beside(self.algorithm.init(self.problem.init(0))))

    @property
    def by_client(self) -> bool:
        """Whether clients' own models are evaluated on their own rows."""
        return self.algorithm.personal or self.shards.test_offsets_N1 is not None

    @property
    def dtype(self) -> torch.dtype:
        return torch.float64 if self.config.precision == "float64" else torch.float32

    @property
    def largest_cohort(self) -> int:
        """Clients that compute at a time, at most."""
        return max(p.cohort.S for p in self.algorithm.phases(0) if isinstance(p.cohort, Uniform))

    def placement(self, nodes: Sequence[Node]) -> Placement:
        """Of the client actors. Raises PlacementError where they do not fit into what there is."""
        return place(self.config.clients, self.shards.n_clients, self.largest_cohort, nodes)

    def stored(self, placement: Placement, nodes: Sequence[Node]) -> str | None:
        """What is to be known of Ray's object store, if anything. Raises PlacementError where it is too small."""
        return fits_store(placement, self.sizes, len(self.planner.population), self.largest_cohort, nodes)

    @property
    def sizes(self) -> Sizes:
        """Of what the phases of the first round move and keep, from shapes: uploads are zeros."""
        state = self.algorithm.init(self.problem.init(self.config.seed).to(self.dtype))
        found, kept = [], 0
        for phase in self.algorithm.phases(0):
            message = phase.sends(state)
            shapes = wire.shapes_of(addressed_to(None, message))
            reply = phase.finish(shapes, phase.start(shapes, None))
            nothing = pytree.tree_map(lambda leaf: torch.zeros_like(leaf, device="cpu"), reply.upload)
            one = Partial.of(nothing, 1.0, 0, 0)
            found.append(tuple(wire.stored_bytes(tree, self.largest_cohort) for tree in (message, one.total)))
            kept = wire.size_bytes(reply.memory) if phase.remembers else kept
            state = phase.absorb(state, one.mean(self.dtype), 1)
        message_bytes, sum_bytes = map(max, zip(*found, strict=True))
        return Sizes(message_bytes, sum_bytes, kept)

    def engine(self) -> Engine:
        """The engine that client actors run."""
        device = "cuda" if self.config.clients.num_gpus else "cpu"
        kind = VectorizedEngine if _vectorized(self.config, self.problem) else LoopEngine
        return kind(self.problem, self.shards, self._screen, self.dtype, device)

    @property
    def _screen(self) -> Screen:
        policy = self.config.server
        return Screen(policy.max_norm, policy.bad_results == "reject")

    def job(self, folder: Path) -> Job:
        """What the server gets."""
        return Job(
            algorithm=self.algorithm,
            problem=self.problem,
            planner=self.planner,
            dispatcher=self.dispatcher(),
            splits=[split for split in self.config.evaluate.splits if len(getattr(self.shards, split).labels)],
            by_client=self.by_client,
            groupings=self.groupings,
            rounds=self.config.rounds,
            stop_at=self._stop_at,
            evaluate_every=self.config.evaluate.every,
            pictures_every=self.config.evaluate.pictures,
            checkpoint_every=None if self.config.checkpoint.every == "auto" else self.config.checkpoint.every,
            dtype=self.dtype,
            folder=folder,
            checkpoints=self.checkpoints(folder),
        )

    @property
    def target(self) -> Target | None:
        """Of the headline metric, if there is one."""
        evaluate = self.config.evaluate
        if evaluate.target is None:
            return None
        return Target(self.problem.headline, evaluate.splits[-1], evaluate.target, self.problem.higher_is_better)

    @property
    def _stop_at(self) -> Target | None:
        return self.target if self.config.evaluate.stop_at_target else None

    def over(self, report: Progress) -> bool:
        """Whether no round follows this one."""
        reached = self._stop_at is not None and self._stop_at.reached_in(report.metrics)
        return reached or report.round >= self.config.rounds

    def checkpoints(self, folder: Path) -> Checkpoints:
        """Those of a run in this folder."""
        place = self.config.checkpoint.folder
        store = Store.at(folder / "checkpoints" if place is None else f"{place.rstrip('/')}/{folder.name}")
        # Records of a state may be of the user's own package.
        packages = {"raysim", "server", type(self.algorithm).__module__.partition(".")[0]}
        return Checkpoints(store, self.identity, self.config.checkpoint.keep, packages)

    @property
    def identity(self) -> dict[str, Any]:
        """What a run's numbers depend on, as plain data: the resolved configuration and the data."""
        return self.resolved | {"shards": self.shards.content}

    def remarks(self) -> list[str]:
        """What is to be known of the clients before a run: those who have no rows or few."""
        n, empty = self.shards.n_clients, self.shards.n_clients - len(self.planner.population)
        found = [f"{empty} of {n} clients have no rows and are never asked"] if empty else []
        works = (work for phase in self.algorithm.phases(0) for work in phase.works)
        batch = max((work.batch or 0 for work in works if isinstance(work, LocalSteps)), default=0)
        if few := int(np.count_nonzero((self.shards.rows_N > 0) & (self.shards.rows_N < batch))):
            found.append(f"{few} of {n} clients have fewer rows than a minibatch of {batch}; theirs are all of them")
        return found

    def rehearse(self) -> list[Exchange]:
        """What a steady round moves, found by playing rounds 0 and 1 with one real client per phase.

        It runs the algorithm, problem and model together for the first time, so a fault in one of them shows here.
        """
        state = self.algorithm.init(self.problem.init(self.config.seed).to(self.dtype))
        engine = LoopEngine(self.problem, self.shards, self._screen, self.dtype)
        exchanges: list[Exchange] = []
        memory: dict[int, Any] = {}
        for t in (0, 1):
            exchanges, cohort, before = [], None, None
            for phase in self.algorithm.phases(t):
                cohort = self.planner.cohort(phase.cohort, t, phase.name, cohort)
                message = phase.sends(state)
                (one,) = self.planner.blocks(phase.works, t, phase.name, cohort[:1])
                partial, kept = engine.run(Order(t, phase, message), one, memory)
                memory |= dict(zip(one.clients_C.tolist(), kept, strict=True)) if phase.remembers else {}
                exchanges.append(Exchange(phase, len(cohort), Traffic.of(phase, message, before)))
                state, before = phase.absorb(state, partial.mean(self.dtype), 1), message
        return exchanges

    def dispatcher(self) -> Dispatcher[Any]:
        """Who decides a phase's cohort."""
        if self.config.devices is None:
            return Ideal(self.planner, self.config.server)
        return Devices(self.planner, self.population, self.availability, self.config.server)

    @cached_property
    def population(self) -> Population:
        """The devices' speeds, links and memory."""
        assert self.config.devices is not None
        model = {field: getattr(self.config.devices, field) for field in DeviceModel.model_fields}
        return Population(DeviceModel(**model), self.shards.n_clients)

    @cached_property
    def availability(self) -> Availability:
        """When they are on."""
        assert self.config.devices is not None
        choice, n = self.config.devices.availability, self.shards.n_clients
        made: Availability = AVAILABILITY.build(
            choice.name, choice.settings, seed=self.config.devices.seed, clients=n, scores=self.label_score_N
        )
        return made

    @cached_property
    def label_score_N(self) -> NDArray[np.float64] | None:
        """Each client's mean label score, such as its share of positives; 0 for a client without rows."""
        scores = self.problem.label_scores(self.shards.train.labels)
        if scores is None:
            return None
        if not ((scores >= 0) & (scores <= 1)).all():
            name = type(self.problem).__name__
            raise ConfigError("problem.name", f"{name}.label_scores must give numbers from 0 to 1")
        sums = np.concatenate([[0.0], np.cumsum(scores)])[self.shards.offsets_N1]
        # A difference of sums may be off by a rounding, and a mean of ones come out above 1.
        return np.clip(np.diff(sums) / np.maximum(self.shards.rows_N, 1), 0, 1)

    @cached_property
    def groupings(self) -> Mapping[str, Grouping]:
        """Divisions of the clients whose participation is told apart: tier, zone, label, those that there are."""
        found = {}
        if self.config.devices is not None:
            found["tier"] = Grouping.by_speed(self.population.sec_per_sample_N, self.shards.rows_N > 0)
            if self.availability.zones is not None:
                found["zone"] = Grouping(*self.availability.zones)
        if self.label_score_N is not None:
            found["label"] = Grouping.by_label(self.label_score_N)
        return found


def require_known(config: Config) -> None:
    """Raises ConfigError where a section names nothing that there is, or has settings that it does not take."""
    ALGORITHMS.settings(config.algorithm.name, config.algorithm.settings)
    PROBLEMS.settings(config.problem.name, config.problem.settings)
    if config.model is not None:
        MODELS.settings(config.model.name, config.model.settings)
    elif PROBLEMS.takes(config.problem.name, "network"):
        raise ConfigError("model", f"the problem {config.problem.name!r} needs a network; name one here")
    SOURCES.settings(config.data.name, config.data.settings, "data")
    PARTITIONERS.settings(config.partition.name, config.partition.settings, "partition")
    if config.devices is not None:
        choice = config.devices.availability
        AVAILABILITY.settings(choice.name, choice.settings, "devices.availability")


def _require_statistics(planner: Planner, phase: Phase[Any, Any, Any, Any]) -> None:
    """Raises ConfigError where a minibatch has one row, of which BatchNorm has no statistics."""
    smallest = np.min([planner.smallest(work) for work in phase.works], axis=0)
    alone = planner.population[smallest == 1]
    if len(alone):
        raise ConfigError(
            "algorithm.batch",
            f"the {planner.rows_N[alone[0]]} rows of client {alone[0]} leave a minibatch of one row in phase "
            f"{phase.name!r}, and BatchNorm needs two; take another size",
        )


def _vectorized(config: Config, problem: Problem) -> bool:
    engine = config.clients.engine
    return pays(problem) if engine == "auto" else engine == "vectorized"


def _together(config: Config, problem: Problem) -> int:
    """Clients that are best computed together: of networks, on a processor, what its cache holds."""
    return 10 if problem.networks and not config.clients.num_gpus else 100


def cache_folder(config: Config) -> Path:
    """Where shard files are kept."""
    return Path(config.output.cache or os.environ.get("RAYSIM_CACHE") or platformdirs.user_cache_dir("raysim"))


def _made(registry: Registry, choice: Choice, key: str, **supplied: Any) -> Any:
    return registry.build(choice.name, choice.settings, key, **supplied)


def _network(config: Config, spec: DataSpec) -> NetworkFactory | None:
    if config.model is None:
        return None
    return NetworkFactory(MODELS, config.model.name, spec.shape, config.model.settings)


def _plain(value: Any) -> Any:
    plain: Any = to_jsonable_python(value)
    return plain
