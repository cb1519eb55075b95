"""What every program of a comparison is given, and how it is told to play a round.

The task is an .npz file; a program reads round numbers from standard input, one a line, plays that round and answers
with its milliseconds; after the last it writes the final weights beside the task.

Legend: R rows, N clients, T rounds, S clients a round, K local steps, B rows of a minibatch, D weights.
"""

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn


class MLP(nn.Sequential):
    """784-200-200-10."""

    def __init__(self, shape: tuple[int, ...] = (1, 28, 28), outputs: int = 10) -> None:
        super().__init__(
            nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, outputs)
        )


class LeNet5(nn.Sequential):
    """LeNet5 with padding, 61,706 weights."""

    def __init__(self, shape: tuple[int, ...] = (1, 28, 28), outputs: int = 10) -> None:
        super().__init__(
            nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, outputs),
        )  # fmt: skip


MODELS = {"mlp": MLP, "lenet5": LeNet5}


@dataclass(frozen=True)
class Task:
    """Attributes:
    path: of the file; the final weights go to `<path>.<program>.npy`.
    model: "mlp" or "lenet5".
    eta: step size.
    features: (R, 1, 28, 28) float32, sorted by client.
    labels: (R,) int64.
    offsets: (N + 1,) client i has rows offsets[i] to offsets[i + 1] - 1.
    cohorts: (T, S) clients of each round.
    rows: (T, S, K, B) their minibatches, as row numbers of `features`.
    second, second_rows: the same for the second phase of a round, which one-phase work lacks (T, 0).
    start: (D,) initial weights, parameter by parameter.
    """

    path: Path
    model: str
    eta: float
    features: Tensor
    labels: Tensor
    offsets: np.ndarray
    cohorts: np.ndarray
    rows: np.ndarray
    second: np.ndarray
    second_rows: np.ndarray
    start: Tensor

    @classmethod
    def load(cls, path: str) -> "Task":
        with np.load(path) as file:
            arrays = dict(file)
        tensors = {name: torch.from_numpy(arrays.pop(name)) for name in ("features", "labels", "start")}
        return cls(Path(path), str(arrays.pop("model")), float(arrays.pop("eta")), **tensors, **arrays)

    def network(self) -> nn.Module:
        """A module with the initial weights."""
        module = MODELS[self.model]()
        put(module, self.start)
        return module

    def save(self, program: str, weights: Tensor) -> None:
        """Writes the final weights."""
        np.save(f"{self.path}.{program}.npy", weights.detach().numpy())


def put(module: nn.Module, weights: Tensor) -> None:
    """Copies flat weights into a module."""
    with torch.no_grad():
        for p, piece in zip(module.parameters(), weights.split([p.numel() for p in module.parameters()]), strict=True):
            p.copy_(piece.view_as(p))


def taken(module: nn.Module) -> Tensor:
    """A copy of a module's weights, flat."""
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


class Turns:
    """Rounds as they are asked for. Standard output is kept for the answers; whatever else is printed goes to error."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._started = 0.0
        self._say("ready")

    def wait(self) -> int | None:
        """The round to be played now; None when there is none left."""
        line = sys.stdin.readline().strip()
        self._started = time.perf_counter()
        return int(line) if line else None

    def done(self) -> None:
        """The round has been played."""
        self._say(f"{1e3 * (time.perf_counter() - self._started):.3f}")

    def _say(self, word: str) -> None:
        self._answers.write(word + "\n")
        self._answers.flush()
