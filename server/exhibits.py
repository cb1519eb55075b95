"""What of a point is looked at rather than measured: pictures of it now and then, and curves of the final one."""

import io
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
from torch import Tensor

from raysim.output import write_whole
from server.archive import parquet
from server.evaluation import Curves

# Pixels that a picture is wide, about; what is smaller has its own enlarged.
SIDE = 280

CURVES = pa.schema(
    [
        pa.field("split", pa.string()),
        pa.field("curve", pa.string()),
        pa.field("x_label", pa.string()),
        pa.field("y_label", pa.string()),
        pa.field("x", pa.list_(pa.float64())),
        pa.field("y", pa.list_(pa.float64())),
    ]
)


def save_pictures(folder: Path, rounds: int, pictures: Mapping[str, Tensor]) -> None:
    """Writes pictures/NAME_ROUNDS.png, each a grid of the images (n, channels, height, width) of that name."""
    if not pictures:
        return
    import torchvision  # takes a second, and most problems have nothing to show

    (folder / "pictures").mkdir(exist_ok=True)
    for name, images in pictures.items():
        columns = max(1, round(len(images) ** 0.5))
        enlarged = max(1, SIDE // (columns * images.shape[-1]))
        shown = images.float().cpu().clamp(0, 1).repeat_interleave(enlarged, -1).repeat_interleave(enlarged, -2)
        file = io.BytesIO()
        torchvision.utils.save_image(shown, file, format="png", nrow=columns, padding=1)
        write_whole(folder / "pictures" / f"{name}_{rounds:06d}.png", file.getvalue())


def save_curves(folder: Path, curves: Curves) -> None:
    """Writes curves.parquet, a row per curve."""
    rows = [
        {"split": split, "curve": name, "x_label": c.x_label, "y_label": c.y_label, "x": c.x, "y": c.y}
        for split, found in curves.items()
        for name, c in found.items()
    ]
    if rows:
        write_whole(folder / "curves.parquet", parquet(pa.Table.from_pylist(rows, schema=CURVES)))
