"""Algorithms and problems of a user's own, as tests need them; named in configurations by tests.toys:Name."""

import math
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from raysim.algorithm import Algorithm, SharedModel
from raysim.batch import Batch
from raysim.data import Digits, Splits, Table
from raysim.phase import LocalSteps, LocalUpdate, Pass, Phase, Reply, Same, SinglePass, Uniform, WholeShard
from raysim.point import Point
from raysim.problems import Composed, Problem, Quadratic


@dataclass(frozen=True)
class Controlled(SinglePass[Any, Any, Any, Any]):
    """SCAFFOLD-like: each client remembers the mean of the gradients it saw, and how often it was asked."""

    name = "controlled"
    remembers = True

    def sends(self, state: Any) -> Any:
        return state

    def start(self, sent: Any, memory: Any) -> Any:
        c_i, calls = (sent["z"].zeros_like(), torch.zeros(1)) if memory is None else memory
        return {"z": sent["z"], "c_i": c_i, "sum": sent["z"].zeros_like(), "calls": calls}

    def step(self, problem: Problem, sent: Any, carry: Any, batch: Batch) -> Any:
        g = problem.gradient(carry["z"], batch)
        z = carry["z"].descent_ascent(g - carry["c_i"] + sent["c"], 0.05, 0.05)
        return carry | {"z": z, "sum": carry["sum"] + g}

    def finish(self, sent: Any, carry: Any) -> Reply[Any]:
        c_new = (1 / 3) * carry["sum"]
        carry["calls"] += 1  # in place, on what it was given: nobody else may notice
        upload = {"z": carry["z"], "c": c_new - carry["c_i"], "calls": carry["calls"]}
        return Reply(upload, (c_new, carry["calls"]))

    def absorb(self, state: Any, mean: Any, accepted: int) -> Any:
        return {"z": mean["z"], "c": state["c"] + (accepted / 8) * mean["c"]}


@dataclass(frozen=True)
class Remembering(Algorithm[Any]):
    """Clients with memory, under partial participation."""

    S: int = 4

    def init(self, z: Point) -> Any:
        return {"z": z, "c": z.zeros_like()}

    def phases(self, t: int) -> tuple[Controlled]:
        return (Controlled(Uniform(self.S), LocalSteps(3, 2)),)

    def point(self, state: Any) -> Point:
        point: Point = state["z"]
        return point


@dataclass(frozen=True)
class ThreePasses(Phase[Any, Any, Any, Any]):
    """Descent ascent on minibatches, then larger steps on larger ones, then the exact gradient there."""

    cohort: Uniform
    name = "update"

    @property
    def passes(self) -> tuple[Pass[Any, Any], ...]:
        small, large = LocalSteps(3, 2), LocalSteps(2, 3)
        return Pass(small, self.stepping(0.01)), Pass(large, self.stepping(0.1), 2.0), Pass(WholeShard(), self.look)

    def sends(self, state: Point) -> Point:
        return state

    def start(self, sent: Point, memory: None) -> tuple[Point, Point]:
        return sent, sent.zeros_like()

    def stepping(self, eta: float) -> Any:
        def step(problem: Problem, sent: Point, carry: tuple[Point, Point], batch: Batch) -> tuple[Point, Point]:
            z, g = carry
            return z.descent_ascent(problem.gradient(z, batch), eta, eta), g

        return step

    def look(self, problem: Problem, sent: Point, carry: tuple[Point, Point], batch: Batch) -> tuple[Point, Point]:
        z, g = carry
        return z, g + problem.gradient(z, batch)

    def finish(self, sent: Point, carry: tuple[Point, Point]) -> Reply[tuple[Point, Point]]:
        return Reply(carry)

    def absorb(self, state: Point, mean: tuple[Point, Point], accepted: int) -> Point:
        return mean[0]


@dataclass(frozen=True)
class SeveralPasses(Algorithm[Point]):
    """A phase of three passes a round."""

    S: int = 4

    def init(self, z: Point) -> Point:
        return z

    def phases(self, t: int) -> tuple[ThreePasses]:
        return (ThreePasses(Uniform(self.S)),)

    def point(self, state: Point) -> Point:
        return state


@dataclass(frozen=True)
class AloneAt(LocalUpdate[Point, Point, Point, tuple[()]]):
    """Local steps of each client's own point, of which the server hears nothing; without steps, what that point is."""

    remembers = True

    def sends(self, state: Point) -> Point:
        return state

    def start(self, sent: Point, memory: Point | None) -> Point:
        return sent if memory is None else memory

    def step(self, problem: Problem, sent: Point, z: Point, batch: Batch) -> Point:
        return z.descent_ascent(problem.gradient(z, batch), 0.1, 0.1)

    def finish(self, sent: Point, z: Point) -> Reply[tuple[()]]:
        return Reply((), z)

    def absorb(self, state: Point, mean: tuple[()], accepted: int) -> Point:
        return state


class OwnPoint(SharedModel):
    """The client's own point, where it has one."""

    def start(self, sent: Point, memory: Point | None) -> Point:
        return sent if memory is None else memory


@dataclass(frozen=True)
class Alone(Algorithm[Point]):
    """Clients that train for themselves."""

    S: int = 4
    personal = True

    def init(self, z: Point) -> Point:
        return z

    def phases(self, t: int) -> tuple[AloneAt]:
        return (AloneAt(Uniform(self.S), LocalSteps(3, 4)),)

    def point(self, state: Point) -> Point:
        return state

    def personal_model(self, state: Point) -> OwnPoint:
        return OwnPoint(Same(), self)


@dataclass(frozen=True, kw_only=True)
class FloatDigits(Digits):
    """The digits in float32."""

    def read(self, seed: int) -> Splits:
        splits = super().read(seed)
        train, test = (Table(t.features.astype(np.float32), t.labels) for t in (splits.train, splits.test))
        return replace(splits, train=train, test=test)


class Coder(nn.Module):
    """A small perceptron whose extractor gives codes of four numbers, with their spreads, and a head of these."""

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.extractor = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 8))
        self.head = nn.Linear(4, outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.extractor(inputs)[..., :4])  # type: ignore[no-any-return]


class TwoPart(nn.Module):
    """A small perceptron with an extractor and a head."""

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.extractor = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 8), nn.Tanh())
        self.head = nn.Linear(8, outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.extractor(inputs))  # type: ignore[no-any-return]


class HeadFirst(TwoPart):
    """The same, with the head's weights first."""

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__(shape, outputs)
        extractor = self.extractor
        del self.extractor
        self.extractor = extractor


class ThreeParts(TwoPart):
    """With weights that are of neither part."""

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__(shape, outputs)
        self.scale = nn.Parameter(torch.ones(1))


class Vandal(Controlled):
    """Writes into everything it is sent and given."""

    name = "update"
    remembers = False

    def step(self, problem: Problem, sent: Any, carry: Any, batch: Batch) -> Any:
        g = problem.gradient(carry["z"], batch)
        carry["z"].x.sub_(0.05 * g.x)
        carry["z"].y.add_(0.05 * g.y)
        batch.inputs.zero_()
        sent["c"].x.fill_(torch.nan)
        return carry

    def finish(self, sent: Any, carry: Any) -> Reply[Any]:
        return Reply({"z": carry["z"], "c": carry["z"].zeros_like()})


@dataclass(frozen=True)
class InPlace(Remembering):
    """CD-MA with K = 3 and batches of 2, by in-place updates."""

    def phases(self, t: int) -> tuple[Controlled]:
        return (Vandal(Uniform(self.S), LocalSteps(3, 2)),)


@dataclass(frozen=True, kw_only=True)
class Faulty(Quadratic):
    """A problem whose code fails on some rows, as a bug would: those with a coefficient of `limit` or more."""

    limit: float = 1e6

    def value(self, z: Point, batch: Batch) -> Tensor:
        if bool((batch.inputs.abs() >= self.limit).any()):
            raise ValueError("a row I did not expect")
        return super().value(z, batch)


@dataclass(frozen=True, kw_only=True)
class InnerStep(Composed, Quadratic):
    """f(g(x), y) of the quadratic f, with g(x) = x - rho (A x + a): a step on what of f is in x alone."""

    rho: float = 0.3

    def composed(
        self, z: Point, h: Tensor, alpha: float, inner: Batch, outer: Batch, shrink: float = 1.0
    ) -> tuple[Tensor, Point]:
        def g_of(x: Tensor) -> Tensor:
            return x - shrink * self.rho * self.gradient(Point(x, torch.zeros_like(z.y)), inner).x

        g, back = torch.func.vjp(g_of, z.x)
        h = (1 - alpha) * h + alpha * g.detach()
        q = self.gradient(Point(h, z.y), outer)
        (g_x,) = back(q.x)
        return h, Point(g_x.detach(), q.y)


@dataclass(frozen=True, kw_only=True)
class Measured(Quadratic):
    """A problem with a metric of NumPy's own type."""

    def metrics(self, z: Point, outputs: NDArray[np.float64], labels: NDArray[np.int64]) -> Mapping[str, float | None]:
        return {**super().metrics(z, outputs, labels), "half": np.float32(0.5)}


@dataclass(frozen=True, kw_only=True)
class Slow(Quadratic):
    """A problem whose gradient takes a while."""

    seconds: float

    def value(self, z: Point, batch: Batch) -> Tensor:
        time.sleep(self.seconds)
        return super().value(z, batch)


@dataclass(frozen=True, kw_only=True)
class Deadly(Quadratic):
    """A problem whose gradient takes its process with it, as a fault in native code would."""

    def value(self, z: Point, batch: Batch) -> Tensor:
        os.kill(os.getpid(), signal.SIGKILL)
        return super().value(z, batch)


class Normalised(nn.Sequential):
    """A network in which the rows of a batch depend on each other."""

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        hidden = nn.Linear(math.prod(shape), 6)
        super().__init__(
            nn.Flatten(), hidden, nn.BatchNorm1d(6, track_running_stats=False), nn.Tanh(), nn.Linear(6, outputs)
        )


class TinyGAN(nn.Module):
    """A generator with BatchNorm and a discriminator for 8 x 8 images."""

    def __init__(self, shape: tuple[int, ...], outputs: int, noise: int = 3) -> None:
        super().__init__()
        self.noise = noise
        self.generator = nn.Sequential(
            nn.Linear(noise, 6), nn.BatchNorm1d(6, track_running_stats=False), nn.Tanh(),
            nn.Linear(6, math.prod(shape)), nn.Tanh(), nn.Unflatten(1, shape),
        )  # fmt: skip
        self.discriminator = nn.Sequential(
            nn.Flatten(), nn.Linear(math.prod(shape), 5), nn.LeakyReLU(0.1), nn.Linear(5, outputs)
        )


class Convolutional(nn.Sequential):
    """A convolution of images, and a linear layer."""

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        side = shape[1] - 2
        super().__init__(nn.Conv2d(shape[0], 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(2 * side * side, outputs))
