"""What the server is given and what it reports: a job, and the progress after each round."""

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
    """Everything the server needs to know of an experiment.

    Attributes:
        algorithm, problem: what is run.
        row_shape: shape of one row's inputs.
        planner: draws the minibatches.
        dispatcher: decides who takes part.
        splits: the splits that are evaluated on; each has rows.
        by_client: True if clients' own models are evaluated on their own rows.
        groupings: divisions of the clients, for the ledger.
        rounds: T.
        stop_at: the run is over at the first evaluation that reaches it, if that is before T; rounds wait for
            evaluations then.
        evaluate_every: rounds between evaluations; the first is before round 0, the last after round T-1.
        pictures_every: evaluations between pictures; the first and the last evaluation have some too.
        checkpoint_every: rounds between checkpoints; there is one after the last round too. None leaves the choice to
            server.saving, which keeps the time for writing them small.
        dtype: type of the point and of all vectors on the wire.
        folder: where the ledger and the model are written.
        checkpoints: where a run goes on from if it is broken off.
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
        metrics: of the latest evaluation.
        evaluated: True if the metrics are of this round.
        bytes_down, bytes_up: totals so far.
        sim_s: simulated seconds so far; None without devices.
        warnings: what has come up since the last report; of the same several times in a row, the first.
        phases: rows of rounds.parquet for the round's phases, without what was not booked; none before the first.
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
