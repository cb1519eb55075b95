"""Images as rows of pixels: the decoding by Pillow, and a data set that is a folder of images."""

import io
import os
from collections.abc import Iterable
from dataclasses import dataclass as record
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from pydantic.dataclasses import dataclass

from raysim.data.root import find_folder
from raysim.data.standard import PIXELS
from raysim.data.table import Splits, Table, stamps
from raysim.data.thinned import TestFraction, Thinned
from raysim.errors import DataError
from raysim.registry import STRICT

_CHANNELS = {"L": 1, "RGB": 3, "RGBA": 4}  # Pillow's modes of 8 bits a channel whose numbers are intensities
_ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".ppm", ".pgm", ".tif", ".tiff")
# Modes that are converted to RGB where images are scaled: 8 bits a channel, and no transparency that would be lost.
_SCALED = ("1", "L", "P", "RGB", "CMYK", "YCbCr")

Size = Annotated[int, Field(ge=1)]


@record(frozen=True)
class Encoded:
    """An image as a file holds it.

    Attributes:
        name: the name of the image in errors.
        data: the bytes of the file.
    """

    name: str
    data: bytes


def pixels(pictures: Iterable[Encoded], count: int, size: int | None) -> NDArray[np.uint8]:
    """Decodes images to pixels (count, channels, height, width).

    Args:
        pictures: the images.
        count: the number of images, at least 1.
        size: height and width to which all images are scaled, in RGB; None leaves them as they are.

    Raises:
        DataError: an image cannot be decoded, has no intensities of 8 bits, is transparent where it is to be scaled, or
            has another shape than the first.
    """
    rows: NDArray[np.uint8] | None = None
    for row, picture in enumerate(pictures):
        image = _decode(picture, size)
        if rows is None:
            rows, first = np.empty((count, *image.shape), dtype=np.uint8), picture.name
        if image.shape != rows.shape[1:]:
            raise DataError(
                f"{picture.name} has (channels, height, width) {image.shape}, and {first} has {rows.shape[1:]}; make "
                "all images alike, or set data.size"
            )
        rows[row] = image
    assert rows is not None
    return rows


def _decode(picture: Encoded, size: int | None) -> NDArray[np.uint8]:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(picture.data)) as opened:
            image: Image.Image = opened
            transparent = size is not None and "transparency" in opened.info
            if size is not None and image.mode in _SCALED and not transparent:
                image = image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
            mode, array = image.mode, np.asarray(image)
    except Exception as error:
        # Pillow's decoders let errors of many classes through (OSError, SyntaxError, struct.error, ...).
        raise DataError(f"{picture.name} cannot be decoded ({error})") from error
    if transparent or (size is not None and mode != "RGB"):
        kind = "is transparent in places" if transparent else f"has mode {mode!r}"
        raise DataError(f"{picture.name} {kind}, which cannot be scaled without a choice; convert the images to RGB")
    if mode not in _CHANNELS:
        raise DataError(
            f"{picture.name} has mode {mode!r}; convert the images to one of {', '.join(_CHANNELS)}, or set data.size"
        )
    return array.reshape(*array.shape[:2], _CHANNELS[mode]).transpose(2, 0, 1)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ImageFolder(Thinned):
    """A folder of images, those of each class in a folder of their own, as torchvision's ImageFolder has them.

    Rows are (channels, height, width) uint8, scaled to [-1, 1] as inputs. Classes are numbered by the sorted names of
    their folders. A folder that is not found from the working directory is looked for under $RAYSIM_DATA_ROOT.

    Attributes:
        train: the folder.
        test: the folder of the test, with the same classes; None draws `test_fraction` of the train by the seed.
        test_fraction: the share of rows drawn for the test.
        size: height and width to which all images are scaled, in RGB; None takes them as they are, which must be alike.
        thin, thin_keep, thin_share: see Thinned.

    Raises (by `load`):
        DataError: a folder is missing or has no images, or an image is damaged or unlike the others.
    """

    train: str
    test: str | None = None
    test_fraction: TestFraction = 0.2
    size: Size | None = None

    def read(self, seed: int) -> Splits:
        folder = find_folder(self.train)
        classes = _classes(folder)
        train = self._table(folder, classes)
        if self.test is None:
            train, test = train.split(self.test_fraction, seed)
        else:
            other = find_folder(self.test)
            if set(_classes(other)) != set(classes):
                odd = sorted(set(_classes(other)) ^ set(classes))
                raise DataError(
                    f"{other} and {folder} must have folders of the same names, and {odd[0]!r} is in one of them only"
                )
            test = self._table(other, classes)
        return Splits(train, test, len(classes), **PIXELS)

    def fingerprint(self) -> str:
        import PIL

        folders = [find_folder(name) for name in (self.train, self.test) if name is not None]
        files = (path for folder in folders for c in _classes(folder) for path in _images(folder / c))
        return f"{stamps(files)}\nPillow {PIL.__version__}"

    def _table(self, folder: Path, classes: list[str]) -> Table:
        files = [(path, label) for label, c in enumerate(classes) for path in _images(folder / c)]
        labels = np.array([label for _, label in files], dtype=np.int64)
        return Table(pixels((_encoded(path) for path, _ in files), len(files), self.size), labels)


def _classes(folder: Path) -> list[str]:
    names = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not names:
        raise DataError(f"{folder}: has no folders; put the images of each class into one of its own")
    return names


def _images(folder: Path) -> list[Path]:
    """Returns all images of a class, also those in folders further down and behind links, without hidden ones."""
    paths = []
    for where, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths += [Path(where, n) for n in names if n.lower().endswith(_ENDINGS) and not n.startswith(".")]
    paths = sorted(path for path in paths if path.is_file())
    if not paths:
        raise DataError(f"{folder}: has no images ({', '.join(_ENDINGS)})")
    return paths


def _encoded(path: Path) -> Encoded:
    try:
        return Encoded(str(path), path.read_bytes())
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
