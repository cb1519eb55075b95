"""Evaluation: outputs of every row, pooled over all clients, before any metric is taken.

A mean of the clients' own metrics would be another number, and for AUC is not even defined: most shards hold one class.
"""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from raysim.data import Split
from raysim.errors import ConfigError
from raysim.fleet import Fleet
from raysim.point import Point
from raysim.problems import Problem
from raysim.registry import nearest

Labels = Mapping[Split, NDArray[np.int64]]
Metrics = Mapping[Split, Mapping[str, float | None]]


def evaluate(problem: Problem, fleet: Fleet, labels: Labels, z: Point) -> Callable[[], Metrics]:
    """Starts to evaluate z; what it returns waits for the metrics by split and name, on all rows of each split.

    It raises ConfigError where the problem's headline is none of its metrics.
    """
    outputs = {split: fleet.outputs(z, split) for split in labels}

    def metrics() -> Metrics:
        found: Metrics = {split: problem.metrics(z, outputs[split](), y) for split, y in labels.items()}
        for values in found.values():
            if problem.headline not in values:
                headline = f"{problem.headline!r}{nearest(problem.headline, values)}"
                raise ConfigError("problem.name", f"{type(problem).__name__} has the headline {headline}")
        return found

    return metrics
