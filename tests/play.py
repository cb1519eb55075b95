"""Small experiments in this process, for tests that compare trajectories."""

from pathlib import Path
from typing import Any

from clients.fleet import InProcessFleet
from cluster.config import load_config
from cluster.experiment import Experiment
from raysim.point import Point
from server.rounds import Server

QUADRATIC: dict[str, Any] = {
    "name": "test",
    "rounds": 3,
    "precision": "float64",
    "data": {"name": "quadratic", "clients": 8, "rows": 6},
    "partition": {"name": "natural"},
    "problem": {"name": "quadratic"},
    "evaluate": {"every": 1, "splits": ["train"]},
    "clients": {"engine": "loop"},  # the reference; tests/contracts/test_engines.py compares the other with it
}
DIGITS: dict[str, Any] = {
    "name": "test",
    "rounds": 2,
    "precision": "float64",
    "data": {"name": "digits"},
    "partition": {"name": "by_label", "clients": 20},
    "problem": {"name": "auc"},
    "model": {"name": "mlp", "hidden": [8]},
    "evaluate": {"every": 1},
    "clients": {"engine": "loop"},
}
# Clients with models and tests of their own.
OWN: dict[str, Any] = {
    "name": "test",
    "rounds": 2,
    "precision": "float64",
    "data": {"name": "digits"},
    "partition": {"name": "consecutive_classes", "clients": 10, "classes": 3, "test_fraction": 0.3},
    "problem": {"name": "classification"},
    "model": {"name": "tests.toys:TwoPart"},
    "evaluate": {"every": 1},
    "clients": {"engine": "loop"},
}
# Of those, with random codes of rows.
CODES: dict[str, Any] = {
    "problem": {"name": "stochastic_classification", "samples": 3},
    "model": {"name": "tests.toys:Coder"},
}


def experiment(base: dict[str, Any], algorithm: dict[str, Any], **sections: Any) -> Experiment:
    """`base` with an algorithm and other sections in place of its own; a mapping is merged into the section."""
    tree = dict(base) | {"algorithm": algorithm}
    for name, value in sections.items():
        tree[name] = {**tree.get(name, {}), **value} if isinstance(value, dict) else value
    return Experiment.build(load_config(tree))


def server(made: Experiment, folder: Path) -> Server:
    """Its server, over the in-process fleet."""
    return Server(made.job(folder), InProcessFleet(made.engine()))


def settled(made: Experiment, folder: Path, within: int, step: float) -> Point:
    """Plays until a round moves the point by less than `step`, and returns it; one of so many rounds must."""
    playing = server(made, folder)
    for t in range(within):
        before = playing.point
        playing.play(t)
        if (playing.point - before).norm() < step:
            return playing.point
    raise AssertionError(f"it has not settled within {within} rounds")


def trajectory(made: Experiment, folder: Path, rounds: int) -> list[Point]:
    """z_0, ..., z_rounds."""
    playing = server(made, folder)
    points = [playing.point]
    for t in range(rounds):
        playing.play(t)
        points.append(playing.point)
    return points
