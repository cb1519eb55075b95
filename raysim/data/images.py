"""Pictures as rows of pixels: decoded by Pillow, and a data set that is a folder of them."""

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
# What becomes RGB where sizes are made alike: modes of 8 bits a channel, without a transparency to be lost.
_SCALED = ("1", "L", "P", "RGB", "CMYK", "YCbCr")

Size = Annotated[int, Field(ge=1)]


@record(frozen=True)
class Encoded:
    """A picture as it lies in a file.

    Attributes:
        name: what errors call it.
        data: its bytes.
    """

    name: str
    data: bytes


def pixels(pictures: Iterable[Encoded], count: int, size: int | None) -> NDArray[np.uint8]:
    """(count, channels, height, width).

    Args:
        pictures: so many of them.
        count: how many there are, one at least.
        size: to which height and width all are scaled, in RGB; None leaves them as they are.

    Raises:
        DataError: one cannot be decoded, has no intensities of 8 bits (or, scaled, a transparency), or is unlike the
            first.
    """
    rows: NDArray[np.uint8] | None = None
    for row, picture in enumerate(pictures):
        one = _decoded(picture, size)
        if rows is None:
            rows, first = np.empty((count, *one.shape), dtype=np.uint8), picture.name
        if one.shape != rows.shape[1:]:
            raise DataError(
                f"{picture.name} has (channels, height, width) {one.shape}, and {first} has {rows.shape[1:]}; make all "
                "images alike, or set data.size"
            )
        rows[row] = one
    assert rows is not None
    return rows


def _decoded(picture: Encoded, size: int | None) -> NDArray[np.uint8]:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(picture.data)) as opened:
            image: Image.Image = opened
            see_through = size is not None and "transparency" in opened.info
            if size is not None and image.mode in _SCALED and not see_through:
                image = image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
            mode, array = image.mode, np.asarray(image)
    except Exception as error:
        # Pillow's decoders let errors of many classes through (OSError, SyntaxError, struct.error, ...).
        raise DataError(f"{picture.name} cannot be decoded ({error})") from error
    if see_through or (size is not None and mode != "RGB"):
        kind = "is transparent in places" if see_through else f"has mode {mode!r}"
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
        thin, thin_keep, thin_share: classes that lose training rows, and what stays of them.

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
    found = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not found:
        raise DataError(f"{folder}: has no folders; put the images of each class into one of its own")
    return found


def _images(folder: Path) -> list[Path]:
    """All images of a class, also in folders further down and behind links, but for those that are hidden."""
    found = []
    for where, inside, names in os.walk(folder, followlinks=True):
        inside[:] = [name for name in inside if not name.startswith(".")]
        found += [Path(where, n) for n in names if n.lower().endswith(_ENDINGS) and not n.startswith(".")]
    found = sorted(path for path in found if path.is_file())
    if not found:
        raise DataError(f"{folder}: has no images ({', '.join(_ENDINGS)})")
    return found


def _encoded(path: Path) -> Encoded:
    try:
        return Encoded(str(path), path.read_bytes())
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
