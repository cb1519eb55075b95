"""Dry runs: shapes and bytes of what phases return, found on zeros before anything is trained."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from raysim.algorithms.cd_ma import CDMA, Update
from raysim.batch import Batch
from raysim.dry_run import DryRun
from raysim.errors import ConfigError
from raysim.exchange import Order
from raysim.phase import LocalSteps, Uniform
from raysim.point import Point
from raysim.problems import Problem
from tests.contracts.table import ALL_ROWS, base_of, settings
from tests.play import DIGITS, QUADRATIC, experiment, server


@pytest.mark.parametrize("name", list(ALL_ROWS))
def test_shapes_on_zeros_are_those_of_the_clients(name: str) -> None:
    """In the first two rounds, with uploads and memory of a client that is computed."""
    made = experiment(base_of(name), settings(name))
    dry_run, engine = DryRun(made.problem, made.shards.shape), made.engine()
    state = made.algorithm.init(made.problem.init(0).to(torch.float64))
    memory: dict[int, Any] = {}
    for t in (0, 1):
        for phase in made.algorithm.phases(t):
            message = phase.sends(state)
            (block,) = made.planner.blocks(phase.works, t, phase.name, made.planner.population[:1])
            (reply,) = engine._loop.replies(Order(t, phase, message), block, memory)
            expected = dry_run.reply(phase, message)
            assert shapes(reply.upload) == shapes(expected.upload)
            if phase.remembers and memory:  # a client that is there for the first time may keep less
                assert shapes(reply.memory) == shapes(expected.memory)
            memory = dict.fromkeys(block.clients_C.tolist(), reply.memory) if phase.remembers else memory
            partial, _ = engine.run(Order(t, phase, message), block, memory)
            state = phase.absorb(state, partial.mean(torch.float64), 1)


def shapes(tree: Any) -> list[tuple[torch.Size, torch.dtype]]:
    return [(leaf.shape, leaf.dtype) for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def test_no_gradient_is_computed(tmp_path: Path) -> None:
    made = experiment(QUADRATIC, settings("cd_mage"), problem={"name": "tests.toys:Faulty", "limit": -1.0})
    z = made.problem.init(0)
    with pytest.raises(ValueError, match="a row I did not expect"):
        made.problem.gradient(z, Batch(torch.zeros(1, 44), torch.zeros(1), torch.ones(1)))
    collect, _ = made.algorithm.phases(0)
    message = collect.sends(made.algorithm.init(z))
    assert DryRun(made.problem, made.shards.shape).traffic(collect, message, None).up == 4 * (4 + 3)


def test_rows_are_two_where_they_are_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    made = experiment(dict(DIGITS) | {"model": {"name": "tests.toys:Normalised"}}, settings("cd_ma"))
    seen: list[Batch] = []

    @dataclass(frozen=True, kw_only=True)
    class Looking(Update):
        def step(self, problem: Problem, sent: Point, z: Point, batch: Batch) -> Point:
            seen.append(batch)
            return super().step(problem, sent, z, batch)

    phase = Looking(Uniform(4), LocalSteps(3, 5), eta=0.1, gamma=0.1)
    dry_run, message = DryRun(made.problem, made.shards.shape), made.problem.init(0)
    for _ in range(2):
        dry_run.reply(phase, message)
    assert [tuple(batch.inputs.shape) for batch in seen] == [(2, *made.shards.shape)] * 3, "played once, all its steps"


class Fails(Update):
    """A phase whose step has a mistake."""

    def step(self, problem: Problem, sent: Point, z: Point, batch: Batch) -> Point:
        raise KeyError("mistake")


@dataclass(frozen=True, kw_only=True)
class Failing(CDMA):
    """CD-MA with a mistake in its step."""

    def phases(self, t: int) -> tuple[Update]:
        return (Fails(Uniform(self.S), LocalSteps(self.K, self.batch), eta=self.eta, gamma=self.gamma),)


def test_a_phase_that_fails_on_zeros_is_named_with_its_traceback(tmp_path: Path) -> None:
    algorithm = settings("cd_ma") | {"name": "tests.raysim.test_dry_run:Failing"}
    with pytest.raises(ConfigError) as caught:
        server(experiment(QUADRATIC, algorithm), tmp_path).play(0)
    first, *trace = str(caught.value).splitlines()
    assert first == "algorithm.name: phase 'update' (Fails) fails on zeros: KeyError: 'mistake'"
    assert any("test_dry_run.py" in line for line in trace)
