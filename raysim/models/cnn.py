"""Convolutional networks, as the papers' tables list their layers."""

from typing import Annotated

from pydantic import Field
from torch import Tensor, nn

from raysim.errors import ConfigError

Channels = Annotated[int, Field(ge=1)]


def _side_after(side: int, kernels: tuple[int, ...], pools: int) -> int:
    """Returns a square image's side after unpadded convolutions, the first `pools` of them followed by 2x2 pooling."""
    for layer, kernel in enumerate(kernels):
        side = side - kernel + 1
        if layer < pools:
            side //= 2
    return side


def _images(shape: tuple[int, ...], name: str) -> tuple[int, int]:
    if len(shape) != 3 or shape[1] != shape[2]:
        raise ConfigError("model.name", f"{name} takes square images (channels, side, side), not rows of shape {shape}")
    return shape[0], shape[1]


class LeNet5(nn.Module):
    """LeNet5 (LeCun et al. 1998) with ReLU and max pooling: conv5 6, conv5 16, FC 120, 84, outputs.

    44,426 weights on 28 x 28 with 10 outputs (unpadded convolutions). `final_relu` puts a ReLU after the last layer
    too, as in the CD-MAGE authors' code; the paper's step sizes for AUC belong to that model.
    """

    def __init__(self, shape: tuple[int, ...], outputs: int, final_relu: bool = False) -> None:
        super().__init__()
        channels, side = _images(shape, "lenet5")
        side = _side_after(side, (5, 5), pools=2)
        if side < 1:
            raise ConfigError("model.name", f"lenet5 needs images of at least 16 x 16, not {shape[1]} x {shape[2]}")
        self.features = nn.Sequential(
            nn.Conv2d(channels, 6, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )
        self.classifier = nn.Sequential(
            nn.Linear(16 * side * side, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, outputs)
        )
        if final_relu:
            self.classifier.append(nn.ReLU())

    def forward(self, inputs: Tensor) -> Tensor:
        return self.classifier(self.features(inputs))  # type: ignore[no-any-return]


def _xavier(module: nn.Module) -> None:
    """Draws normal weights of Xavier's variance and sets n biases to 1/n, which is FedSGDA's initialisation."""
    if isinstance(module, nn.Conv2d | nn.Linear):
        nn.init.xavier_normal_(module.weight)
        if module.bias is not None:
            nn.init.constant_(module.bias, 1 / len(module.bias))


class TanhCNN(nn.Module):
    """FedSGDA's CNN for Fashion-MNIST (Wu et al. 2023, table 3): conv3 5, pool, conv3 10, pool, FC 100, outputs; tanh.

    26,620 weights on 28 x 28 with 10 outputs, 25,711 with one.
    """

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        channels, side = _images(shape, "tanh_cnn")
        side = _side_after(side, (3, 3), pools=2)
        if side < 1:
            raise ConfigError("model.name", f"tanh_cnn needs images of at least 10 x 10, not {shape[1]} x {shape[2]}")
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 5, 3), nn.Tanh(), nn.MaxPool2d(2), nn.Conv2d(5, 10, 3), nn.Tanh(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(10 * side * side, 100), nn.Tanh(), nn.Linear(100, outputs),
        )  # fmt: skip
        self.apply(_xavier)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs)  # type: ignore[no-any-return]


class ReLUCNN(nn.Module):
    """FedSGDA's CNN for CIFAR-10 (Wu et al. 2023, table 4): conv3 16, 32, 64, padded and pooled, FC 512, 64, outputs.

    581,866 weights on 3 x 32 x 32 with 10 outputs, 581,281 with one.
    """

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        channels, side = _images(shape, "relu_cnn")
        if side < 8:
            raise ConfigError("model.name", f"relu_cnn needs images of at least 8 x 8, not {shape[1]} x {shape[2]}")
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(64 * (side // 8) ** 2, 512), nn.ReLU(), nn.Linear(512, 64), nn.ReLU(),
            nn.Linear(64, outputs),
        )  # fmt: skip
        self.apply(_xavier)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs)  # type: ignore[no-any-return]


class BatchNormCNN(nn.Module):
    """LocalSCGDAM's CNN for Fashion-MNIST (Zhang et al. 2023, table 3): conv 32, 64 with BatchNorm, FC 600, 120, 1.

    1,474,249 weights on 28 x 28 with one output. Convolutions are followed by BatchNorm, ReLU and pooling, and nothing
    is between the fully connected layers. The paper does not give the kernels: they are 3 x 3 here, the first padded.
    Pooling comes before ReLU, which is the same function and has a quarter of the work.
    """

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        channels, side = _images(shape, "bn_cnn")
        side = (side // 2 - 2) // 2
        if side < 1:
            raise ConfigError("model.name", f"bn_cnn needs images of at least 8 x 8, not {shape[1]} x {shape[2]}")
        self.features = nn.Sequential(
            nn.Conv2d(channels, 32, 3, padding=1), nn.BatchNorm2d(32, track_running_stats=False),
            nn.MaxPool2d(2), nn.ReLU(),
            nn.Conv2d(32, 64, 3), nn.BatchNorm2d(64, track_running_stats=False),
            nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(),
        )  # fmt: skip
        self.classifier = nn.Sequential(nn.Linear(64 * side * side, 600), nn.Linear(600, 120), nn.Linear(120, outputs))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.classifier(self.features(inputs))  # type: ignore[no-any-return]


class FiveLayerCNN(nn.Module):
    """FedReCo's CNN, of an extractor and a head: two of conv5 and pool, FC 1024, 1024; FC outputs. ReLU between.

    The extractor has 1,248,548 weights on 28 x 28 with the channels (4, 12), and 2,796,352 on 3 x 32 x 32 with (64,
    64), those of the authors' code. With a `code` it is FedCR's: a further FC of the extractor, without ReLU, gives the
    mean and the spread of each of so many numbers, and the head takes those.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        outputs: int,
        channels: tuple[Channels, Channels] = (4, 12),
        code: Channels | None = None,
    ) -> None:
        super().__init__()
        colours, side = _images(shape, "cnn5")
        side = _side_after(side, (5, 5), pools=2)
        if side < 1:
            raise ConfigError("model.name", f"cnn5 needs images of at least 16 x 16, not {shape[1]} x {shape[2]}")
        first, second = channels
        self.extractor = nn.Sequential(
            nn.Conv2d(colours, first, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(first, second, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(second * side * side, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(),
        )  # fmt: skip
        if code is not None:
            self.extractor.append(nn.Linear(1024, 2 * code))
        self.code = code
        self.head = nn.Linear(code or 1024, outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        features = self.extractor(inputs)
        return self.head(features[..., : self.code] if self.code else features)  # type: ignore[no-any-return]


class TutorialCNN(nn.Module):
    """The CNN of TensorFlow's CIFAR tutorial: conv3 32, pool, conv3 64, pool, conv3 64, FC 64, outputs.

    122,570 weights on 3 x 32 x 32 with 10 outputs. Used for CIFAR-10 by the CD-MAGE paper, section 5.1.
    """

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        channels, side = _images(shape, "tutorial_cnn")
        side = _side_after(side, (3, 3, 3), pools=2)
        if side < 1:
            raise ConfigError(
                "model.name", f"tutorial_cnn needs images of at least 18 x 18, not {shape[1]} x {shape[2]}"
            )
        self.features = nn.Sequential(
            nn.Conv2d(channels, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(),
        )  # fmt: skip
        self.classifier = nn.Sequential(nn.Linear(64 * side * side, 64), nn.ReLU(), nn.Linear(64, outputs))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.classifier(self.features(inputs))  # type: ignore[no-any-return]
