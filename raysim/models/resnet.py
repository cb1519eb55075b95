"""Residual networks."""

import functools
from pathlib import Path

import torch
from torch import Tensor, nn

from raysim.errors import ConfigError


class ResNet18(nn.Module):
    """torchvision's ResNet-18 (K. He et al., CVPR 2016), whose BatchNorm takes the batch's statistics at all times.

    11,181,642 weights with 3 channels and 10 outputs.

    Attributes:
        weights: a file of torchvision's, such as resnet18-f37072fd.pth, to begin with; nothing is downloaded. The last
            layer stays new, and running statistics of BatchNorm are left out. None begins with PyTorch's own.
    """

    def __init__(self, shape: tuple[int, ...], outputs: int, weights: str | None = None) -> None:
        import torchvision  # takes a second, and few need it

        super().__init__()
        if len(shape) != 3:
            raise ConfigError("model.name", f"resnet18 takes images (channels, height, width), not rows of {shape}")
        norm = functools.partial(nn.BatchNorm2d, track_running_stats=False)
        self.net = torchvision.models.resnet18(norm_layer=norm, num_classes=outputs)
        if shape[0] != 3:
            self.net.conv1 = nn.Conv2d(shape[0], 64, kernel_size=7, stride=2, padding=3, bias=False)
        if weights is not None:
            self._load(Path(weights).expanduser())

    def forward(self, inputs: Tensor) -> Tensor:
        return self.net(inputs)  # type: ignore[no-any-return]

    def _load(self, path: Path) -> None:
        own = self.net.state_dict()
        try:
            given = torch.load(path, weights_only=True, map_location="cpu")
            fitting = {name: given[name] for name in own if not name.startswith("fc.")}
            self.net.load_state_dict(own | fitting)
        except (OSError, KeyError, RuntimeError, TypeError, ValueError, EOFError) as error:
            cause = " ".join(str(error).split())
            raise ConfigError("model.weights", f"{path} does not fit torchvision's resnet18 here ({cause})") from error
