"""Gives each client its own share of on-time: one number for all, a Beta distribution, or a function of labels."""

from functools import cached_property
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Discriminator, Tag
from pydantic.dataclasses import dataclass as record
from scipy.special import betaincinv, expit, logit

from raysim import draws
from raysim.devices.availability.model import Availability, Positive, Probability
from raysim.errors import ConfigError
from raysim.registry import STRICT


@record(frozen=True, kw_only=True, config=STRICT)
class Beta:
    """Describes shares that are drawn from a Beta distribution, one for each client.

    Attributes:
        beta: the two parameters of the distribution. The defaults, 1.42 and 5.92, have the mean 0.193 and were fitted
            to the charging times of 291 phones of the FLASH traces (Yang et al., 2021).
    """

    beta: tuple[Positive, Positive] = (1.42, 5.92)


@record(frozen=True, kw_only=True, config=STRICT)
class Label:
    """Makes a client's share depend on its labels, as in MIFA (Gu et al., 2021).

    Attributes:
        p_min: a client with score g keeps p_min + (1 - p_min) g of its share; the score is the share of positives.
    """

    p_min: Probability = 0.1


def _share_kind(share: Any) -> str:
    """Tells which of its two forms a share has, so that an error speaks of that form alone."""
    return "distribution" if isinstance(share, dict | Beta) else "number"


@record(frozen=True, kw_only=True, config=STRICT, eq=False)
class ShareBased(Availability):
    """Bases a model on pi_k, the share of time for which each client k is on.

    Attributes:
        share: the same number from 0 to 1 for every client, or the distribution that the shares are drawn from.
        label: a function of labels that multiplies the shares; None leaves them alone.
        seed: the seed of the devices' chance, which the simulator supplies.
        clients: the number of clients, which the simulator supplies.
        scores: (clients,) each client's label score from 0 to 1, which the simulator supplies.

    Raises:
        ConfigError: `label` is set and there is no score for each client, or a score is out of range.
    """

    share: Annotated[
        Annotated[Probability, Tag("number")] | Annotated[Beta, Tag("distribution")], Discriminator(_share_kind)
    ] = Beta()
    label: Label | None = None
    seed: int
    clients: int
    scores: np.ndarray | None = None

    def __post_init__(self) -> None:
        if self.label is None:
            return
        key = "devices.availability.label"
        if self.scores is None:
            raise ConfigError(key, "needs a label score for each client, which this problem's data does not give")
        if self.scores.shape != (self.clients,):
            raise ConfigError(key, f"needs {self.clients} scores, one a client, and got shape {self.scores.shape}")
        good = (self.scores >= 0) & (self.scores <= 1)
        if not good.all():
            client = int(np.argmin(good))
            raise ConfigError(key, f"the score of client {client} is {self.scores[client]}; it must be from 0 to 1")

    @cached_property
    def shares(self) -> NDArray[np.float64]:
        """Holds (clients,) pi_k, the share of time for which each client is on, averaged over a day if it varies."""
        if isinstance(self.share, Beta):
            u = draws.uniform(self.seed, "availability share", np.arange(self.clients))
            shares = _beta_quantiles(u, *self.share.beta)
        else:
            shares = np.full(self.clients, self.share)
        if self.label is not None and self.scores is not None:
            shares = shares * (self.label.p_min + (1 - self.label.p_min) * self.scores)
        return shares


def _beta_quantiles(u: NDArray[np.float64], a: float, b: float) -> NDArray[np.float64]:
    """Returns the quantiles u of Beta(a, b) by interpolation, since a million exact ones take over a second.

    The logit of a quantile is nearly a straight line in the logit of u, and exactly one at both ends; the grid's step
    of 1/64 keeps the error of a share below 1e-5.
    """
    grid = np.linspace(-38, 38, 76 * 64 + 1)
    quantiles = logit(np.clip(betaincinv(a, b, expit(grid)), 1e-300, 1 - 2.0**-53))
    return np.asarray(expit(np.interp(logit(np.clip(u, 2.0**-54, 1 - 2.0**-53)), grid, quantiles)))
