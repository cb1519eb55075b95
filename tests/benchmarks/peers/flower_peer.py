"""Federated averaging in Flower: a ClientApp, a ServerApp with its FedAvg, the Ray backend; no evaluation.

    python -m tests.benchmarks.peers.flower_peer TASK.npz [workers]

A supernode is a place in the cohort: its partition of round t is client `cohorts[t, partition-id]`.
"""

import logging
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn

from tests.benchmarks.peers.task import Task, Turns, taken

client = ClientApp()


@cache
def loaded(path: str) -> tuple[Task, nn.Module]:
    """The task and a network, once a process."""
    torch.set_num_threads(1)
    task = Task.load(path)
    return task, task.network()


@client.train()
def train(message: Message, context: Context) -> Message:
    """A client's part of a round."""
    config = message.content.config_records["config"]
    task, net = loaded(config["task"])
    net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    sgd = torch.optim.SGD(net.parameters(), task.eta)
    for rows in task.rows[config["turn"], context.node_config["partition-id"]]:
        sgd.zero_grad()
        F.cross_entropy(net(task.features[rows]), task.labels[rows]).backward()
        sgd.step()
    weight = MetricRecord({"num-examples": 1})  # all clients weigh the same
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": weight}), reply_to=message)


class Averaging(FedAvg):
    """Federated averaging, a round whenever one is asked for; EOFError ends it."""

    def __init__(self, turns: Turns, clients: int, arrays: ArrayRecord) -> None:
        super().__init__(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients)
        self._turns = turns
        self.arrays = arrays

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        t = self._turns.wait()
        if t is None:
            raise EOFError
        config["turn"] = t
        messages: Iterable[Message] = super().configure_train(server_round, arrays, config, grid)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        arrays, metrics = super().aggregate_train(server_round, replies)
        if arrays is None or len(replies) < self.min_train_nodes or any(reply.has_error() for reply in replies):
            raise RuntimeError("a client failed")
        self.arrays = arrays
        self._turns.done()
        return arrays, metrics


def main() -> None:
    logging.getLogger("flwr").setLevel(logging.ERROR)
    task = Task.load(sys.argv[1])
    workers = int(sys.argv[2]) if len(sys.argv) > 2 else 2
    clients = task.cohorts.shape[1]
    net = task.network()
    turns = Turns()
    server = ServerApp()

    @server.main()
    def play(grid: Grid, context: Context) -> None:
        config = ConfigRecord({"task": str(Path(sys.argv[1]).resolve())})
        strategy = Averaging(turns, clients, ArrayRecord(net.state_dict()))
        with suppress(EOFError):
            strategy.start(grid, strategy.arrays, sys.maxsize, train_config=config)
        net.load_state_dict(strategy.arrays.to_torch_state_dict())

    run_simulation(
        server,
        client,
        num_supernodes=clients,
        backend_config={
            "init_args": {"address": "local", "num_cpus": workers, "log_to_driver": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
    task.save("flower", taken(net))


if __name__ == "__main__":
    from tests.benchmarks.peers import flower_peer  # the apps go to Ray's processes by this name, not as __main__

    flower_peer.main()
