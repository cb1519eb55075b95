"""Local differential privacy: an upload is clipped, and noise is added to it, before it leaves the device.

The noise is that of C. Dwork, A. Roth, "The algorithmic foundations of differential privacy", 2014, theorem A.1; the
epsilon that is spent is accounted after B. Balle, Y.-X. Wang, "Improving the Gaussian mechanism for differential
privacy", ICML 2018.

Legend: C clients.
"""

import importlib.util
import math
from collections.abc import Sequence
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat
from pydantic.dataclasses import dataclass as record
from torch import Tensor

from raysim import draws
from raysim.errors import ConfigError
from raysim.registry import STRICT


@record(frozen=True, kw_only=True, config=STRICT)
class LocalPrivacy:
    """The Gaussian mechanism on all that a client uploads in a phase.

    Attributes:
        epsilon, delta: the privacy of a single upload by the classical formula, which is proved for epsilon below 1 and
            sets the noise; the epsilon that is spent is accounted exactly (`spent`), whatever the formula says.
        clip: Phi, the largest norm of an upload, which is the sensitivity.
    """

    epsilon: PositiveFloat
    delta: Annotated[float, Field(gt=0, lt=1)]
    clip: PositiveFloat = 10.0

    @property
    def sigma(self) -> float:
        """The standard deviation of the noise in a number, sqrt(2 ln(1.25 / delta)) clip / epsilon (FedReCo, A.3)."""
        return math.sqrt(2 * math.log(1.25 / self.delta)) * self.clip / self.epsilon

    def released(self, leaves: Sequence[Tensor], keys_C: NDArray[np.uint64]) -> list[Tensor]:
        """Returns the uploads as they leave the devices: u_i min(1, clip / |u_i|) + sigma N(0, I) for client i.

        Args:
            leaves: the tensors of the uploads, each (C, ...); |u_i| is the norm over all of client i's.
            keys_C: seeds of the clients' noise.
        """
        squares = [leaf.reshape(len(leaf), -1).double().square().sum(1) for leaf in leaves]
        factor_C = (self.clip / torch.stack(squares).sum(0).sqrt()).clamp(max=1.0)
        streams = [draws.generator(int(key), "privacy") for key in keys_C]
        private = []
        for leaf in leaves:
            factor = factor_C.to(leaf.dtype).view(-1, *[1] * (leaf.dim() - 1))
            noise = np.stack([stream.standard_normal(tuple(leaf.shape[1:])) for stream in streams])
            private.append(leaf * factor + self.sigma * torch.from_numpy(noise).to(leaf.device, leaf.dtype))
        return private

    def spent(self, uploads: int, sensitivity: float | None = None) -> float:
        """Returns the least epsilon, at this delta, that protects a client after so many uploads.

        n Gaussian mechanisms in a row are one mechanism with the noise sigma / sqrt(n), which is accounted exactly.
        Raises ConfigError where the accountant is not installed.

        Args:
            uploads: the number of uploads, each with noise of its own.
            sensitivity: largest distance between two uploads that must look alike: `clip`, the default, if an upload
                must look like none, twice that if any two uploads must look alike.
        """
        require_accountant()
        from dp_accounting import get_epsilon_gaussian  # imports for two seconds

        if not uploads:
            return 0.0
        return float(get_epsilon_gaussian(self.sigma / (sensitivity or self.clip) / math.sqrt(uploads), self.delta))


def require_accountant() -> None:
    """Raises ConfigError where the accountant of privacy is not installed."""
    if importlib.util.find_spec("dp_accounting") is None:
        raise ConfigError("algorithm.privacy", "needs the package dp-accounting: pip install 'raysim[privacy]'")
