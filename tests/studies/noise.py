"""What the noise of local differential privacy leaves of a server's step, beside what is predicted of it.

    python -m tests.studies.noise CONFIG ... [--rounds 10]

Each configuration, of a private method whose clients send one vector, is played for some rounds with as good as no
noise. What all clients would send in the next one is then made private with one epsilon after another, by the code that
does it in runs. Predicted is the norm of the mean of M clients' noise in d numbers, sigma sqrt(d / M). Where that is
far above the norm that the server clips to, the step is as long as the clip lets it be, and next to nothing of its
direction is the mean's: the cosine of the two means is about norm / noise.
"""

import argparse
import math
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from clients.engine import LoopEngine
from cluster.config import load_config
from cluster.experiment import Experiment
from raysim.exchange import Order
from tests import play

EPSILONS = (1.0, 10.0, 100.0, 1000.0, 10000.0)
NO_NOISE = 1e12
HEAD = (
    "| method | epsilon | sigma | mean's norm | noise's norm | predicted | cosine | server's step | without noise |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


def lines(config: Path, rounds: int) -> Iterator[str]:
    """The table's, of one configuration."""
    made = Experiment.build(load_config(config, ["clients.engine=loop", f"algorithm.privacy.epsilon={NO_NOISE}"]))
    engine = made.engine()
    assert isinstance(engine, LoopEngine)
    with tempfile.TemporaryDirectory() as folder:
        server = play.server(made, Path(folder))
        for t in range(rounds):
            server.play(t)
    algorithm, planner = server.job.algorithm, server.job.planner
    (phase,) = algorithm.phases(rounds)
    assert phase.privacy is not None
    order = Order(rounds, phase, phase.sends(server.state))
    blocks = planner.blocks(phase.works, rounds, phase.name, planner.population)
    uploads = torch.stack([reply.upload for block in blocks for reply in engine.replies(order, block, server.memory)])
    keys_C = np.concatenate([block.keys_C for block in blocks])
    mean, M = uploads.mean(0), len(uploads)

    def step(mean: Tensor) -> float:
        return norm(algorithm.point(phase.absorb(server.state, mean, M)).x - server.point.x)

    for epsilon in EPSILONS:
        privacy = replace(phase.privacy, epsilon=epsilon)
        noisy = privacy.released([uploads], keys_C)[0].mean(0)
        predicted = privacy.sigma * math.sqrt(mean.numel() / M)
        numbers = (epsilon, privacy.sigma, norm(mean), norm(noisy - mean), predicted)
        cosine = float(torch.cosine_similarity(noisy, mean, 0))
        cells = [*(f"{number:.4g}" for number in numbers), f"{cosine:.4f}", f"{step(noisy):.3g}", f"{step(mean):.3g}"]
        yield f"| {made.config.name} | " + " | ".join(cells) + " |"


def norm(g: Tensor) -> float:
    return float(torch.linalg.vector_norm(g))


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configs", type=Path, nargs="+", metavar="CONFIG")
    parser.add_argument("--rounds", type=int, default=10)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(HEAD)  # noqa: T201 - a command
    for config in asked.configs:
        for line in lines(config, asked.rounds):
            print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
