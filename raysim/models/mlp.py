"""Multilayer perceptrons."""

import itertools
import math
from typing import Annotated

from pydantic import Field
from torch import nn

Width = Annotated[int, Field(ge=1)]


class MLP(nn.Sequential):
    """A ReLU perceptron on flattened inputs; (200, 200) on 784 pixels is the CD-MAGE paper's robust network."""

    def __init__(self, shape: tuple[int, ...], outputs: int, hidden: tuple[Width, ...] = (200, 200)) -> None:
        widths = [math.prod(shape), *hidden, outputs]
        layers: list[nn.Module] = [nn.Flatten()]
        for a, b in itertools.pairwise(widths):
            layers += [nn.Linear(a, b), nn.ReLU()]
        super().__init__(*layers[:-1])
