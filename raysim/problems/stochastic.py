"""Classification by random codes: the extractor gives a Gaussian for each row, and the head sees draws of it.

    min over x of E CE(head(mu(a) + sigma(a) w), b),    w standard normal

A. A. Alemi et al., "Deep variational information bottleneck", ICLR 2017, https://arxiv.org/abs/1612.00410; FedCR trains
such a model, and adds the term that makes it a bottleneck.

| symbol | name | meaning |
|---|---|---|
| x | z.x | network weights; there is no y, which has length 0 |
| mu, s | features | what the extractor gives, one after the other; sigma = log(1 + exp(s)) |
| w | batch.noise | part of the minibatch: gradients at two points see the same |
"""

import math

import torch
from pydantic import PositiveInt
from pydantic.dataclasses import dataclass as record
from torch import Tensor
from torch.nn.functional import softplus

from raysim.batch import Batch
from raysim.errors import ConfigError
from raysim.point import Point
from raysim.problems.abilities import HasCodes
from raysim.problems.classification import Classification, row_losses
from raysim.registry import STRICT

# Normal noise is cut off at the quantiles LEAST and 1 - LEAST: in single precision others may be infinite.
LEAST = 1e-7


@record(frozen=True, kw_only=True, config=STRICT)
class StochasticClassification(HasCodes, Classification):
    """Cross-entropy of classes from a random code of each row (x: network; no y).

    Attributes:
        samples: L, draws of each row's code. An evaluation takes each draw and its mirror image, and averages the
            probabilities of the classes over them.
    """

    samples: PositiveInt = 15

    def __post_init__(self) -> None:
        self._require_weights()
        if self.feature_size % 2 or not self._fits():
            raise ConfigError(
                "model.name",
                f"{self.network.name!r} is not made for codes: its extractor must give a mean and a spread for each "
                "of the numbers that its head takes; take cnn5 with `code`",
            )

    def _fits(self) -> bool:
        try:
            self.head(self.head.init(0), torch.zeros(1, self.code_size))
        except RuntimeError:
            return False
        return True

    @property
    def code_size(self) -> int:
        return self.feature_size // 2

    @property
    def noise(self) -> int:
        return self.samples * self.code_size

    def encoded(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Returns mean and standard deviation of codes, both (B, d), from features (B, 2d)."""
        mean, spread = features.split(self.code_size, -1)
        return mean, softplus(spread)

    def draws(self, mean: Tensor, std: Tensor, batch: Batch) -> Tensor:
        """Draws codes (L, B, d) from Gaussians (B, d), by the batch's noise."""
        quantiles = batch.noise.unflatten(-1, (self.samples, self.code_size)).transpose(0, 1)
        normal: Tensor = torch.special.ndtri(quantiles.clamp(LEAST, 1 - LEAST))
        return mean + std * normal

    def decoded(self, v: Tensor, codes: Tensor) -> Tensor:
        """Returns logits (..., C) of codes (..., d), with the head's weights v."""
        return self.head(v, codes)

    def logits(self, v: Tensor, features: Tensor) -> Tensor:
        """Returns the logits of the codes' means, (B, C)."""
        return self.decoded(v, self.encoded(features)[0])

    def risk(self, v: Tensor, mean: Tensor, std: Tensor, batch: Batch) -> Tensor:
        """Returns the mean cross-entropy over draws from Gaussians (B, d), with the head's weights v."""
        logits = self.decoded(v, self.draws(mean, std, batch))
        losses_B = row_losses(logits, batch.labels.expand(len(logits), -1)).mean(0)
        return (batch.weights * losses_B).sum()

    def value(self, z: Point, batch: Batch) -> Tensor:
        u, v = z.x.split((self.extractor.size, self.head.size))
        return self.risk(v, *self.encoded(self.features(u, batch)), batch)

    def outputs(self, z: Point, batch: Batch) -> Tensor:
        """Returns the logarithms of the classes' mean probabilities over draws, (B, C)."""
        u, v = z.x.split((self.extractor.size, self.head.size))
        mean, std = self.encoded(self.features(u, batch))
        codes = self.draws(mean, std, batch)
        logits = self.decoded(v, torch.cat((codes, 2 * mean - codes)))
        return logits.log_softmax(-1).logsumexp(0) - math.log(len(logits))
