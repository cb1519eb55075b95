"""The recipes of CONTRIBUTING, played: a guest is one new file outside the package, named by its dotted path."""

import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster import load_config, run
from cluster.run import Result
from raysim.errors import ConfigError
from tests.play import DIGITS, QUADRATIC

Play = Callable[..., Result]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Writes a guest's file into a folder of its own and runs an experiment of three rounds that names it."""
    guests = tmp_path / "somewhere"
    guests.mkdir()
    monkeypatch.syspath_prepend(guests)

    def play(base: dict[str, Any], file: str, source: str, **sections: Any) -> Result:
        (guests / file).write_text(textwrap.dedent(source))
        tree = {
            **base,
            "rounds": 3,
            "algorithm": {"name": "cd_ma", "S": 4, "K": 2, "batch": 2, "eta": 0.1, "gamma": 0.1},
        }
        tree |= {"output": {"folder": str(tmp_path / "runs")}} | sections
        return run(load_config(tree, ["clients.fleet=in_process"]))

    return play


ALGORITHM = """
    '''Signed local descent-ascent: one step of the server along the sign of the clients' mean movement.'''

    from dataclasses import dataclass

    import torch
    from pydantic import PositiveFloat
    from pydantic.dataclasses import dataclass as record

    from raysim.algorithms import cd_ma
    from raysim.algorithms.settings import DescentAscent
    from raysim.point import Point
    from raysim.registry import STRICT


    @dataclass(frozen=True, kw_only=True)
    class Signed(cd_ma.Update):
        server_step: float

        def absorb(self, state: Point, mean: Point, accepted: int) -> Point:
            moved = mean - state
            return Point(state.x + self.server_step * moved.x.sign(), state.y + self.server_step * moved.y.sign())


    @record(frozen=True, kw_only=True, config=STRICT)
    class SignedSGDA(DescentAscent[Point]):
        '''Attributes:
            server_step: by how much every number moves in a round.
        '''

        server_step: PositiveFloat = 0.5

        def init(self, z: Point) -> Point:
            return z

        def phases(self, t: int) -> tuple[Signed]:
            update = Signed(self.cohort, self.steps, eta=self.eta, gamma=self.gamma, server_step=self.server_step)
            return (update,)

        def point(self, state: Point) -> Point:
            return state
"""


def test_an_algorithm(play: Play) -> None:
    algorithm = {"name": "signed_sgda:SignedSGDA", "K": 2, "batch": 2, "eta": 0.1, "gamma": 0.1, "server_step": 0.25}
    result = play(QUADRATIC, "signed_sgda.py", ALGORITHM, algorithm=algorithm)
    moved = (result.model["x"] - 1) / 0.25  # from (1, ..., 1), by steps of 1/4
    assert moved.abs().max() > 0
    assert moved.tolist() == moved.round().tolist()
    with pytest.raises(ConfigError, match=r"algorithm.server_stepp: unknown key; did you mean 'server_step'"):
        play(QUADRATIC, "signed_sgda.py", ALGORITHM, algorithm=algorithm | {"server_stepp": 1})


PROBLEM = """
    '''The bilinear problem x'(row mean) y, whose saddle is 0.'''

    from pydantic.dataclasses import dataclass as record

    import torch

    from raysim.batch import Batch
    from raysim.point import Point
    from raysim.problems import DataSpec, Problem, ScoredByRow
    from raysim.registry import STRICT


    @record(frozen=True, kw_only=True, config=STRICT)
    class Bilinear(ScoredByRow, Problem):
        data: DataSpec
        scale: float = 1.0

        headline = "distance"
        higher_is_better = False

        def init(self, seed: int) -> Point:
            return Point(torch.ones(1), torch.ones(1))

        def value(self, z: Point, batch: Batch) -> torch.Tensor:
            return self.scale * (batch.weights @ batch.inputs.mean(1).abs()) * (z.x @ z.y)

        def outputs(self, z: Point, batch: Batch) -> torch.Tensor:
            return batch.inputs.mean(1)

        def metrics(self, z, outputs, labels):
            return {"distance": z.norm(), "rows": float(len(labels))}
"""


def test_a_problem(play: Play) -> None:
    result = play(QUADRATIC, "bilinear.py", PROBLEM, problem={"name": "bilinear:Bilinear", "scale": 0.1})
    first, *_, last = [row["value"] for row in result.metrics.to_pylist() if row["metric"] == "distance"]
    assert first == pytest.approx(2**0.5)
    assert last > first, "descent-ascent leaves the saddle of a bilinear problem"
    assert set(result.model) == {"x", "y"}


@pytest.mark.parametrize(
    ("bases", "message"),
    [
        (
            "Problem",
            r"^problem.name: Bilinear has a method 'outputs', which counts only for a class that derives",
        ),
        ("LabelScored, ScoredByRow, Problem", "abstract"),
    ],
)
def test_a_problem_without_what_it_needs_is_an_error_that_says_so(play: Play, bases: str, message: str) -> None:
    source = PROBLEM.replace("(ScoredByRow, Problem)", f"({bases})").replace(
        "import DataSpec, Problem, ScoredByRow", "import DataSpec, LabelScored, Problem, ScoredByRow"
    )
    name = f"bilinear{len(bases)}"
    with pytest.raises((ConfigError, TypeError), match=message):
        play(QUADRATIC, f"{name}.py", source, problem={"name": f"{name}:Bilinear"})


MODEL = """
    '''A logistic regression with a scale in front.'''

    import math

    import torch
    from torch import nn


    class Scaled(nn.Module):
        def __init__(self, shape: tuple[int, ...], outputs: int, scale: float = 1.0) -> None:
            super().__init__()
            self.scale = scale
            self.linear = nn.Linear(math.prod(shape), outputs)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.linear(self.scale * inputs.flatten(1))
"""


def test_a_model(play: Play) -> None:
    result = play(DIGITS, "scaled.py", MODEL, model={"name": "scaled:Scaled", "scale": 0.5})
    assert result.model["linear.weight"].shape == (10, 64)
    assert result.final("auc") is not None


LOGGER = """
    '''A logger that writes a line for each evaluation.'''

    from cluster.loggers import LoggedRun, Logger, Outcome
    from server.job import Progress


    class Lines(Logger):
        def __init__(self, run: LoggedRun) -> None:
            self.file = run.folder / "lines.txt"
            self.file.write_text(f"{run.resolved['algorithm']['name']}\\n")

        def __call__(self, report: Progress) -> None:
            with self.file.open("a") as file:
                file.write(f"{report.round}\\n")

        def end(self, outcome: Outcome) -> None:
            with self.file.open("a") as file:
                file.write(f"{outcome}\\n")
"""


def test_a_logger(play: Play, tmp_path: Path) -> None:
    output = {"folder": str(tmp_path / "runs"), "loggers": ["lines:Lines"]}
    result = play(QUADRATIC, "lines.py", LOGGER, output=output)
    assert (result.folder / "lines.txt").read_text().split() == ["cd_ma", "0", "1", "2", "3", "finished"]
    with pytest.raises(
        ConfigError, match=r"output.loggers: there is no logger 'tensorbord'; did you mean 'tensorboard'"
    ):
        play(QUADRATIC, "lines.py", LOGGER, output=output | {"loggers": ["tensorbord"]})


def test_a_logger_that_fails_is_told_no_more_and_ends_nothing(play: Play, tmp_path: Path) -> None:
    failing = LOGGER.replace('file.write(f"{report.round}', 'file.write(f"{1 / (2 - report.round)}')
    output = {"folder": str(tmp_path / "runs"), "loggers": ["failing:Lines"]}
    result = play(QUADRATIC, "failing.py", failing, output=output)
    events = [json.loads(line) for line in (result.folder / "log.jsonl").read_text().splitlines()]
    (notice,) = [event["notice"] for event in events if event["event"] == "notice"]
    assert notice == "warning: failing:Lines failed and is told no more: ZeroDivisionError: division by zero"
    assert events[-1]["outcome"] == "finished"
