"""How a folder of data reaches the nodes of a cluster: once each, through Ray's object store, in chunks."""

import fcntl
import functools
import itertools
import os
from collections.abc import Iterator
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
    """Hands out the files of a folder of its own node."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stored = functools.lru_cache(maxsize=KEPT)(self._read)

    def sizes(self) -> dict[str, int]:
        """Of the files, by name."""
        return {path.name: path.stat().st_size for path in sorted(self._folder.iterdir())}

    def chunk(self, name: str, start: int) -> list[Any]:
        """The ref of CHUNK_BYTES of a file from `start` on, or of as many as there are."""
        return [self._stored(name, start)]

    def _read(self, name: str, start: int) -> Any:
        with (self._folder / name).open("rb") as file:
            file.seek(start)
            return ray.put(file.read(CHUNK_BYTES))


@dataclass(frozen=True)
class Delivery:
    """What a process needs to have a folder on its node.

    Attributes:
        folder: the same path on every node; one that is there, on shared storage or from an earlier run, is used.
        source: name and namespace of the actor that has it for those nodes where it is not; None where there are no
            others. It is no handle, which Ray would have to keep to start an actor anew that was given one.
    """

    folder: Path
    source: tuple[str, str] | None = None

    @classmethod
    def of(cls, folder: Path, node: str, name: str, namespace: str) -> tuple["Delivery", Any]:
        """Of a folder on a node, and the actor of that name, which is to be kept as long as it is needed."""
        there = NodeAffinitySchedulingStrategy(node, soft=False)
        source = Source.options(  # type: ignore[attr-defined]
            name=name, namespace=namespace, scheduling_strategy=there
        ).remote(folder)
        return cls(folder, (name, namespace)), source

    def arrive(self) -> None:
        """Waits until the folder is on this node. Of several processes on a node one fetches it.

        Raises DataError where it cannot be.
        """
        if self.folder.is_dir():
            return
        if self.source is None:
            raise DataError(f"there is no {self.folder}; delete nothing from the data cache while it is in use")
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            with (self.folder.parent / f".{self.folder.name}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # it ends with this process, however that ends
                if not self.folder.is_dir():
                    self._fetch()
        except OSError as error:
            node = ray.util.get_node_ip_address()
            raise DataError(
                f"node {node} cannot write the data to {self.folder} ({error}); free space there, or set output.cache "
                "to a folder that can be written on every node"
            ) from error
        except (RayError, ValueError) as error:  # the latter where there is no such actor
            raise DataError(f"the data did not reach {self.folder} from its node: {error}") from error

    def _fetch(self) -> None:
        assert self.source is not None
        source: Any = ray.get_actor(*self.source)
        sizes: dict[str, int] = ray.get(source.sizes.remote())
        with folder_whole(self.folder) as unfinished:
            for name, size_bytes in sizes.items():
                with (unfinished / name).open("wb") as file:
                    for chunk in _chunks(source, name, size_bytes):
                        file.write(chunk)
                    file.flush()
                    os.fsync(file.fileno())


def _chunks(source: Any, name: str, size_bytes: int) -> Iterator[bytes]:
    starts = iter(range(0, size_bytes, CHUNK_BYTES))
    asked = [source.chunk.remote(name, start) for start in itertools.islice(starts, AHEAD)]
    while asked:
        (ref,) = ray.get(asked.pop(0))
        asked += [source.chunk.remote(name, start) for start in itertools.islice(starts, 1)]
        yield ray.get(ref)
