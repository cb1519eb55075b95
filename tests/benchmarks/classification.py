"""Plain classification by cross-entropy, a minimisation, for comparison with simulators that know nothing else."""

from collections.abc import Mapping
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from pydantic.dataclasses import dataclass as record
from torch import Tensor

from raysim.batch import Batch
from raysim.models import Network, NetworkFactory
from raysim.point import Point
from raysim.problems import DataSpec, NetworkProblem
from raysim.registry import STRICT


@record(frozen=True, kw_only=True, config=STRICT)
class Classification(NetworkProblem):
    """x: weights; y: nothing."""

    network: NetworkFactory
    data: DataSpec

    headline: ClassVar[str] = "loss"
    higher_is_better: ClassVar[bool] = False

    @cached_property
    def net(self) -> Network:
        return self.network(self.data.classes)

    def init(self, seed: int) -> Point:
        return Point(self.net.init(seed), torch.zeros(0))

    def loss(self, outputs: Tensor, rest: Tensor, y: Tensor, batch: Batch) -> Tensor:
        own = torch.log_softmax(outputs, dim=-1).gather(-1, batch.labels[..., None]).squeeze(-1)
        return -(batch.weights * own).sum(-1)

    def outputs(self, z: Point, inputs: Tensor) -> Tensor:
        return self.net(z.x, inputs)

    def metrics(self, z: Point, outputs: NDArray[np.float64], labels: NDArray[np.int64]) -> Mapping[str, float]:
        return {"loss": float(F.cross_entropy(torch.from_numpy(outputs), torch.from_numpy(labels)))}
