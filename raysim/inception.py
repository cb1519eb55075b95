"""Scores of generated images: the Inception score and the Frechet distance, by a classifier trained on the real ones.

T. Salimans et al., "Improved techniques for training GANs", NeurIPS 2016, section 4; M. Heusel et al., "GANs trained by
a two time-scale update rule converge to a local Nash equilibrium", NeurIPS 2017, section 4. Both are defined with the
Inception network; for small grey images a ResNet-18 takes its place, as in J. Xie et al., "Efficient cross-device
federated learning algorithms for minimax problems", 2021, https://arxiv.org/abs/2105.14216v2, section 5.3, so that
values compare only where the classifier is the same.

Legend: R rows, C classes, F features.
"""

import hashlib
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from raysim import draws
from raysim.data import Shards
from raysim.errors import ConfigError, DataError
from raysim.output import write_whole

FORMAT = 1  # raised with every change of the classifier that the same data and settings give
FEATURES = 512
# The CD-MAGE authors' code trains the classifier with these; the number of epochs is a setting here.
LEARNING_RATE = 0.01
BATCH = 64
CHUNK_ROWS = 500


def inception_score(log_p_RC: NDArray[np.float64], splits: int) -> tuple[float, float]:
    """Returns the mean and the standard deviation over splits of exp(E_image KL(p(c|image) || E_image p(c|image))).

    Args:
        log_p_RC: log-probabilities of the classes. The splits are disjoint runs of rows, as equal as can be.
    """
    scores = []
    for log_p in np.array_split(log_p_RC, splits):
        p = np.exp(log_p)
        marginal = p.mean(axis=0)
        # A class that has probability 0 adds nothing to the sum, as the limit of p log p says.
        ratios = log_p - np.log(np.where(marginal > 0, marginal, 1))
        scores.append(np.exp((p * np.where(p > 0, ratios, 0)).sum(axis=1).mean()))
    return float(np.mean(scores)), float(np.std(scores))


@dataclass(frozen=True, eq=False)
class Gaussian:
    """A normal distribution, with the first two moments of features.

    Attributes:
        mean_F, cov_FF: the mean and the covariance, float64.
    """

    mean_F: NDArray[np.float64]
    cov_FF: NDArray[np.float64]

    @classmethod
    def of(cls, features_RF: NDArray[np.float64]) -> "Gaussian":
        """Returns the normal distribution with the moments of features (R, F)."""
        return cls(features_RF.mean(axis=0), np.cov(features_RF, rowvar=False))

    def distance(self, other: "Gaussian") -> float:
        """Returns the squared Frechet (Wasserstein-2) distance to another normal distribution, the FID of their images.

        The distance is |m1 - m2|^2 + tr(C1 + C2 - 2 (C1 C2)^(1/2)), with means m and covariances C.
        """
        root = _square_root(self.cov_FF)
        # The eigenvalues of the product C1 C2 are those of this symmetric matrix.
        eigenvalues = np.linalg.eigvalsh(root @ other.cov_FF @ root)
        between_means = float(((self.mean_F - other.mean_F) ** 2).sum())
        traces = float(np.trace(self.cov_FF) + np.trace(other.cov_FF))
        return between_means + traces - 2 * float(np.sqrt(np.maximum(eigenvalues, 0)).sum())


@dataclass(frozen=True, eq=False)
class Classifier:
    """A ResNet-18 for images (channels, height, width), trained once on a data set and kept in a file.

    It pickles as the name of its file.

    Attributes:
        path: the file.
        accuracy: share of the data's test rows that it classifies correctly; None if there are none.
        real: the distribution of its features on the training rows.
    """

    path: Path
    accuracy: float | None
    real: Gaussian
    _weights: dict[str, Tensor]

    @classmethod
    def trained(cls, shards: Shards, epochs: int, cache: Path, report: Callable[[str], None]) -> "Classifier":
        """Returns the classifier for this data, from the cache or trained now, which takes minutes and is reported.

        The classifier does not depend on how the rows are dealt to clients.

        Raises:
            ConfigError: the rows are no images.
            DataError: the cache cannot be read.
            OutputError: the classifier cannot be written.
        """
        if len(shards.shape) != 3:
            raise ConfigError("data.name", f"images (channels, height, width) are needed, not rows of {shards.shape}")
        order, digest = _canonical(shards)
        identity = {"format": FORMAT, "rows": digest, "mul": shards.mul, "add": shards.add, "epochs": epochs}
        name = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
        path = cache.expanduser().absolute() / f"classifier-{name}.pt"
        if not path.exists():
            _train(shards, order, epochs, path, report)
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> "Classifier":
        """Reads a classifier from its file. Raises DataError if the file is missing or damaged."""
        try:
            saved = torch.load(path, weights_only=True)
            real = Gaussian(saved["mean_F"].numpy(), saved["cov_FF"].numpy())
            return cls(path, saved["accuracy"], real, saved["weights"])
        except Exception as error:
            raise DataError(f"cannot use {path}: {error}; delete it to train it anew") from error

    def __reduce__(self) -> tuple[Callable[[Path], "Classifier"], tuple[Path]]:
        return Classifier.open, (self.path,)

    def judge(self, images: Tensor) -> Tensor:
        """Returns the log-probabilities, then the features of images, (R, C + F).

        Args:
            images: (R, channels, height, width), scaled as the data.
        """
        with torch.no_grad():
            single = images.to(dtype=torch.float32, memory_format=torch.channels_last)
            return torch.cat([_judge(self._net.to(images.device), chunk) for chunk in single.split(CHUNK_ROWS)])

    @cached_property
    def _net(self) -> nn.Module:
        weights = self._weights
        net = _resnet18(weights["conv1.weight"].shape[1], len(weights["fc.bias"]))
        net.load_state_dict(weights)
        return net.eval().requires_grad_(requires_grad=False)


def _resnet18(channels: int, classes: int) -> nn.Module:
    """Returns torchvision's ResNet-18 for images of another number of channels."""
    import torchvision  # takes a second, and only GANs need it

    net: nn.Module = torchvision.models.resnet18(num_classes=classes)
    net.conv1 = nn.Conv2d(channels, 64, kernel_size=7, stride=2, padding=3, bias=False)
    return net.to(memory_format=torch.channels_last)


def _judge(net: nn.Module, images: Tensor) -> Tensor:
    """Returns log-probabilities and features of images, (R, C + F); the features are the last layer's inputs."""
    *body, last = net.children()
    features = nn.Sequential(*body)(images).flatten(1)
    return torch.cat([torch.log_softmax(last(features), dim=1), features], dim=1)


def _train(shards: Shards, order: NDArray[np.int64], epochs: int, path: Path, report: Callable[[str], None]) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = _resnet18(shards.shape[0], shards.classes)
    optimiser = torch.optim.Adagrad(net.parameters(), lr=LEARNING_RATE)
    report(f"training a classifier on {len(order):,} images, for the scores of generated ones ({epochs} epochs)")
    for epoch in range(epochs):
        net.train()
        shuffled = order[draws.permutation(len(order), 0, "classifier", epoch)]
        # No batch is so short that BatchNorm has no statistics.
        batches = np.array_split(shuffled, max(1, len(order) // BATCH))
        loss = 0.0
        for rows in batches:
            images = shards.inputs(rows).to(memory_format=torch.channels_last)
            value = nn.functional.cross_entropy(net(images), shards.labels(rows))
            optimiser.zero_grad()
            value.backward()
            optimiser.step()
            loss += value.item() / len(batches)
        report(f"classifier: epoch {epoch + 1} of {epochs}, loss {loss:.4f}")
    net.eval()
    accuracy = None
    if len(shards.test):
        predicted = np.argmax(_all(net, shards, np.arange(len(shards.test)), "test")[:, :-FEATURES], axis=1)
        accuracy = float((predicted == shards.test.labels).mean())
        report(f"classifier: accuracy {accuracy:.4f} on {len(shards.test):,} test images")
    real = Gaussian.of(_all(net, shards, order, "train")[:, -FEATURES:])
    saved = {
        "weights": net.state_dict(),
        "accuracy": accuracy,
        "mean_F": torch.from_numpy(real.mean_F),
        "cov_FF": torch.from_numpy(real.cov_FF),
    }
    file = io.BytesIO()
    torch.save(saved, file)
    write_whole(path, file.getvalue(), durable=True)


def _all(net: nn.Module, shards: Shards, rows: NDArray[np.int64], split: str) -> NDArray[np.float64]:
    outputs = []
    with torch.no_grad():
        for i in range(0, len(rows), CHUNK_ROWS):
            images = shards.inputs(rows[i : i + CHUNK_ROWS], split)  # type: ignore[arg-type]
            outputs.append(_judge(net, images.to(memory_format=torch.channels_last)).double().numpy())
    return np.concatenate(outputs)


def _canonical(shards: Shards) -> tuple[NDArray[np.int64], str]:
    """Returns the training rows in the order of their content, whichever client has them, and a digest of the data."""
    digests = {}
    for split in (shards.train, shards.test):
        digests[id(split)] = [
            hashlib.blake2b(row.tobytes() + label.tobytes(), digest_size=16).digest()
            for row, label in zip(split.features, split.labels, strict=True)
        ]
    train, test = (digests[id(split)] for split in (shards.train, shards.test))
    order = np.array(sorted(range(len(train)), key=train.__getitem__))
    whole = hashlib.sha256(b"".join([*sorted(train), *sorted(test)]) + len(train).to_bytes(8, "little"))
    return order, whole.hexdigest()


def _square_root(symmetric: NDArray[np.float64]) -> NDArray[np.float64]:
    values, vectors = np.linalg.eigh(symmetric)
    return np.asarray((vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T)
