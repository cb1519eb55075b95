"""Files that appear at once and complete, or not at all."""

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from raysim.errors import OutputError


def write_whole(path: Path, data: bytes, durable: bool = False) -> None:
    """Writes a file, or replaces it, so that no reader and no crash ever meets half of it.

    Args:
        path: the file, in a folder that exists.
        data: the bytes of the whole file.
        durable: waits until the file would outlast a power cut, which takes milliseconds.

    Raises:
        OutputError: the file cannot be written; an earlier file in its place is unchanged.
    """
    unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        try:
            with unfinished.open("wb") as file:
                file.write(data)
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            os.replace(unfinished, path)
            if durable:
                sync_folder(path.parent)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(f"cannot write {path} ({error.strerror}); free space or choose another folder") from error


@contextlib.contextmanager
def folder_whole(folder: Path) -> Iterator[Path]:
    """Yields a folder to write files into, which appears as `folder` after the block, complete, or not at all.

    Where several processes make the same folder, the first one's appears and the others' are dropped. Raises OSError.
    """
    unfinished = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
    try:
        unfinished.mkdir(parents=True)
        yield unfinished
        sync_folder(unfinished)
        try:
            unfinished.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
        else:
            sync_folder(folder.parent)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)  # the folder is still there only if it has not been renamed


def sync_folder(folder: Path) -> None:
    """Waits until the names in a folder would outlast a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
