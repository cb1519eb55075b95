"""Federated averaging and CD-MAGE as a plain PyTorch loop: one client after another, autograd, in-place steps.

python -m tests.benchmarks.peers.plain TASK.npz
"""

import sys

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.benchmarks.peers.task import Task, Turns, put, taken


def averaged(task: Task, t: int, z: Tensor, net: nn.Module) -> Tensor:
    """A round of federated averaging."""
    sgd = torch.optim.SGD(net.parameters(), task.eta)
    total = torch.zeros_like(z)
    for batches in task.rows[t]:
        put(net, z)
        for rows in batches:
            sgd.zero_grad()
            F.cross_entropy(net(task.features[rows]), task.labels[rows]).backward()
            sgd.step()
        total += taken(net)
    return total / len(task.cohorts[t])


def auc(task: Task, net: nn.Module, scalars: Tensor, rows: slice | object) -> Tensor:
    """The AUC loss of class 0 against the rest at (network, s1, s2, y), p = 0.1."""
    h = torch.softmax(net(task.features[rows]), dim=1)[:, 1]
    positive = (task.labels[rows] == 0).float()
    s1, s2, y = scalars
    p = 0.1
    f = (1 - p) * (h - s1) ** 2 * positive + p * (h - s2) ** 2 * (1 - positive)
    f = f + 2 * (1 + y) * (p * h * (1 - positive) - (1 - p) * h * positive) - p * (1 - p) * y**2
    return f.mean()


def mage(task: Task, t: int, z: Tensor, net: nn.Module, anchor: nn.Module) -> Tensor:
    """A round of CD-MAGE: z is the weights, s1, s2 and y."""

    def gradient(module: nn.Module, scalars: Tensor, rows: slice | object) -> list[Tensor]:
        scalars = scalars.detach().requires_grad_()
        return list(torch.autograd.grad(auc(task, module, scalars, rows), [*module.parameters(), scalars]))

    put(net, z[:-3])
    put(anchor, z[:-3])
    u = [torch.zeros_like(g) for g in [*net.parameters(), z[-3:]]]
    for client in task.cohorts[t]:
        rows = slice(task.offsets[client], task.offsets[client + 1])
        for total, g in zip(u, gradient(net, z[-3:], rows), strict=True):
            total += g / len(task.cohorts[t])
    mean = torch.zeros_like(z)
    for batches in task.second_rows[t]:
        put(net, z[:-3])
        scalars = z[-3:].clone()
        for rows in batches:
            here, there = gradient(net, scalars, rows), gradient(anchor, z[-3:], rows)
            with torch.no_grad():
                for p, a, b, c in zip([*net.parameters(), scalars], here, there, u, strict=True):
                    d = a - b + c
                    if p is scalars:
                        d[-1] = -d[-1]  # y ascends
                    p -= task.eta * d
        mean += torch.cat((taken(net), scalars)) / len(task.second[t])
    return mean


def main() -> None:
    task = Task.load(sys.argv[1])
    two_phases = task.second.shape[1] > 0
    turns, net, anchor = Turns(), task.network(), task.network()
    z = torch.cat((task.start, torch.zeros(3))) if two_phases else task.start
    while (t := turns.wait()) is not None:
        z = mage(task, t, z, net, anchor) if two_phases else averaged(task, t, z, net)
        turns.done()
    task.save("plain", z)


if __name__ == "__main__":
    main()
