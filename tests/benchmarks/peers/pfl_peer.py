"""Federated averaging in pfl: its algorithm, its simulated backend, its PyTorch model; one process, no evaluation.

python -m tests.benchmarks.peers.pfl_peer TASK.npz
"""

import os
import sys
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.internal.ops.pytorch_ops import distributed
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

from tests.benchmarks.peers.task import Task, Turns, taken


class Classifier(nn.Module):
    """A network with the two methods that pfl calls."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def loss(self, features: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.net(features), labels)

    def metrics(self, *batch: Tensor) -> dict[str, Any]:
        """None: pfl evaluates in its first iteration whatever the frequency."""
        return {}


class Cohorts:
    """A user sampler that draws the clients of the task's rounds; a user is (round, place in its cohort)."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._users: Iterator[tuple[int, int]] = iter(())

    def turn(self, t: int) -> None:
        """Clients of round t come next."""
        self._users = ((t, s) for s in range(self.size))

    def __call__(self) -> tuple[int, int]:
        return next(self._users)


class Averaging(FederatedAveraging):
    """Federated averaging, an iteration whenever a round is asked for."""

    def __init__(self, turns: Turns | None, cohorts: Cohorts) -> None:
        super().__init__()
        self._turns = turns
        self._cohorts = cohorts

    def get_next_central_contexts(self, model: PyTorchModel, *args: Any) -> tuple[Any, PyTorchModel, Metrics]:
        t = self._turns.wait() if self._turns else 0
        (told,) = distributed.all_reduce([torch.tensor(-1 if t is None else t)])
        if told < 0:
            return None, model, Metrics()
        self._cohorts.turn(int(told))
        contexts: tuple[Any, PyTorchModel, Metrics] = super().get_next_central_contexts(model, *args)
        return contexts

    def process_aggregated_statistics(self, *args: Any) -> tuple[PyTorchModel, Metrics]:
        updated: tuple[PyTorchModel, Metrics] = super().process_aggregated_statistics(*args)
        if self._turns:
            self._turns.done()
        return updated


def main() -> None:
    os.environ["PFL_PYTORCH_DEVICE"] = "cpu"  # else pfl looks for an accelerator at every batch
    torch.set_num_threads(1)
    first = distributed.global_rank == 0
    task = Task.load(sys.argv[1])
    _, clients, _, batch = task.rows.shape

    def dataset(user: tuple[int, int]) -> PyTorchTensorDataset:
        rows = task.rows[user].reshape(-1)  # cut into batches again by pfl, in order
        return PyTorchTensorDataset((task.features[rows], task.labels[rows]))

    cohorts = Cohorts(clients)
    users = FederatedDataset(dataset, cohorts)
    module = Classifier(task.network())
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), 1.0))
    Averaging(Turns() if first else None, cohorts).run(
        NNAlgorithmParams(
            central_num_iterations=sys.maxsize,
            evaluation_frequency=sys.maxsize,
            train_cohort_size=clients,
            val_cohort_size=None,
        ),
        SimulatedBackend(training_data=users, val_data=users),
        model,
        NNTrainHyperParams(local_batch_size=batch, local_num_epochs=1, local_learning_rate=task.eta),
        send_metrics_to_platform=False,
    )
    if first:
        task.save("pfl", taken(module))


if __name__ == "__main__":
    main()
