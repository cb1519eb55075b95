"""A run that was broken off goes on to what it would have been: every algorithm, its ledger and its clients' memory."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from tests.contracts.table import ALL_ROWS, TABLE, base_of, settings
from tests.play import DIGITS, QUADRATIC, experiment, server
from tests.same import tables

PHONES = {"availability": {"name": "markov", "share": 0.6, "mean_on_s": 300}, "failure": {"p_start": 0.3}}


def same_ends(made: Any, tmp_path: Path, broken_off: int) -> None:
    """A whole run, and one that ends without notice in round `broken_off` and goes on from its latest checkpoint."""
    folders = [tmp_path / "whole", tmp_path / "broken"]
    for folder in folders:
        folder.mkdir()
    whole, broken, resumed = (server(made, folder) for folder in (folders[0], folders[1], folders[1]))
    list(whole.run())
    playing = broken.run()
    while broken.done < broken_off:
        next(playing)
    standing, _ = made.checkpoints(folders[1]).load()
    assert 0 < standing.rounds <= broken_off
    resumed.restore(standing)
    reports = list(resumed.run())
    assert reports[0].round == standing.rounds
    assert reports[0].metrics, "the last evaluation's, or a new one's"
    assert reports[-1].round == made.config.rounds
    assert torch.equal(resumed.point.x, whole.point.x)
    assert torch.equal(resumed.point.y, whole.point.y)
    assert resumed.memory.keys() == whole.memory.keys()
    for client, memory in whole.memory.items():
        ours, theirs = (pytree.tree_leaves(kept) for kept in (resumed.memory[client], memory))
        assert all(a is b or torch.equal(a, b) for a, b in zip(ours, theirs, strict=True)), client
    first, second = (tables(folder) for folder in folders)
    for name in first:
        assert first[name].equals(second[name]), name


@pytest.mark.parametrize("name", [*ALL_ROWS, "tests.toys:Remembering"])
@pytest.mark.parametrize("broken_off", [4, pytest.param(7, marks=pytest.mark.slow)])
def test_a_run_goes_on_to_the_bit(name: str, broken_off: int, tmp_path: Path) -> None:
    algorithm = settings(name) if name in ALL_ROWS else {"name": name}
    every = {"evaluate": {"every": 2, "splits": ["train"]}, "checkpoint": {"every": 3}}
    base = base_of(name, QUADRATIC)
    same_ends(experiment(base, algorithm, rounds=8, **every), tmp_path, broken_off)


@pytest.mark.parametrize("name", ["cd_mage_plus", "tests.toys:Remembering"])
def test_a_run_on_devices_goes_on_to_the_bit(name: str, tmp_path: Path) -> None:
    algorithm = settings(name, S=3) if name in TABLE else {"name": name, "S": 3}
    made = experiment(
        QUADRATIC,
        algorithm,
        rounds=9,
        data={"clients": 40},
        devices=PHONES,
        checkpoint={"every": 2},
        evaluate={"every": 4},
    )
    same_ends(made, tmp_path, 5)


@pytest.mark.parametrize(
    "base",
    [
        pytest.param(
            {"problem": {"name": "fair"}, "partition": {"name": "stride", "clients": 20}}, id="a dual that is confined"
        ),
        pytest.param(
            {"problem": {"name": "gan"}, "model": {"name": "tests.toys:TinyGAN"}}, id="noise", marks=pytest.mark.slow
        ),
    ],
)
def test_a_run_goes_on_in_its_domain_and_with_its_noise(base: Any, tmp_path: Path) -> None:
    made = experiment(dict(DIGITS) | base, settings("cd_mage", batch=6), rounds=4, checkpoint={"every": 1})
    made = made if base["problem"]["name"] == "fair" else _scored(made, tmp_path)
    same_ends(made, tmp_path, 2)


def _scored(made: Any, tmp_path: Path) -> Any:
    from dataclasses import replace

    return replace(made, problem=replace(made.problem, classifier_epochs=1).prepared(made.shards, tmp_path, str))
