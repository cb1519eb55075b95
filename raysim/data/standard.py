"""The well-known image sets: scikit-learn's digits, and MNIST, Fashion-MNIST, CIFAR and STL-10 through torchvision."""

import os
from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic.dataclasses import dataclass

from raysim.data.root import ROOT_VARIABLE
from raysim.data.table import Splits, Table, stamps
from raysim.data.thinned import TestFraction, Thinned
from raysim.errors import DataError
from raysim.registry import STRICT

PIXELS = {"mul": 2 / 255, "add": -1.0}  # scales uint8 pixels to [-1, 1]
CLASSES = 10


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Digits(Thinned):
    """Handwritten digits of scikit-learn: 1,797 grey images 8x8, 10 classes, no download.

    Rows are (1, 8, 8) uint8 with values 0..16; inputs are scaled to [-1, 1].

    Attributes:
        test_fraction: the share of rows drawn, by the seed, for the test.
        thin, thin_keep, thin_share: see Thinned.
    """

    test_fraction: TestFraction = 0.2

    def read(self, seed: int) -> Splits:
        from sklearn.datasets import load_digits

        digits = load_digits()
        table = Table(digits.images[:, None].astype(np.uint8), digits.target.astype(np.int64))
        train, test = table.split(self.test_fraction, seed)
        return Splits(train, test, classes=CLASSES, mul=2 / 16, add=-1.0)

    def fingerprint(self) -> str:
        import sklearn

        return f"scikit-learn {sklearn.__version__}"


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Torchvision(Thinned):
    """A data set that torchvision reads, or downloads, in its own layout of folders.

    Attributes:
        root: torchvision's root folder; None stands for $RAYSIM_DATA_ROOT, or ``data`` where that is not set.
        download: True lets torchvision download missing files.
        thin, thin_keep, thin_share: see Thinned.
    """

    classes: ClassVar[int] = CLASSES

    root: str | None = None
    download: bool = False

    def read(self, seed: int) -> Splits:
        return Splits(self._table(train=True), self._table(train=False), classes=self.classes, **PIXELS)

    def fingerprint(self) -> str:
        if self.download:
            self._open(train=True)  # the stamps must be those of the files that load will find
        folder = self._folder()
        if not folder.is_dir():
            raise self._error("there is no such folder")
        return stamps(sorted(path for path in folder.iterdir() if path.is_file()))

    @abstractmethod
    def _folder(self) -> Path:
        """Returns the folder in which torchvision looks for the files."""

    @abstractmethod
    def _images(self, dataset: Any) -> np.ndarray:
        """Returns the pixels of a torchvision data set, (rows, channels, height, width) uint8."""

    def _root(self) -> Path:
        return Path(self.root or os.environ.get(ROOT_VARIABLE) or "data").expanduser()

    def _labels(self, dataset: Any) -> np.ndarray:
        """Returns the class numbers of a torchvision data set, (rows,)."""
        return np.asarray(dataset.targets)

    def _split(self, train: bool) -> dict[str, Any]:
        """Returns the arguments by which torchvision is asked for a split."""
        return {"train": train}

    def _table(self, train: bool) -> Table:
        dataset = self._open(train)
        return Table(self._images(dataset), self._labels(dataset).astype(np.int64))

    def _open(self, train: bool) -> Any:
        import torchvision

        kind = getattr(torchvision.datasets, type(self).__name__)
        try:
            return kind(str(self._root()), **self._split(train), download=self.download)
        except Exception as error:
            # Missing, cut short or damaged files, a failed download: torchvision has no error class of its own.
            raise self._error(str(error).split("\n", 1)[0].rstrip(":. ") or type(error).__name__) from error

    def _error(self, cause: str) -> DataError:
        return DataError(
            f"cannot read {type(self).__name__} from {self._folder().resolve()}: {cause}; set data.download: true, or "
            f"point data.root or the environment variable {ROOT_VARIABLE} at the folder that holds it"
        )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class MNIST(Torchvision):
    """Handwritten digits (LeCun et al., 1998): 60,000 + 10,000 grey images 28x28, 10 classes.

    Rows are (1, 28, 28) uint8; inputs are scaled to [-1, 1].
    """

    def _folder(self) -> Path:
        return self._root() / type(self).__name__ / "raw"

    def _images(self, dataset: Any) -> np.ndarray:
        return np.asarray(dataset.data.numpy()[:, None])


@dataclass(frozen=True, kw_only=True, config=STRICT)
class FashionMNIST(MNIST):
    """Pictures of clothes (Xiao et al., 2017): 60,000 + 10,000 grey images 28x28, 10 classes.

    Rows are (1, 28, 28) uint8; inputs are scaled to [-1, 1].
    """


@dataclass(frozen=True, kw_only=True, config=STRICT)
class CIFAR10(Torchvision):
    """Small photographs (Krizhevsky, 2009): 50,000 + 10,000 colour images 32x32, 10 classes.

    Rows are (3, 32, 32) uint8; inputs are scaled to [-1, 1]. Where the data is a Parquet file of the Hugging Face hub,
    use the source ``parquet``.
    """

    def _folder(self) -> Path:
        return self._root() / "cifar-10-batches-py"

    def _images(self, dataset: Any) -> np.ndarray:
        return np.ascontiguousarray(dataset.data.transpose(0, 3, 1, 2))


@dataclass(frozen=True, kw_only=True, config=STRICT)
class CIFAR100(CIFAR10):
    """Small photographs (Krizhevsky, 2009): 50,000 + 10,000 colour images 32x32, 100 classes.

    Rows are (3, 32, 32) uint8; inputs are scaled to [-1, 1].
    """

    classes: ClassVar[int] = 100

    def _folder(self) -> Path:
        return self._root() / "cifar-100-python"


@dataclass(frozen=True, kw_only=True, config=STRICT)
class STL10(Torchvision):
    """Photographs (Coates et al., 2011): 5,000 + 8,000 labelled colour images 96x96, 10 classes.

    Rows are (3, 96, 96) uint8; inputs are scaled to [-1, 1].
    """

    def _folder(self) -> Path:
        return self._root() / "stl10_binary"

    def _split(self, train: bool) -> dict[str, Any]:
        return {"split": "train" if train else "test"}

    def _labels(self, dataset: Any) -> np.ndarray:
        return np.asarray(dataset.labels)

    def _images(self, dataset: Any) -> np.ndarray:
        return np.asarray(dataset.data)
