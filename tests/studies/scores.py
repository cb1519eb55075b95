"""What the scores of generated images are worth: those of real images and of noise, by the same classifier.

python -m tests.studies.scores CONFIG

For a configuration of the problem `gan`: the classifier's accuracy, and Inception score and FID of the test images and
of as many images of uniform noise. The first time it trains the classifier, as a run would.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from cluster.config import load_config
from cluster.experiment import Experiment
from raysim.inception import FEATURES, Gaussian, inception_score
from raysim.problems import GAN


def main() -> None:
    """Prints a line for each kind of image."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    made = Experiment.build(load_config(parser.parse_args().config)).prepared(print)
    assert isinstance(made.problem, GAN)
    classifier = made.problem.classifier
    assert classifier is not None
    real = made.shards.inputs(np.arange(len(made.shards.test)), "test")
    noise = 2 * torch.rand(real.shape, generator=torch.Generator().manual_seed(0)) - 1
    print(f"classifier: accuracy {classifier.accuracy:.4f}")  # noqa: T201 - a command
    for name, images in (("test images", real), ("noise", noise)):
        judged = classifier.judge(images).double().numpy()
        mean, std = inception_score(judged[:, :-FEATURES], made.problem.score_splits)
        fid = classifier.real.distance(Gaussian.of(judged[:, -FEATURES:]))
        print(f"{name}: Inception score {mean:.3f} +- {std:.3f}, FID {fid:.2f}")  # noqa: T201


if __name__ == "__main__":
    main()
