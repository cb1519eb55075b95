"""How files reach the nodes of a cluster: once each, through Ray's object store, in chunks."""

import fcntl
import functools
import itertools
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raysim.errors import DataError
from raysim.output import folder_whole

CHUNK_BYTES = 64 * 2**20
# Chunks that a node has asked for at a time: the next one travels while one is written.
AHEAD = 2
# Chunks that stay in the object store for nodes that are a little behind, which then have them from each other.
KEPT = 8


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
class Source:
    """Hands out what lies at some paths of its own node, each a folder of files, or a file.

    A path is asked for by its place among them.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._stored = functools.lru_cache(maxsize=KEPT)(_read)

    def is_folder(self, place: int) -> bool:
        return self._paths[place].is_dir()

    def sizes(self, place: int) -> dict[str, int]:
        """Of the files of a folder, by name; of a file, under its own."""
        path = self._paths[place]
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        return {file.name: file.stat().st_size for file in files}

    def chunk(self, place: int, name: str, start: int) -> list[Any]:
        """The ref of CHUNK_BYTES of a file from `start` on, or of as many as there are."""
        path = self._paths[place]
        return [self._stored(path / name if path.is_dir() else path, start)]


@dataclass(frozen=True)
class Delivery:
    """What a process needs to have files on its node.

    Attributes:
        paths: of folders of files, and of files, the same on every node; what is there, on shared storage or from an
            earlier run, is used.
        source: name and namespace of the actor that has them for those nodes where they are not; None where there are
            no others. It is no handle, which Ray would have to keep to start an actor anew that was given one.
    """

    paths: Sequence[Path]
    source: tuple[str, str] | None = None

    @classmethod
    def of(cls, paths: Sequence[Path], node: str, name: str, namespace: str) -> tuple["Delivery", Any]:
        """Of paths of a node, and the actor of that name, which is to be kept as long as it is needed."""
        there = NodeAffinitySchedulingStrategy(node, soft=False)
        source = Source.options(  # type: ignore[attr-defined]
            name=name, namespace=namespace, scheduling_strategy=there
        ).remote(paths)
        return cls(paths, (name, namespace)), source

    def arrive(self) -> None:
        """Waits until all of them are on this node. Of several processes on a node one fetches them.

        Raises DataError where they cannot be.
        """
        for place, path in enumerate(self.paths):
            if not path.exists():
                self._arrived(place, path)

    def _arrived(self, place: int, path: Path) -> None:
        if self.source is None:
            raise DataError(f"there is no {path}; delete nothing from the data cache while it is in use")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with (path.parent / f".{path.name}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # it ends with this process, however that ends
                if not path.exists():
                    for unfinished in path.parent.glob(f".{path.name}.*/"):  # of a process that was ended meanwhile
                        shutil.rmtree(unfinished, ignore_errors=True)
                    self._fetch(place, path)
        except OSError as error:
            node = ray.util.get_node_ip_address()
            raise DataError(
                f"node {node} cannot write the data to {path} ({error}); free space there, or set output.cache "
                "to a folder that can be written on every node"
            ) from error
        except (RayError, ValueError) as error:  # the latter where there is no such actor
            raise DataError(f"the data did not reach {path} from its node: {error}") from error

    def _fetch(self, place: int, path: Path) -> None:
        assert self.source is not None
        source: Any = ray.get_actor(*self.source)
        sizes: dict[str, int] = ray.get(source.sizes.remote(place))
        folder = path if ray.get(source.is_folder.remote(place)) else path.with_name(f"{path.name}.one")
        with folder_whole(folder) as unfinished:
            for name, size_bytes in sizes.items():
                with (unfinished / name).open("wb") as file:
                    for chunk in _chunks(source, place, name, size_bytes):
                        file.write(chunk)
                    file.flush()
                    os.fsync(file.fileno())
        if folder is not path:
            (folder / path.name).rename(path)
            folder.rmdir()


def _read(file: Path, start: int) -> Any:
    with file.open("rb") as opened:
        opened.seek(start)
        return ray.put(opened.read(CHUNK_BYTES))


def _chunks(source: Any, place: int, name: str, size_bytes: int) -> Iterator[bytes]:
    starts = iter(range(0, size_bytes, CHUNK_BYTES))
    asked = [source.chunk.remote(place, name, start) for start in itertools.islice(starts, AHEAD)]
    while asked:
        (ref,) = ray.get(asked.pop(0))
        asked += [source.chunk.remote(place, name, start) for start in itertools.islice(starts, 1)]
        yield ray.get(ref)
