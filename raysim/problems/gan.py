"""Generative adversarial networks: a generator against a discriminator.

I. Goodfellow et al., "Generative adversarial nets", NeurIPS 2014; as federated problem J. Xie et al., "Efficient
cross-device federated learning algorithms for minimax problems", 2021, https://arxiv.org/abs/2105.14216v2, section 5.3:

    f(x, y) = E log D_y(a) + E log(1 - D_y(G_x(w))),    a real, w uniform on [-1, 1]^noise

| symbol | name | meaning |
|---|---|---|
| x | z.x | the generator's weights |
| y | z.y | the discriminator's weights; D_y is the sigmoid of its output |
| w | batch.noise | part of the minibatch: gradients at two points see the same noise |

The generator descends -E log D_y(G_x(w)) instead of f by default, as in Goodfellow et al., section 3, and the CD-MAGE
authors' code. Then the pair of gradients is not the gradient of one function; its fixed points are f's.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import PositiveInt
from pydantic.dataclasses import dataclass as record
from torch import Tensor
from torch.nn.functional import softplus

from raysim import draws
from raysim.batch import Batch
from raysim.data import Shards
from raysim.errors import ConfigError
from raysim.inception import FEATURES, Classifier, Gaussian, inception_score
from raysim.models.network import Network, NetworkFactory
from raysim.point import Point
from raysim.problems.abilities import HasFigures, HasNetworks, Named, Prepared, ScoredByRow
from raysim.problems.problem import Problem
from raysim.registry import STRICT

# Images that are generated together in evaluation: BatchNorm makes each depend on the others.
TOGETHER = 100


@record(frozen=True, kw_only=True, config=STRICT)
class GAN(HasNetworks, ScoredByRow, HasFigures, Named, Prepared, Problem):
    """A generator of images against a discriminator (x: generator, y: discriminator), scored by a classifier.

    Evaluation generates as many images as a split has rows. The Inception score's classifier is trained on the real
    images before the first run and kept.

    Attributes:
        saturating: the generator descends f itself, log(1 - D(G(w))), instead of -log D(G(w)).
        classifier_epochs: epochs in which the classifier is trained on the training images.
        score_splits: number of disjoint parts of the generated images, whose Inception scores are averaged.
        classifier: supplied by the simulator.
    """

    network: NetworkFactory
    saturating: bool = False
    classifier_epochs: PositiveInt = 10
    score_splits: PositiveInt = 10
    classifier: Classifier | None = None

    headline: ClassVar[str] = "inception_score"

    def __post_init__(self) -> None:
        _ = self.generator.size, self.discriminator.size, self.noise

    @cached_property
    def generator(self) -> Network:
        """The network from noise (B, noise) to images."""
        return self.network(1, "generator")

    @cached_property
    def discriminator(self) -> Network:
        """The network from images to logits (B, 1)."""
        return self.network(1, "discriminator")

    @property
    def networks(self) -> tuple[Network, ...]:
        return self.generator, self.discriminator

    @cached_property
    def noise(self) -> int:
        noise = getattr(self.network.module(1), "noise", None)
        if not isinstance(noise, int) or noise < 1:
            raise ConfigError(
                "model.name", f"{self.network.name!r} must say in `noise` how many numbers it makes one of"
            )
        return noise

    def init(self, seed: int) -> Point:
        return Point(self.generator.init(seed), self.discriminator.init(seed))

    def value(self, z: Point, batch: Batch) -> Tensor:
        """Returns f of the module's docstring, on the batch's rows and noise."""
        real, generated = self._logits(z.y, batch.inputs), self._logits(z.y, self.generated(z.x, batch.noise))
        # log sigmoid(a) = -softplus(-a), log(1 - sigmoid(a)) = -softplus(a)
        return -(batch.weights * (softplus(-real) + softplus(generated))).sum()

    def gradient(self, z: Point, batch: Batch) -> Point:
        if self.saturating:
            return super().gradient(z, batch)
        images, back = torch.func.vjp(lambda x: self.generated(x, batch.noise), z.x)  # type: ignore[misc]

        def discriminator_value(y: Tensor) -> Tensor:
            real, generated = self._logits(y, batch.inputs), self._logits(y, images)
            return -(batch.weights * (softplus(-real) + softplus(generated))).sum()

        def generator_loss(images: Tensor) -> Tensor:
            return (batch.weights * softplus(-self._logits(z.y, images))).sum()

        (g_x,) = back(torch.func.grad(generator_loss)(images))
        return Point(g_x, torch.func.grad(discriminator_value)(z.y))

    def generated(self, x: Tensor, noise: Tensor) -> Tensor:
        """Generates images (B, *shape) from noise (B, noise) that is uniform on [0, 1)."""
        return self.generator(x, 2 * noise - 1)

    def outputs(self, z: Point, batch: Batch) -> Tensor:
        """Returns the classifier's log-probabilities, then features, of an image generated for each row, (B, C + F)."""
        assert self.classifier is not None
        images = [self.generated(z.x, noise) for noise in batch.noise.split(TOGETHER)]
        return self.classifier.judge(torch.cat(images))

    def metrics(self, z: Point, outputs: NDArray[np.float64], labels: NDArray[np.int64]) -> Mapping[str, float | None]:
        """Returns the scores of the generated images.

        `inception_score` is the mean over splits and `inception_score_std` the standard deviation. `fid` is the Frechet
        distance to the real training images, and `share_c` the share of images that the classifier takes for class c.
        """
        assert self.classifier is not None
        log_p, features = outputs[:, :-FEATURES], outputs[:, -FEATURES:]
        mean, std = inception_score(log_p, self.score_splits)
        shares = np.bincount(log_p.argmax(axis=1), minlength=log_p.shape[1]) / len(log_p)
        return {
            "inception_score": mean,
            "inception_score_std": std,
            "fid": self.classifier.real.distance(Gaussian.of(features)),
            **{f"share_{c}": float(share) for c, share in enumerate(shares)},
        }

    def pictures(self, z: Point) -> Mapping[str, Tensor]:
        """Returns `samples`: images generated from the same noise each time."""
        rows, numbers = np.arange(TOGETHER)[:, None], np.arange(self.noise)
        noise = torch.from_numpy(draws.uniform(0, "pictures", rows, numbers)).to(z.x.dtype)
        return {"samples": (self.generated(z.x, noise) + 1) / 2}

    def prepared(self, shards: Shards, cache: Path, report: Callable[[str], None]) -> "GAN":
        if len(shards.test) and len(shards.test) < self.score_splits:
            raise ConfigError("problem.score_splits", f"there are {len(shards.test)} test rows to be split")
        classifier = Classifier.trained(shards, self.classifier_epochs, cache, report)
        return replace(self, classifier=classifier)

    @property
    def files(self) -> tuple[Path, ...]:
        return () if self.classifier is None else (self.classifier.path,)

    def parts(self, z: Point) -> Mapping[str, Tensor]:
        named = {"generator": self.generator.unflatten(z.x), "discriminator": self.discriminator.unflatten(z.y)}
        return {f"{part}.{name}": w for part, weights in named.items() for name, w in weights.items()}

    def _logits(self, y: Tensor, images: Tensor) -> Tensor:
        return self.discriminator(y, images)[..., 0]
