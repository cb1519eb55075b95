"""Evaluation: outputs of every row, pooled over all clients, before any metric is taken.

A mean of the clients' own metrics would be another number, and for AUC is not even defined: most shards hold one class.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from raysim.data import Split
from raysim.errors import ConfigError
from raysim.fleet import Fleet
from raysim.point import Point
from raysim.problems import Problem
from raysim.registry import nearest

Metrics = Mapping[Split, Mapping[str, float | None]]


def evaluate(problem: Problem, fleet: Fleet, labels: Mapping[Split, NDArray[np.int64]], z: Point) -> Metrics:
    """Metrics by split and name, on all rows of each split in `labels`.

    Raises:
        ConfigError: the problem's headline is none of its metrics.
    """
    metrics: Metrics = {split: problem.metrics(z, fleet.outputs(z, split), y) for split, y in labels.items()}
    for values in metrics.values():
        if problem.headline not in values:
            raise ConfigError(
                "problem.name",
                f"{type(problem).__name__} has the headline {problem.headline!r}{nearest(problem.headline, values)}",
            )
    return metrics
