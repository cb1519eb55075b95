"""How far FedCR's codes are from the distributions of their classes, both ways round, beside the cross-entropy.

    python -m tests.studies.divergence RUN ...

Of each run's last checkpoint: means over all clients' training rows, with each client's own head and the extractor and
distributions that the next round begins with. The local objective is the cross-entropy plus beta (`weight`) times one
of the divergences.
"""

import argparse
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from clients.engine import LoopEngine
from cluster.config import load_config
from cluster.experiment import Experiment
from raysim.algorithms.fedcr import FedCR, Update, divergence
from raysim.batch import Batch
from raysim.exchange import Order
from raysim.phase import Pass, Reply, WholeShard
from raysim.problems.problem import Problem
from raysim.problems.stochastic import StochasticClassification

HEAD = (
    "| run | rounds | deviation of codes | of distributions | cross-entropy | KL(q, r) | KL(r, q) |\n"
    "|---|---|---|---|---|---|---|"
)


class Seen(NamedTuple):
    """A client's model, and its means so far: deviations of codes and of distributions, cross-entropy, divergences."""

    u: Tensor
    v: Tensor
    means_5: Tensor


@dataclass(frozen=True)
class Divergences(Update):
    """A look at the codes in the place of steps."""

    @property
    def passes(self) -> tuple[Pass[Any, Any], ...]:
        return (Pass(WholeShard(self.steps.batch), self.look),)

    def start(self, sent: Any, memory: Any) -> Any:
        return Seen(*self.model(sent, memory), torch.zeros(5))

    def look(self, problem: Problem, sent: Any, carry: Any, batch: Batch) -> Any:
        assert isinstance(problem, StochasticClassification)
        own = problem.encoded(problem.features(carry.u, batch))
        given = (sent.prior.mean_Cd[batch.labels], sent.prior.std_Cd[batch.labels])
        risk = problem.risk(carry.v, *own, batch)
        by_row = (own[1].mean(-1), given[1].mean(-1), divergence(*own, *given), divergence(*given, *own))
        code, of_class, forward, backward = (batch.weights @ one for one in by_row)
        return carry._replace(means_5=carry.means_5 + torch.stack((code, of_class, risk, forward, backward)))

    def finish(self, sent: Any, carry: Any) -> Reply[Any]:
        return Reply(carry.means_5)


def line(folder: Path) -> str:
    """The table's, of one run."""
    made = Experiment.build(load_config(folder / "config.yaml", ["clients.engine=loop"]))
    engine, algorithm = made.engine(), made.algorithm
    assert isinstance(engine, LoopEngine)
    assert isinstance(algorithm, FedCR)
    standing, _ = made.checkpoints(folder).load()
    t, planner = standing.rounds, made.job(folder).planner
    trained = algorithm.training(t)
    phase = Divergences(**{each.name: getattr(trained, each.name) for each in fields(trained)})
    order = Order(t, phase, phase.sends(standing.state))
    blocks = planner.blocks(phase.works, t, phase.name, planner.population)
    with torch.no_grad():
        replies = [reply for block in blocks for reply in engine.replies(order, block, standing.memory)]
    means = torch.stack([reply.upload for reply in replies]).mean(0).tolist()
    return f"| {folder.name} | {t} | " + " | ".join(f"{mean:.3g}" for mean in means) + " |"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(HEAD)  # noqa: T201 - a command
    for folder in asked.runs:
        print(line(folder), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
