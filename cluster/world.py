"""The simulated world of the clients: their devices, when these are on, and the groups that clients belong to."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cluster.config import Config
from raysim.data import Shards
from raysim.devices import AVAILABILITY, Availability, DeviceModel, Population
from raysim.errors import ConfigError
from raysim.problems import LabelScored, Problem
from server.dispatch import Devices, Dispatcher, Ideal
from server.participation import Grouping
from server.plan import Planner


@dataclass(frozen=True)
class World:
    """Builds the devices of an experiment, or the ideal world without any.

    Attributes:
        config: the configuration, whose sections `devices` and `server` are read.
        shards: the clients' data.
        problem: the problem, which may give label scores.
        planner: the planner, which draws cohorts.
    """

    config: Config
    shards: Shards
    problem: Problem
    planner: Planner

    def dispatcher(self) -> Dispatcher[Any]:
        """Returns the dispatcher, which decides each phase's cohort."""
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
        """The model of when devices are on."""
        assert self.config.devices is not None
        choice, n = self.config.devices.availability, self.shards.n_clients
        made: Availability = AVAILABILITY.build(
            choice.name, choice.settings, seed=self.config.devices.seed, clients=n, scores=self.label_score_N
        )
        return made

    @cached_property
    def label_score_N(self) -> NDArray[np.float64] | None:
        """Each client's mean label score, such as its share of positives; 0 for a client without rows.

        None where the problem has no label scores. Raises ConfigError where one is out of range.
        """
        if not isinstance(self.problem, LabelScored):
            return None
        scores = self.problem.label_scores(self.shards.train.labels)
        if not ((scores >= 0) & (scores <= 1)).all():
            name = type(self.problem).__name__
            raise ConfigError("problem.name", f"{name}.label_scores must give numbers from 0 to 1")
        sums = np.concatenate([[0.0], np.cumsum(scores)])[self.shards.offsets_N1]
        # A difference of sums may be off by a rounding error, so that a mean of ones may exceed 1.
        return np.clip(np.diff(sums) / np.maximum(self.shards.rows_N, 1), 0, 1)

    @cached_property
    def groupings(self) -> Mapping[str, Grouping]:
        """The groupings by which participation is counted: tier, zone and label, where the experiment has them."""
        found = {}
        if self.config.devices is not None:
            found["tier"] = Grouping.by_speed(self.population.sec_per_sample_N, self.shards.rows_N > 0)
            if self.availability.zones is not None:
                found["zone"] = Grouping(*self.availability.zones)
        if self.label_score_N is not None:
            found["label"] = Grouping.by_label(self.label_score_N)
        return found
