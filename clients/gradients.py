"""Gradients of a problem for all clients of a block: layer by layer for a chain of layers, by vmap for other networks.

Legend: C clients, K local steps, B rows of a batch.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from clients.chain import Chain, Dense, Piece
from clients.per_client import Known, PerClient
from raysim.batch import Batch
from raysim.point import Point
from raysim.problems import Classification, NetworkProblem, Problem

# Bytes of activations, at most, of gradients that are computed ahead at one point for the batches to come.
AHEAD_BYTES = 4_000_000


def overridden(problem: NetworkProblem) -> list[str]:
    """Returns the methods of the problem's class that replace those which gradients layer by layer rely on."""
    expected = {"gradient": Problem.gradient, "value": NetworkProblem.value, "seen": NetworkProblem.seen}
    return [name for name, method in expected.items() if getattr(type(problem), name) is not method]


def chain_of(problem: Problem) -> Chain | None:
    """Returns the problem's network, if gradients can be computed layer by layer; otherwise None."""
    if not isinstance(problem, NetworkProblem) or overridden(problem):
        return None
    return Chain.of(problem.net.module)


def remark(problem: Problem) -> str | None:
    """Returns a warning where a class of the user's own cannot have its gradients layer by layer; None if it can."""
    if not isinstance(problem, NetworkProblem) or _is_ours(type(problem)):
        return None
    methods = overridden(problem)
    if not methods or Chain.of(problem.net.module) is None:
        return None
    kind = type(problem).__name__
    return (
        f"{kind} has its own {' and '.join(methods)}, so that gradients are taken of that code and not layer by layer, "
        f"which is slower; put what is different into {kind}.loss where that is possible"
    )


def remark_on_parts(problem: Problem) -> str | None:
    """Says what methods that step an extractor and a head apart do not see of a class of the user's own.

    They take their gradients of cross_entropy(logits(v, features(u))), and not of `value`.
    """
    if not isinstance(problem, Classification) or _is_ours(type(problem)):
        return None
    kind = type(problem)
    ours = next(base for base in kind.__mro__ if _is_ours(base))
    methods = [name for name in ("value", "loss", "gradient") if getattr(kind, name) is not getattr(ours, name)]
    if not methods:
        return None
    return (
        f"{kind.__name__} has its own {' and '.join(methods)}, which steps of an extractor or a head do not use: they "
        f"are taken on {kind.__name__}.cross_entropy of its logits; put what is different there"
    )


def _is_ours(kind: type) -> bool:
    return kind.__module__.startswith("raysim.")


class Place(NamedTuple):
    """The point (x, y) and the batch of a gradient."""

    x: Known
    y: Known
    batch: Batch


@dataclass
class GradientPieces:
    """A gradient that has been computed, with respect to x and to y, each in pieces.

    Attributes:
        backward: returns the pieces of x, which cost more than those of y and which some methods never ask for.
        y: the pieces of y.
    """

    backward: Callable[[], list[Piece]] | None
    y: list[Piece]

    @cached_property
    def x(self) -> list[Piece]:
        """The pieces of the gradient with respect to x."""
        assert self.backward is not None
        # `backward` is dropped because it holds the activations, whose memory is best used again while it is cached.
        pieces, self.backward = self.backward(), None
        return pieces

    def of(self, clients: slice) -> "GradientPieces":
        """Returns the gradient of some of the clients."""
        return GradientPieces(lambda: [piece.of(clients) for piece in self.x], [piece.of(clients) for piece in self.y])


@dataclass
class Gradient:
    """The gradient at a point on a batch, computed when it is first needed."""

    compute: Callable[[Place], GradientPieces]
    place: Place

    @cached_property
    def pieces(self) -> GradientPieces:
        """The gradient in pieces."""
        return self.compute(self.place)


@dataclass(frozen=True, eq=False)
class PartialGradient:
    """The gradient with respect to one block of the point, x or y, as a term of a sum."""

    gradient: Gradient
    block: Literal["x", "y"]

    def ready(self) -> None:
        _ = self._pieces

    def add_to(self, out: Tensor, scale: float) -> None:
        for piece in self._pieces:
            piece.add_to(out, scale)

    def fold_into(self, out: Tensor, weights_C: Tensor) -> None:
        for piece in self._pieces:
            piece.fold_into(out, weights_C)

    @property
    def _pieces(self) -> list[Piece]:
        pieces = self.gradient.pieces
        return pieces.x if self.block == "x" else pieces.y


@dataclass
class ProblemPerClient:
    """A problem whose methods take the points and batches of all clients, in place of one client's problem in phases.

    Attributes:
        problem: the problem of one client.
        chain: its network, where gradients can be computed layer by layer.
        steps: the batches of all local steps, their tensors (K, C, B, ...); None for a pass over whole shards.
    """

    problem: Problem
    chain: Chain | None = None
    steps: Batch | None = None
    _step: int = 0
    _gradients: dict[tuple[int, ...], Point] = field(default_factory=dict)
    _ahead: dict[tuple[Known, Known, int], GradientPieces] = field(default_factory=dict)

    def gradient(self, z: Point, batch: Batch) -> Point:
        """Returns the problem's gradient; asked twice at the same point and batch in a step, the same object."""
        leaves = (z.x, z.y, *batch)
        C = next(leaf.clients for leaf in leaves if isinstance(leaf, PerClient))
        x, y, *rows = (PerClient.for_all(leaf, C) for leaf in leaves)
        place = Place(x.known(), y.known(), Batch(*(leaf.known().tensor for leaf in rows)))
        key = (id(place.x), id(place.y), *(id(part) for part in place.batch))
        if key not in self._gradients:
            gradient = Gradient(self._compute, place)
            dx = PerClient.of(x, C, {PartialGradient(gradient, "x"): 1.0})
            self._gradients[key] = Point(dx, PerClient.of(y, C, {PartialGradient(gradient, "y"): 1.0}))
        return self._gradients[key]

    def next_step(self) -> None:
        """Forgets the gradients of the step, since memory that they refer to may be written from now on."""
        self._step += 1
        self._gradients.clear()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.problem, name)
        return lambda *args: PerClient.mapped(method, args, {})

    def _compute(self, place: Place) -> GradientPieces:
        if self.chain is None:

            def gradient(x: Tensor, y: Tensor, batch: Batch) -> Point:
                return self.problem.gradient(Point(x, y), batch)

            x, y = (None if known.shared else 0 for known in (place.x, place.y))
            g = torch.func.vmap(gradient, in_dims=(x, y, 0))(place.x.tensor, place.y.tensor, place.batch)
            return GradientPieces(lambda: [Dense(0, g.x)], [Dense(0, g.y)])
        if place.x.shared and place.y.shared and self.steps is not None and self._step > 0:
            return self._compute_ahead(self.chain, place, self.steps)
        return self._by_layers(self.chain, place.x, place.y, place.batch)

    def _compute_ahead(self, chain: Chain, place: Place, steps: Batch) -> GradientPieces:
        """Returns the gradient at a point that clients come back to in each step; it computes several steps at once."""
        if (place.x, place.y, self._step) not in self._ahead:
            K, C, B = steps.labels.shape
            bytes_ = C * B * chain.numbers_per_row(len(place.x.tensor), steps.inputs.shape[3:]) * 4
            n = min(K - self._step, max(1, AHEAD_BYTES // bytes_))
            batches = Batch(*(leaf[self._step : self._step + n].flatten(0, 1) for leaf in steps))
            parts = self._by_layers(chain, place.x, place.y, batches)
            for i in range(n):
                self._ahead[place.x, place.y, self._step + i] = parts.of(slice(i * C, (i + 1) * C))
        return self._ahead.pop((place.x, place.y, self._step))

    def _by_layers(self, chain: Chain, x: Known, y: Known, batch: Batch) -> GradientPieces:
        problem, C = self.problem, len(batch.labels)
        assert isinstance(problem, NetworkProblem)
        n = problem.net.size
        w, dual = (known.tensor[None] if known.shared else known.tensor for known in (x, y))
        outputs, tape = chain.forward(w, problem.seen(dual, batch.inputs))
        leaves = (outputs, w[:, n:].expand(C, -1), dual.expand(C, -1))
        outputs, rest, y_C = (leaf.detach().requires_grad_() for leaf in leaves)
        with torch.enable_grad():
            value = problem.loss(outputs, rest, y_C, batch).sum()
            d_outputs, d_rest, d_y = torch.autograd.grad(value, (outputs, rest, y_C), materialize_grads=True)
            shift = problem.shift(y_C)
        if shift is None:
            return GradientPieces(lambda: [*chain.backward(w, tape, d_outputs)[0], Dense(n, d_rest)], [Dense(0, d_y)])
        pieces, d_inputs = chain.backward(w, tape, d_outputs, inputs=True)
        assert d_inputs is not None
        d_y = d_y + torch.autograd.grad(shift, y_C, d_inputs.sum(1))[0]
        return GradientPieces(lambda: [*pieces, Dense(n, d_rest)], [Dense(0, d_y)])
