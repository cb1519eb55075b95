"""Dry runs: the client half of a phase played on zeros, to learn the shapes of what it returns before any training."""

import traceback
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from raysim.batch import Batch
from raysim.errors import ConfigError
from raysim.exchange import addressed_to
from raysim.phase import LocalSteps, Phase, Reply
from raysim.point import Point
from raysim.problems.problem import Problem
from raysim.wire import Traffic, shapes_of


@dataclass(frozen=True)
class _ZeroGradients:
    """Stands in for a problem whose gradients vanish, so that a dry run does not compute any."""

    problem: Problem

    def gradient(self, z: Point, batch: Batch) -> Point:
        return z.zeros_like()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.problem, name)


@dataclass(frozen=True)
class DryRun:
    """Plays phases on zeros, once for each kind of phase and shape of message.

    Attributes:
        problem: the problem whose functions a phase may call; its gradients count as zero.
        shape: shape of one row's inputs.
    """

    problem: Problem
    shape: tuple[int, ...]
    _replies: dict[Hashable, Reply[Any]] = field(default_factory=dict, repr=False, compare=False)

    def traffic(self, phase: Phase[Any, Any, Any, Any], message: Any, previous: Any) -> Traffic:
        """Returns the bytes of an exchange with one client; `previous` is the message of the round's phase before."""
        return Traffic.of(message, previous, self.reply(phase, message).upload)

    def reply(self, phase: Phase[Any, Any, Any, Any], message: Any) -> Reply[Any]:
        """Returns the reply of a new client, as tensors that have a shape and no numbers.

        Raises ConfigError where the phase cannot be played.
        """
        received = addressed_to(None, message)
        leaves, spec = pytree.tree_flatten(received)
        shapes = tuple((leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else None for leaf in leaves)
        key = (type(phase), phase.name, str(spec), shapes)
        if key not in self._replies:
            dtype = next((leaf.dtype for leaf in leaves if isinstance(leaf, Tensor)), torch.float32)
            try:
                reply = self._play(phase, pytree.tree_map(_zeros, received), self._zero_batch(dtype))
            except Exception as error:
                raise ConfigError(
                    "algorithm.name",
                    f"phase {phase.name!r} ({type(phase).__name__}) fails on zeros: {type(error).__name__}: {error}\n"
                    f"{traceback.format_exc()}",
                ) from error
            self._replies[key] = shapes_of(reply)
        return self._replies[key]

    def _play(self, phase: Phase[Any, Any, Any, Any], sent: Any, batch: Batch) -> Reply[Any]:
        problem, carry = _ZeroGradients(self.problem), phase.start(sent, None)
        for each in phase.passes:
            for _ in range(each.work.K if isinstance(each.work, LocalSteps) else 1):
                carry = each.step(problem, sent, carry, batch)
        return phase.finish(sent, carry)

    def _zero_batch(self, dtype: torch.dtype) -> Batch:
        rows = 2 if self.problem.mixes_rows else 1  # statistics of one row are undefined
        return Batch(
            torch.zeros(rows, *self.shape, dtype=dtype),
            torch.zeros(rows, dtype=torch.int64),
            torch.full((rows,), 1 / rows, dtype=dtype),
            torch.zeros(rows, self.problem.noise, dtype=dtype),
        )


def _zeros(leaf: Any) -> Any:
    return torch.zeros_like(leaf, device="cpu") if isinstance(leaf, Tensor) else leaf
