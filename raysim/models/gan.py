"""Pairs of a generator and a discriminator."""

from torch import Tensor, nn

from raysim.errors import ConfigError


class DCGAN(nn.Module):
    """The CD-MAGE paper's GAN for 28 x 28 images (5.3; layers as in its authors' code), after Radford et al. 2015.

    The generator has 6,679,105 weights, and BatchNorm over the minibatch, in evaluation too; the discriminator has
    1,102,721. Weights of linear and transposed convolutional layers are Xavier's.

    Attributes:
        noise: the number of random numbers from which an image is generated.
        generator: maps noise (B, noise) to images (B, channels, 28, 28) with values in [-1, 1].
        discriminator: maps images to logits (B, 1), high for real ones.
    """

    def __init__(self, shape: tuple[int, ...], outputs: int = 1, noise: int = 100) -> None:
        super().__init__()
        if len(shape) != 3 or shape[1:] != (28, 28):
            raise ConfigError("model.name", f"dcgan makes images (channels, 28, 28), not rows of shape {shape}")
        channels = shape[0]
        self.noise = noise
        self.generator = nn.Sequential(
            nn.Linear(noise, 1024), nn.ReLU(), nn.BatchNorm1d(1024, track_running_stats=False),
            nn.Linear(1024, 7 * 7 * 128), nn.ReLU(), nn.BatchNorm1d(7 * 7 * 128, track_running_stats=False),
            nn.Unflatten(1, (128, 7, 7)),
            nn.ConvTranspose2d(128, 64, 4, stride=2, padding=1), nn.ReLU(),
            nn.BatchNorm2d(64, track_running_stats=False),
            nn.ConvTranspose2d(64, channels, 4, stride=2, padding=1), nn.Tanh(),
        )  # fmt: skip
        self.discriminator = nn.Sequential(
            nn.Conv2d(channels, 32, 5), nn.LeakyReLU(0.01), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5), nn.LeakyReLU(0.01), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(4 * 4 * 64, 4 * 4 * 64), nn.LeakyReLU(0.01), nn.Linear(4 * 4 * 64, outputs),
        )  # fmt: skip
        for layer in self.modules():
            if isinstance(layer, nn.Linear | nn.ConvTranspose2d):
                nn.init.xavier_uniform_(layer.weight)

    def forward(self, noise: Tensor) -> Tensor:
        """Returns the discriminator's logits of images generated from noise."""
        return self.discriminator(self.generator(noise))  # type: ignore[no-any-return]
