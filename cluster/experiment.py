"""A configuration made real: data, problem, algorithm and plan, everything that can be refused before Ray starts."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import torch
from pydantic_core import to_jsonable_python

from clients.engine import Engine, LoopEngine, files_of
from clients.gradients import remark, remark_on_parts
from clients.screen import Screen
from clients.vectorized import VectorizedEngine, pays
from cluster.config import Choice, Config
from cluster.loggers import LOGGERS
from cluster.world import World
from raysim.algorithm import Algorithm
from raysim.algorithms import ALGORITHMS
from raysim.data import PARTITIONERS, SOURCES, Shards, Split, build
from raysim.devices import AVAILABILITY
from raysim.errors import ConfigError
from raysim.models import MODELS, NetworkFactory
from raysim.phase import LocalSteps, Phase
from raysim.privacy import require_accountant
from raysim.problems import (
    PROBLEMS,
    DataSpec,
    Evaluated,
    HasCodes,
    HasExtractor,
    HasNetworks,
    Prepared,
    Problem,
    require,
    require_declared,
)
from raysim.registry import Registry
from server.checkpoint import Checkpoints, Store
from server.evaluation import Target
from server.job import Job, Progress
from server.plan import Planner

# The model sizes that algorithms may ask for, and the ability of a problem that knows each.
SIZES: dict[str, type[Any]] = {"extractor_size": HasExtractor, "feature_size": HasExtractor, "code_size": HasCodes}


@dataclass(frozen=True)
class Experiment:
    """An experiment that has been built and checked, and can be run.

    Attributes:
        config: the configuration, as given.
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
        require_declared(problem)
        require(problem, Evaluated)
        supplied = {"clients": clients, "seed": config.seed, "classes": spec.classes}
        for size, ability in SIZES.items():
            if ALGORITHMS.takes(config.algorithm.name, size):
                supplied[size] = getattr(require(problem, ability), size)
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
        _ = made.world.dispatcher(), made.world.groupings  # refuses impossible devices and label scores
        return made

    @cached_property
    def world(self) -> World:
        """The clients' devices, and the groups by which participation is counted."""
        return World(self.config, self.shards, self.problem, self.planner)

    @property
    def headline(self) -> str:
        """Name of the metric that the run is judged by."""
        return require(self.problem, Evaluated).headline

    @property
    def higher_is_better(self) -> bool:
        """Direction of the headline metric."""
        return require(self.problem, Evaluated).higher_is_better

    @property
    def splits(self) -> list[Split]:
        """The splits that are evaluated: those of `evaluate.splits` that have rows."""
        return [split for split in self.config.evaluate.splits if len(getattr(self.shards, split).labels)]

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
        """Returns the experiment with everything that its problem needs for evaluations.

        That may take minutes to make; `report` is told so.
        """
        if not isinstance(self.problem, Prepared):
            return self
        return replace(self, problem=self.problem.prepared(self.shards, cache_folder(self.config), report))

    @property
    def files(self) -> tuple[Path, ...]:
        """Files and folders that every node of a cluster needs."""
        return (self.shards.folder, *files_of(self.problem))

    @cached_property
    def extra_points(self) -> tuple[str, ...]:
        """Names of the points that are evaluated besides the algorithm's own."""
        return tuple(self.algorithm.extra_points(self.algorithm.init(self.problem.init(0))))

    @property
    def by_client(self) -> bool:
        """True if clients' own models are evaluated on their own rows."""
        return self.algorithm.personal or self.shards.test_offsets_N1 is not None

    @property
    def dtype(self) -> torch.dtype:
        """The type of models, gradients and messages."""
        return torch.float64 if self.config.precision == "float64" else torch.float32

    def engine(self) -> Engine:
        """The engine that client actors run."""
        device = "cuda" if self.config.clients.num_gpus else "cpu"
        kind = VectorizedEngine if _vectorized(self.config, self.problem) else LoopEngine
        return kind(self.problem, self.shards, self.screen, self.dtype, device)

    @property
    def screen(self) -> Screen:
        """The rule for results that cannot be used."""
        policy = self.config.server
        return Screen(policy.max_norm, policy.bad_results == "reject")

    def job(self, folder: Path) -> Job:
        """Returns what the server is given, for a run in this folder."""
        return Job(
            algorithm=self.algorithm,
            problem=self.problem,
            planner=self.planner,
            row_shape=self.shards.shape,
            dispatcher=self.world.dispatcher(),
            splits=self.splits,
            by_client=self.by_client,
            groupings=self.world.groupings,
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
        """The target of the headline metric; None if there is none."""
        evaluate = self.config.evaluate
        if evaluate.target is None:
            return None
        return Target(self.headline, evaluate.splits[-1], evaluate.target, self.higher_is_better)

    @property
    def _stop_at(self) -> Target | None:
        return self.target if self.config.evaluate.stop_at_target else None

    def over(self, report: Progress) -> bool:
        """Returns True if no round follows the one that is reported."""
        reached = self._stop_at is not None and self._stop_at.reached_in(report.metrics)
        return reached or report.round >= self.config.rounds

    def checkpoints(self, folder: Path) -> Checkpoints:
        """Returns the checkpoints of a run in this folder."""
        place = self.config.checkpoint.folder
        store = Store.at(folder / "checkpoints" if place is None else f"{place.rstrip('/')}/{folder.name}")
        # The records of an algorithm's state may come from the user's own package.
        packages = {"raysim", "server", type(self.algorithm).__module__.partition(".")[0]}
        return Checkpoints(store, self.identity, self.config.checkpoint.keep, packages)

    @property
    def identity(self) -> dict[str, Any]:
        """The identity of a run, which decides its numbers: the resolved configuration and the data, as plain data."""
        return self.resolved | {"shards": self.shards.content}

    def remarks(self) -> list[str]:
        """Returns what is to be known before a run: clients who have no rows or few, and gradients that are slow."""
        n, empty = self.shards.n_clients, self.shards.n_clients - len(self.planner.population)
        found = [f"{empty} of {n} clients have no rows and are never asked"] if empty else []
        works = (work for phase in self.algorithm.phases(0) for work in phase.works)
        batch = max((work.batch or 0 for work in works if isinstance(work, LocalSteps)), default=0)
        if few := int(np.count_nonzero((self.shards.rows_N > 0) & (self.shards.rows_N < batch))):
            found.append(f"{few} of {n} clients have fewer rows than a minibatch of {batch}; theirs are all of them")
        if slower := remark(self.problem):
            found.append(slower)
        if ALGORITHMS.takes(self.config.algorithm.name, "extractor_size") and (other := remark_on_parts(self.problem)):
            found.append(other)
        return found


def require_known(config: Config) -> None:
    """Raises ConfigError where a section names an unknown class, or has settings that the class does not take."""
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
    for name in config.output.loggers:
        LOGGERS.find(name, "output.loggers")


def _require_statistics(planner: Planner, phase: Phase[Any, Any, Any, Any]) -> None:
    """Raises ConfigError where BatchNorm would see a minibatch of one row, which has no statistics."""
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
    """Returns how many clients are best computed together: for networks on a CPU, as many as its cache holds."""
    return 10 if isinstance(problem, HasNetworks) and not config.clients.num_gpus else 100


def cache_folder(config: Config) -> Path:
    """Returns the folder in which shard files are kept."""
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
