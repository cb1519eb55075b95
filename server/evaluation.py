"""Evaluation: outputs of every row, pooled over all clients, before any metric is taken.

A mean of the clients' own metrics would be another number, and for AUC is not even defined: most shards hold one class.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from raysim.data import Split
from raysim.fleet import Fleet
from raysim.point import Point
from raysim.problems import Problem

Metrics = Mapping[str, Mapping[str, float | None]]


def evaluate(problem: Problem, fleet: Fleet, labels: Mapping[Split, NDArray[np.int64]], z: Point) -> Metrics:
    """Metrics by split and name, on all rows of each split in `labels`."""
    return {split: problem.metrics(z, fleet.outputs(z, split), y) for split, y in labels.items()}
