"""Imbalanced data sets, made from balanced ones by leaving out rows of some classes."""

import math
from abc import abstractmethod
from dataclasses import replace
from fractions import Fraction
from typing import Annotated

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from raysim.data.table import Source, Splits
from raysim.errors import ConfigError
from raysim.registry import STRICT

TestFraction = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Thinned(Source):
    """A data set of which some classes may be thinned.

    Attributes:
        thin: classes that lose training rows.
        thin_keep: the share of each of these classes' training rows that stays, drawn by the seed.
        thin_share: instead of `thin_keep`, the share that the thinned classes together have of the remaining rows; the
            largest number of rows that does not exceed it is drawn from these classes alike.
    """

    thin: tuple[int, ...] = ()
    thin_keep: Annotated[float, Field(gt=0, le=1)] = 1.0
    thin_share: Annotated[float, Field(gt=0, lt=1)] | None = None

    def load(self, seed: int) -> Splits:
        splits = self.read(seed)
        for c in self.thin:
            if not 0 <= c < splits.classes:
                raise ConfigError("data.thin", f"class {c} is not in the data, which has 0 to {splits.classes - 1}")
        if not self.thin:
            for key, is_given in (("thin_keep", self.thin_keep != 1), ("thin_share", self.thin_share is not None)):
                if is_given:
                    raise ConfigError(f"data.{key}", "is of the classes in data.thin, and there are none; name them")
            return splits
        if self.thin_share is None:
            return replace(splits, train=splits.train.thinned(self.thin, self.thin_keep, seed))
        if self.thin_keep != 1:
            raise ConfigError("data.thin_share", "cannot stand beside data.thin_keep; keep one of the two")
        n_thinned = int(np.isin(splits.train.labels, self.thin).sum())
        share = Fraction(str(self.thin_share))  # exactly the decimal number that was written: 0.1 is a tenth
        stay = math.floor((len(splits.train) - n_thinned) * share / (1 - share))
        if not 0 < stay <= n_thinned:
            cause = f"takes {stay:,} rows of the thinned classes for this share, and there are {n_thinned:,}"
            raise ConfigError("data.thin_share", f"it {cause}; take another share, or other classes")
        return replace(splits, train=splits.train.thinned_to(self.thin, stay, seed))

    @abstractmethod
    def read(self, seed: int) -> Splits:
        """Returns the data before it is thinned; otherwise as `load`."""
