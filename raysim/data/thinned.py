"""Imbalance made from a data set of classes, by leaving rows out."""

from abc import abstractmethod
from dataclasses import replace
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from raysim.data.table import Source, Splits
from raysim.errors import ConfigError
from raysim.registry import STRICT


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Thinned(Source):
    """A data set of which some classes may be thinned.

    Attributes:
        thin: classes that lose training rows.
        thin_keep: the share of their rows that stays, drawn by the seed.
    """

    thin: tuple[int, ...] = ()
    thin_keep: Annotated[float, Field(gt=0, le=1)] = 1.0

    def load(self, seed: int) -> Splits:
        splits = self.read(seed)
        for c in self.thin:
            if not 0 <= c < splits.classes:
                raise ConfigError("data.thin", f"class {c} is not in the data, which has 0 to {splits.classes - 1}")
        return replace(splits, train=splits.train.thinned(self.thin, self.thin_keep, seed)) if self.thin else splits

    @abstractmethod
    def read(self, seed: int) -> Splits:
        """All of it; as `load`."""
