"""Residual and densely connected networks."""

import functools
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from raysim.errors import ConfigError

_norm = functools.partial(nn.BatchNorm2d, track_running_stats=False)


class _Block(nn.Module):
    """Two convolutions and a shortcut of the input, at every `stride`-th pixel and with zeros for new channels."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.net = nn.Sequential(
            nn.Conv2d(channels // stride, channels, 3, stride, padding=1, bias=False), _norm(channels), nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False), _norm(channels),
        )  # fmt: skip

    def forward(self, inputs: Tensor) -> Tensor:
        residual = self.net(inputs)
        shortcut = inputs[..., :: self.stride, :: self.stride]
        new = residual.shape[1] - shortcut.shape[1]
        return torch.relu(residual + pad(shortcut, (0, 0, 0, 0, new // 2, new // 2)))


class ResNet20(nn.Module):
    """ResNet-20 for small images (K. He et al., CVPR 2016, section 4.2): three blocks each of 16, 32, 64 channels.

    Shortcuts have no weights. 269,722 weights with 3 channels and 10 outputs, 269,137 with one. Initialised as by K. He
    et al., ICCV 2015.
    """

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        if len(shape) != 3:
            raise ConfigError("model.name", f"resnet20 takes images (channels, height, width), not rows of {shape}")
        blocks = [_Block(channels, 2 if i == 0 and channels > 16 else 1) for channels in (16, 32, 64) for i in range(3)]
        self.features = nn.Sequential(
            nn.Conv2d(shape[0], 16, 3, padding=1, bias=False), _norm(16), nn.ReLU(), *blocks,
            nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )  # fmt: skip
        self.classifier = nn.Linear(64, outputs)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, inputs: Tensor) -> Tensor:
        return self.classifier(self.features(inputs))  # type: ignore[no-any-return]


class DenseNet121(nn.Module):
    """torchvision's DenseNet-121 (G. Huang et al., CVPR 2017).

    6,954,881 weights with 3 channels and one output.
    """

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        import torchvision  # takes a second, and few need it

        super().__init__()
        if len(shape) != 3 or min(shape[1:]) < 32:
            raise ConfigError("model.name", f"densenet121 takes images of at least 32 x 32, not rows of {shape}")
        self.net = torchvision.models.densenet121(num_classes=outputs)
        if shape[0] != 3:
            self.net.features.conv0 = nn.Conv2d(shape[0], 64, kernel_size=7, stride=2, padding=3, bias=False)
        torch.func.replace_all_batch_norm_modules_(self.net)  # by layers that keep no statistics

    def forward(self, inputs: Tensor) -> Tensor:
        return self.net(inputs)  # type: ignore[no-any-return]


class ResNet18(nn.Module):
    """torchvision's ResNet-18 (K. He et al., CVPR 2016).

    11,181,642 weights with 3 channels and 10 outputs.

    Attributes:
        weights: a file of torchvision's, such as resnet18-f37072fd.pth, with the initial weights of all layers but the
            last; running statistics of BatchNorm are left out. Nothing is downloaded. None draws all weights.
    """

    def __init__(self, shape: tuple[int, ...], outputs: int, weights: str | None = None) -> None:
        import torchvision  # takes a second, and few need it

        super().__init__()
        if len(shape) != 3:
            raise ConfigError("model.name", f"resnet18 takes images (channels, height, width), not rows of {shape}")
        self.net = torchvision.models.resnet18(norm_layer=_norm, num_classes=outputs)
        if shape[0] != 3:
            self.net.conv1 = nn.Conv2d(shape[0], 64, kernel_size=7, stride=2, padding=3, bias=False)
        if weights is not None:
            self._load(Path(weights).expanduser())

    def forward(self, inputs: Tensor) -> Tensor:
        return self.net(inputs)  # type: ignore[no-any-return]

    def _load(self, path: Path) -> None:
        initial = self.net.state_dict()
        try:
            saved = torch.load(path, weights_only=True, map_location="cpu")
            fitting = {name: saved[name] for name in initial if not name.startswith("fc.")}
            self.net.load_state_dict(initial | fitting)
        except (OSError, KeyError, RuntimeError, TypeError, ValueError, EOFError) as error:
            cause = " ".join(str(error).split())
            raise ConfigError("model.weights", f"{path} does not fit torchvision's resnet18 here ({cause})") from error
