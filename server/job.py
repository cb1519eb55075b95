"""The input and the output of the server: a job, and the progress after each round."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from raysim.algorithm import Algorithm
from raysim.data import Split
from raysim.problems import Problem
from server.checkpoint import Checkpoints
from server.dispatch import Dispatcher
from server.evaluation import Metrics, Target
from server.ledger import Row
from server.participation import Grouping
from server.plan import Planner


@dataclass(frozen=True)
class Job:
    """Everything that the server needs to know of an experiment.

    Attributes:
        algorithm, problem: the algorithm, and the problem that it solves.
        row_shape: shape of one row's inputs.
        planner: draws the minibatches.
        dispatcher: decides who takes part.
        splits: the splits that are evaluated on; each has rows.
        by_client: True if clients' own models are evaluated on their own rows.
        groupings: divisions of the clients, for the ledger.
        rounds: T.
        stop_at: the target at whose first evaluation the run is over, if that is before T; rounds then wait for
            evaluations. None plays all T rounds.
        evaluate_every: rounds between evaluations; the first is before round 0, the last after round T-1.
        pictures_every: evaluations between pictures; the first and the last evaluation have some too.
        checkpoint_every: rounds between checkpoints; there is one after the last round too. None leaves the choice to
            server.saving, which keeps the share of time for writing them small.
        dtype: type of the point and of all vectors on the wire.
        folder: the run folder, for the ledger and the model.
        checkpoints: the checkpoints, from which a run can go on.
    """

    algorithm: Algorithm[Any]
    problem: Problem
    row_shape: tuple[int, ...]
    planner: Planner
    dispatcher: Dispatcher[Any]
    splits: Sequence[Split]
    by_client: bool
    groupings: Mapping[str, Grouping]
    rounds: int
    stop_at: Target | None
    evaluate_every: int
    pictures_every: int
    checkpoint_every: int | None
    dtype: torch.dtype
    folder: Path
    checkpoints: Checkpoints


@dataclass(frozen=True)
class Progress:
    """Tells a watcher after each round how far the run is.

    Attributes:
        round, rounds: rounds done, and T.
        metrics: the metrics of the latest evaluation.
        evaluated: True if the metrics are of this round.
        bytes_down, bytes_up: totals so far.
        sim_s: simulated seconds so far; None without devices.
        warnings: notices since the last report; a notice that repeats is given once.
        phases: rows of rounds.parquet for the round's phases; none before the first round.
    """

    round: int
    rounds: int
    metrics: Metrics
    evaluated: bool
    bytes_down: int
    bytes_up: int
    sim_s: float | None
    warnings: tuple[str, ...] = ()
    phases: tuple[Row, ...] = ()
