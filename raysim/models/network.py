"""A network as a pure function of one flat weight vector."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from raysim.errors import ConfigError
from raysim.registry import Registry


@dataclass(frozen=True)
class Network:
    """A network as a function (w, inputs) -> outputs, with weights w of shape (size,).

    Attributes:
        build: makes the module, with PyTorch's default initialisation of its layers unless the module sets its own.
        outputs: number of outputs that the module is built for.
        part: the submodule that the network consists of; None is the whole module.
    """

    build: "NetworkFactory"
    outputs: int
    part: str | None = None

    @cached_property
    def module(self) -> nn.Module:
        """The module whose structure is used; its own weights are never used."""
        return self._fresh(0)

    def __getstate__(self) -> tuple["NetworkFactory", int, str | None]:
        return self.build, self.outputs, self.part  # without the module, whose weights nobody needs

    def __setstate__(self, state: tuple["NetworkFactory", int, str | None]) -> None:
        for name, value in zip(("build", "outputs", "part"), state, strict=True):
            object.__setattr__(self, name, value)
        _ = self.module  # built now, since it must not be built within a function transform

    @cached_property
    def size(self) -> int:
        """The number of weights."""
        return sum(self._lengths)

    def init(self, seed: int) -> Tensor:
        """Draws initial weights, float32, shape (size,). PyTorch's global generator stays as it is."""
        return torch.cat([p.detach().reshape(-1) for p in self._fresh(seed).parameters()])

    def unflatten(self, w: Tensor) -> dict[str, Tensor]:
        """Returns views of w under the module's parameter names."""
        pieces = w.split(self._lengths)  # one split: its backward is a single concatenation
        return {name: piece.view(shape) for (name, shape), piece in zip(self._shapes.items(), pieces, strict=True)}

    def __call__(self, w: Tensor, inputs: Tensor) -> Tensor:
        return torch.func.functional_call(self.module, self.unflatten(w), (inputs,))  # type: ignore[no-any-return]

    def _fresh(self, seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = self.build.module(self.outputs)
        if self.part is None:
            return module
        part = getattr(module, self.part, None)
        if not isinstance(part, nn.Module):
            raise ConfigError("model.name", f"{self.build.name!r} has no submodule {self.part!r}, which is needed here")
        return part

    @cached_property
    def _shapes(self) -> dict[str, torch.Size]:
        return {name: p.shape for name, p in self.module.named_parameters()}

    @cached_property
    def _lengths(self) -> list[int]:
        return [math.prod(shape) for shape in self._shapes.values()]


@dataclass(frozen=True)
class NetworkFactory:
    """The configured architecture for inputs of a given shape; called with a number of outputs it returns the Network.

    A problem decides how many outputs it needs, so it receives this and not a finished network.

    Attributes:
        models: the registry to look `name` up in.
        name, settings: as in the configuration.
        shape: shape of one input.
    """

    models: Registry
    name: str
    shape: tuple[int, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, outputs: int, part: str | None = None) -> Network:
        return Network(self, outputs, part)

    def module(self, outputs: int) -> nn.Module:
        """Builds a module. Raises ConfigError where it draws random numbers or keeps state between calls."""
        module: nn.Module = self.models.build(self.name, self.settings, shape=self.shape, outputs=outputs)
        for name, layer in module.named_modules():
            if isinstance(layer, nn.modules.dropout._DropoutNd):
                raise ConfigError("model.name", f"{self.name!r} draws random numbers in {name!r}; leave dropout out")
        buffers = [name for name, _ in module.named_buffers()]
        if buffers:
            raise ConfigError(
                "model.name",
                f"{self.name!r} keeps {buffers[0]!r} outside its parameters, which would leak from client to client; "
                "build normalisation layers with track_running_stats=False, or take GroupNorm",
            )
        return module
