"""Exhibits: pictures of a point now and then, and the curves and parts of the final one."""

import io
from pathlib import Path

import pyarrow as pa
import torch

from raysim.fleet import Fleet
from raysim.output import write_whole
from raysim.point import Point
from raysim.problems import HasFigures, Named, Problem
from server.archive import parquet
from server.evaluation import Curves, curves_of
from server.job import Job

# The approximate width of a picture in pixels; smaller pictures have their pixels enlarged.
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


def save_final(job: Job, fleet: Fleet, point: Point, rounds: int) -> None:
    """Writes pictures and curves of the final point, and its parts by name into model.pt, for torch.load."""
    save_pictures(job.folder, rounds, job.problem, point)
    save_curves(job.folder, curves_of(job.problem, fleet, job.splits, point))
    parts = job.problem.parts(point) if isinstance(job.problem, Named) else {"x": point.x, "y": point.y}
    file = io.BytesIO()
    torch.save({name: part.clone() for name, part in parts.items()}, file)
    write_whole(job.folder / "model.pt", file.getvalue(), durable=True)


def save_pictures(folder: Path, rounds: int, problem: Problem, point: Point) -> None:
    """Writes pictures/NAME_ROUNDS.png, a grid of images for each picture that the problem has of a point."""
    pictures = problem.pictures(point) if isinstance(problem, HasFigures) else {}
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
    """Writes curves.parquet, a row per curve, if there are any."""
    rows = [
        {"split": split, "curve": name, "x_label": c.x_label, "y_label": c.y_label, "x": c.x, "y": c.y}
        for split, by_name in curves.items()
        for name, c in by_name.items()
    ]
    if rows:
        write_whole(folder / "curves.parquet", parquet(pa.Table.from_pylist(rows, schema=CURVES)))
