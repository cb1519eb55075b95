"""Checkpoints: all that a run goes on from, in files that are complete or not there at all.

A checkpoint of round r, that is after r rounds, is a manifest ``000000r.json`` and the files it lists with their
SHA-256: the state of the algorithm and the clock, the ledger's tables, and client memory. The manifest is written last,
so that a checkpoint without one was never finished. Memory is written for those clients whose memory has changed since
the checkpoint before, and listed file by file, the later one counting; when most of what is listed has been superseded,
all of it is written anew.
"""

import contextlib
import hashlib
import io
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from raysim.errors import CheckpointError, OutputError
from raysim.output import write_whole
from server import archive

FORMAT = 1

Tables = Mapping[str, pa.Table]


@dataclass(frozen=True)
class Store:
    """A folder of files, here or on another file system."""

    filesystem: fs.FileSystem
    path: str

    @classmethod
    def at(cls, place: str | Path) -> Self:
        """From a path, or a URL that pyarrow or fsspec knows. Raises CheckpointError where there is no such place."""
        if "://" not in str(place):
            return cls(fs.LocalFileSystem(), str(Path(place).expanduser().absolute()))
        try:
            return cls(*fs.FileSystem.from_uri(str(place)))
        except pa.ArrowInvalid:
            pass  # a scheme of fsspec's, perhaps
        except (OSError, NotImplementedError) as error:
            raise CheckpointError(f"checkpoint.folder: cannot use {place} ({error})") from error
        import fsspec  # type: ignore[import-untyped]

        try:
            filesystem, path = fsspec.url_to_fs(str(place))
        except (ValueError, ImportError, OSError) as error:
            raise CheckpointError(f"checkpoint.folder: cannot use {place} ({error})") from error
        return cls(fs.PyFileSystem(fs.FSSpecHandler(filesystem)), path)

    def write(self, name: str, data: bytes) -> None:
        """The file appears at once and complete, as far as the file system can do that; here it can."""
        to = f"{self.path}/{name}"
        try:
            self.filesystem.create_dir(self.path, recursive=True)
            if isinstance(self.filesystem, fs.LocalFileSystem):
                write_whole(Path(to), data, durable=True)
            else:
                with self.filesystem.open_output_stream(to) as stream:
                    stream.write(data)
        except OSError as error:
            raise OutputError(f"cannot write {to} ({error}); free space or choose another folder") from error

    def read(self, name: str) -> bytes:
        """Raises OSError."""
        with self.filesystem.open_input_stream(f"{self.path}/{name}") as stream:
            data: bytes = stream.read()
            return data

    def names(self) -> list[str]:
        """Of the files there are, sorted; none if there is no such folder."""
        found = self.filesystem.get_file_info(fs.FileSelector(self.path, allow_not_found=True))
        return sorted(info.base_name for info in found if info.type == fs.FileType.File)

    def delete(self, names: Iterable[str]) -> None:
        """Removes these files."""
        for name in names:
            self.filesystem.delete_file(f"{self.path}/{name}")


@dataclass(frozen=True)
class Standing:
    """Where a run stands after some rounds.

    Attributes:
        rounds: that are done.
        state: of the algorithm.
        clock: of the dispatcher.
        memory: of the clients, by number; the memories themselves, not handles.
        tables: of the ledger, by name.
    """

    rounds: int
    state: Any
    clock: Any
    memory: Mapping[int, Any]
    tables: Tables


@dataclass(frozen=True)
class Part:
    """A file of a checkpoint, as its manifest has it.

    Attributes:
        name, sha256: of the file.
        entries: clients whose memory is in it.
    """

    name: str
    sha256: str
    entries: int = 0


@dataclass(frozen=True)
class Manifest:
    """Attributes:
    rounds: that are done.
    config: the run's.
    parts: files by what is in them: `standing`, and a file for each table.
    memory: files of memory, oldest first.
    """

    rounds: int
    config: Mapping[str, Any]
    parts: Mapping[str, Part]
    memory: tuple[Part, ...]

    @property
    def name(self) -> str:
        return f"{self.rounds:08d}.json"

    def files(self) -> set[str]:
        """All that belongs to the checkpoint."""
        return {self.name} | {part.name for part in (*self.parts.values(), *self.memory)}

    def text(self) -> bytes:
        body = {
            "format": FORMAT,
            "rounds": self.rounds,
            "config": self.config,
            "parts": {what: vars(part) for what, part in self.parts.items()},
            "memory": [vars(part) for part in self.memory],
        }
        return json.dumps({"sha256": _digest(_canonical(body))} | body, indent=1).encode()

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Raises ValueError or KeyError where it is damaged."""
        body = json.loads(data)
        if body.pop("sha256") != _digest(_canonical(body)):
            raise ValueError("its checksum is another")
        if body["format"] != FORMAT:
            raise ValueError(f"its format is {body['format']}, and this raysim reads {FORMAT}")
        parts = {what: Part(**part) for what, part in body["parts"].items()}
        made = cls(body["rounds"], body["config"], parts, tuple(Part(**part) for part in body["memory"]))
        if outside := [name for name in made.files() if "/" in name or name in ("", ".", "..")]:
            raise ValueError(f"it lists {outside[0]!r}, which is no file of its folder")
        return made


@dataclass
class Checkpoints:
    """The checkpoints of a run.

    Attributes:
        store: where they are.
        config: of the run, as it is written into each.
        keep: how many of the latest are kept; the best one is kept too.
        packages: whose records may be read.
        best: rounds of the best one so far, None if none was scored.
    """

    store: Store
    config: Mapping[str, Any]
    keep: int
    packages: Collection[str]
    best: int | None = None
    _kept: list[Manifest] = field(default_factory=list)

    @property
    def rounds(self) -> list[int]:
        """Of the checkpoints that are kept."""
        return [manifest.rounds for manifest in self._kept]

    def needs_all(self, changed: int, clients: int) -> bool:
        """Whether the next checkpoint is to have the memory of all clients that have any, and not what changed."""
        listed = sum(part.entries for part in self._kept[-1].memory) if self._kept else 0
        return not self._kept or changed + listed > 2 * clients

    def save(self, standing: Standing, whole: bool) -> None:
        """Writes a checkpoint, and removes those that need not be kept.

        Args:
            standing: its memory is that of all clients if `whole`, else what has changed since the last one.
        """
        r = f"{standing.rounds:08d}"
        parts = {"standing": self._write(f"{r}.standing.pt", archive.pack((standing.state, standing.clock)))}
        for what, table in standing.tables.items():
            parts[what] = self._write(f"{r}.{what}.parquet", archive.parquet(table))
        memory = () if whole or not self._kept else self._kept[-1].memory
        if standing.memory:
            data = archive.pack(dict(standing.memory))
            memory = (*memory, self._write(f"{r}.memory.pt", data, len(standing.memory)))
        manifest = Manifest(standing.rounds, self.config, parts, memory)
        self.store.write(manifest.name, manifest.text())
        self._kept = [*(other for other in self._kept if other.rounds != standing.rounds), manifest]
        self._prune()

    def latest(self) -> int | None:
        """Rounds of the latest that there is."""
        return max(self._rounds_there(), default=None)

    def load(self, rounds: int | None = None) -> tuple[Standing, Mapping[str, Any]]:
        """The latest checkpoint, or that of `rounds`, and the configuration of the run that wrote it.

        Raises CheckpointError if there is none, or naming what is damaged and the checkpoint before.
        """
        there = self._rounds_there()
        if not there:
            raise CheckpointError(f"there is no checkpoint in {self.store.path}")
        wanted = there[-1] if rounds is None else rounds
        if wanted not in there:
            raise CheckpointError(f"there is no checkpoint of round {wanted} in {self.store.path}, only of {there}")
        try:
            manifest = self._manifest(wanted)
            state, clock = self._unpacked(manifest.parts["standing"])
            tables = {
                what: pq.read_table(io.BytesIO(self._read(part)))
                for what, part in manifest.parts.items()
                if what != "standing"
            }
            memory: dict[int, Any] = {}
            for part in manifest.memory:
                memory |= self._unpacked(part)
        except (CheckpointError, OSError, ValueError, KeyError, TypeError) as error:
            before = [r for r in there if r < wanted]
            instead = f"go on from the one before with --from {before[-1]}" if before else "there is none before it"
            raise CheckpointError(
                f"the checkpoint of round {wanted} in {self.store.path} is damaged ({error}); {instead}"
            ) from error
        self._kept = [*self._readable(r for r in there if r < wanted), manifest]
        return Standing(wanted, state, clock, memory, tables), manifest.config

    def _prune(self) -> None:
        """Removes what belongs to no checkpoint that is kept."""
        latest = self._kept[-self.keep :]
        self._kept = [m for m in self._kept if m in latest or m.rounds == self.best]
        needed = set().union(*(manifest.files() for manifest in self._kept))
        there = [name for name in self.store.names() if name not in needed]
        # Manifests first: what is left of a checkpoint half removed is then no checkpoint.
        self.store.delete(sorted(there, key=lambda name: not name.endswith(".json")))

    def _rounds_there(self) -> list[int]:
        return sorted(int(name.removesuffix(".json")) for name in self.store.names() if name.endswith(".json"))

    def _readable(self, rounds: Iterable[int]) -> list[Manifest]:
        found = []
        for r in rounds:
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                found.append(self._manifest(r))
        return found

    def _manifest(self, rounds: int) -> Manifest:
        return Manifest.parse(self.store.read(f"{rounds:08d}.json"))

    def _write(self, name: str, data: bytes, entries: int = 0) -> Part:
        self.store.write(name, data)
        return Part(name, _digest(data), entries)

    def _read(self, part: Part) -> bytes:
        data = self.store.read(part.name)
        if _digest(data) != part.sha256:
            raise ValueError(f"{part.name} has another checksum than was noted: it is cut short or altered")
        return data

    def _unpacked(self, part: Part) -> Any:
        return archive.unpack(self._read(part), self.packages)


def _canonical(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True).encode()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
