"""The delivery of files to the nodes of a cluster: once to each, through Ray's object store, in chunks."""

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
# Chunks that a node requests at a time: the next one travels while one is written.
AHEAD = 2
# Chunks that stay in the object store for nodes that are a little behind, which then get them from each other.
KEPT = 8


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
class Source:
    """Hands out the files at some paths of its own node, each a folder of files or a file.

    A path is asked for by its place among the paths.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._stored = functools.lru_cache(maxsize=KEPT)(_read)

    def is_folder(self, place: int) -> bool:
        """Returns True if the path at this place is a folder of files."""
        return self._paths[place].is_dir()

    def sizes(self, place: int) -> dict[str, int]:
        """Returns the sizes in bytes of a folder's files, by name, or of a single file."""
        path = self._paths[place]
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        return {file.name: file.stat().st_size for file in files}

    def chunk(self, place: int, name: str, start: int) -> list[Any]:
        """Returns the ref of CHUNK_BYTES of a file from `start` on, or of as many as are left, in a list."""
        path = self._paths[place]
        return [self._stored(path / name if path.is_dir() else path, start)]


@dataclass(frozen=True)
class Delivery:
    """Brings files to the node of the process that holds it.

    Attributes:
        paths: folders of files, and files, at the same paths on every node; files that are already there, on storage
            that nodes have in common or from an earlier run, are used.
        source: name and namespace of the actor that sends files to nodes without them; None where there are no other
            nodes. A name is given, since Ray would have to keep a handle to start an actor anew that was given one.
    """

    paths: Sequence[Path]
    source: tuple[str, str] | None = None

    @classmethod
    def of(cls, paths: Sequence[Path], node: str, name: str, namespace: str) -> tuple["Delivery", Any]:
        """Starts the actor of that name on a node, and returns the delivery of the node's paths and the actor.

        The actor ends when its handle is dropped, so that the caller keeps it as long as files may be needed.
        """
        on_node = NodeAffinitySchedulingStrategy(node, soft=False)
        source = Source.options(  # type: ignore[attr-defined]
            name=name, namespace=namespace, scheduling_strategy=on_node
        ).remote(paths)
        return cls(paths, (name, namespace)), source

    def arrive(self) -> None:
        """Waits until all paths are on this node. Where several processes of a node wait, one fetches the files.

        Raises DataError where the files cannot reach the node.
        """
        for place, path in enumerate(self.paths):
            if not path.exists():
                self._bring(place, path)

    def _bring(self, place: int, path: Path) -> None:
        if self.source is None:
            raise DataError(f"there is no {path}; delete nothing from the data cache while it is in use")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with (path.parent / f".{path.name}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # the lock ends with this process, however that ends
                if not path.exists():
                    for unfinished in path.parent.glob(f".{path.name}.*/"):  # left by a process that has ended
                        shutil.rmtree(unfinished, ignore_errors=True)
                    self._fetch(place, path)
        except OSError as error:
            node = ray.util.get_node_ip_address()
            raise DataError(
                f"node {node} cannot write the data to {path} ({error}); free space there, or set output.cache "
                "to a folder that can be written on every node"
            ) from error
        except (RayError, ValueError) as error:  # Ray raises ValueError where there is no such actor
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
    requested = [source.chunk.remote(place, name, start) for start in itertools.islice(starts, AHEAD)]
    while requested:
        (ref,) = ray.get(requested.pop(0))
        requested += [source.chunk.remote(place, name, start) for start in itertools.islice(starts, 1)]
        yield ray.get(ref)
