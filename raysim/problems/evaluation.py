"""The evaluation of a problem at one point, whichever abilities it has."""

from collections.abc import Mapping
from typing import TypeVar

from raysim.point import Point
from raysim.problems.abilities import Evaluated, StatisticsOfRows, require
from raysim.problems.pool import Pool
from raysim.problems.problem import Problem

Name = TypeVar("Name")


def settled(problem: Problem, z: Point, train: Pool, pools: Mapping[Name, Pool]) -> Mapping[Name, Pool]:
    """Returns the pools that z is evaluated on: with statistics of training rows, where the problem takes some."""
    if not isinstance(problem, StatisticsOfRows):
        return pools
    seen = problem.settled(z, train)
    return {name: seen(pool) for name, pool in pools.items()}


def evaluated(
    problem: Problem, z: Point, train: Pool, pools: Mapping[Name, Pool]
) -> dict[Name, Mapping[str, float | None]]:
    """Returns the metrics of z on each of the pools."""
    measured = require(problem, Evaluated)
    return {name: measured.evaluate(z, pool) for name, pool in settled(problem, z, train, pools).items()}
