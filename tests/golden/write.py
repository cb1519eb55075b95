"""Writes the golden trajectories anew, after a change that is meant to alter them."""

import json
import tempfile
from pathlib import Path

import torch

from tests.contracts.table import TABLE, settings
from tests.play import QUADRATIC, experiment, trajectory


def main() -> None:
    gold = {}
    for name in TABLE:
        with tempfile.TemporaryDirectory() as folder:
            z = trajectory(experiment(QUADRATIC, settings(name)), Path(folder), 3)[-1]
        gold[name] = torch.cat((z.x, z.y)).tolist()
    (Path(__file__).parent / "quadratic.json").write_text(json.dumps(gold, indent=1) + "\n")


if __name__ == "__main__":
    main()
