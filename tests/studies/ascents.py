"""How much the robust loss of finished runs depends on where the ascent that measures it begins.

python -m tests.studies.ascents RUN...

For each run of the problem `robust`: the test loss that evaluation finds from the run's own perturbation y (or from 0
where |y|^2 > 10, as in the CD-MAGE authors' code), and the one it finds from 0.
"""

import argparse
from pathlib import Path

import torch

from clients.fleet import InProcessFleet
from cluster.config import load_config
from cluster.experiment import Experiment
from raysim.point import Point


def main() -> None:
    """Prints a line per run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    for run in parser.parse_args().runs:
        made = Experiment.build(load_config(run / "config.yaml"))
        parts = torch.load(run / "model.pt", weights_only=True)
        y = parts.pop("perturbation").flatten()
        x = torch.cat([part.flatten() for part in parts.values()])
        pool = InProcessFleet(made.engine()).pool("test")
        words = [f"{made.config.name}: |y| = {float(y.norm()):.2f}"]
        for start, at in (("y", y), ("0", torch.zeros_like(y))):
            found = made.problem.evaluate(Point(x, at), pool)
            words.append(f"from {start}: loss {found['robust_loss']:.4f}, accuracy {found['robust_accuracy']:.4f}")
        print("; ".join(words))  # noqa: T201 - a command


if __name__ == "__main__":
    main()
