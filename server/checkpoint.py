"""Checkpoints: everything that a run needs to go on, in files that are complete or absent.

A checkpoint of round r, that is after r rounds, is a manifest ``000000r.json`` and the files that it lists with their
SHA-256: the state of the algorithm and the clock, the ledger's tables, and client memory. The manifest is written last,
so that a checkpoint without one was never finished. Memory is written for the clients whose memory has changed since
the checkpoint before. The manifest lists all files with memory, of which the latest counts for each client; when most
of the listed memories have been superseded, all memory is written anew.
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
    """A folder of files, on a local or another file system."""

    filesystem: fs.FileSystem
    path: str

    @classmethod
    def at(cls, place: str | Path) -> Self:
        """Opens a path, or a URL that pyarrow or fsspec knows. Raises CheckpointError where it cannot be used."""
        if "://" not in str(place):
            return cls(fs.LocalFileSystem(), str(Path(place).expanduser().absolute()))
        try:
            return cls(*fs.FileSystem.from_uri(str(place)))
        except pa.ArrowInvalid:
            pass  # the scheme may be one of fsspec's
        except (OSError, NotImplementedError) as error:
            raise CheckpointError(f"checkpoint.folder: cannot use {place} ({error})") from error
        import fsspec  # type: ignore[import-untyped]

        try:
            filesystem, path = fsspec.url_to_fs(str(place))
        except (ValueError, ImportError, OSError) as error:
            raise CheckpointError(f"checkpoint.folder: cannot use {place} ({error})") from error
        return cls(fs.PyFileSystem(fs.FSSpecHandler(filesystem)), path)

    def write(self, name: str, data: bytes) -> None:
        """Writes a file, which appears at once and complete where the file system can do that, as a local one can.

        Raises OutputError where it cannot be written.
        """
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
        """Returns the bytes of a file. Raises OSError where it cannot be read."""
        with self.filesystem.open_input_stream(f"{self.path}/{name}") as stream:
            data: bytes = stream.read()
            return data

    def names(self) -> list[str]:
        """Returns the names of the files, sorted; none if there is no such folder."""
        entries = self.filesystem.get_file_info(fs.FileSelector(self.path, allow_not_found=True))
        return sorted(info.base_name for info in entries if info.type == fs.FileType.File)

    def delete(self, names: Iterable[str]) -> None:
        """Removes these files."""
        for name in names:
            self.filesystem.delete_file(f"{self.path}/{name}")


@dataclass(frozen=True)
class Standing:
    """The standing of a run after some rounds, from which it can go on.

    Attributes:
        rounds: number of rounds that are done.
        state: the algorithm's state.
        clock: the dispatcher's clock.
        memory: the clients' memories by client number, themselves and not their handles.
        tables: the ledger's tables, by name.
    """

    rounds: int
    state: Any
    clock: Any
    memory: Mapping[int, Any]
    tables: Tables


@dataclass(frozen=True)
class StoredFile:
    """A file of a checkpoint, as its manifest lists it.

    Attributes:
        name, sha256: name and checksum of the file.
        entries: number of clients whose memory is in it.
    """

    name: str
    sha256: str
    entries: int = 0


@dataclass(frozen=True)
class Manifest:
    """The list of a checkpoint's files.

    Attributes:
        rounds: number of rounds that are done.
        config: the run's configuration.
        parts: files by their content: `standing`, and the name of each table.
        memory: files of clients' memory, oldest first.
    """

    rounds: int
    config: Mapping[str, Any]
    parts: Mapping[str, StoredFile]
    memory: tuple[StoredFile, ...]

    @property
    def name(self) -> str:
        """The name of the manifest's own file."""
        return f"{self.rounds:08d}.json"

    def files(self) -> set[str]:
        """Returns the names of all files of the checkpoint."""
        return {self.name} | {part.name for part in (*self.parts.values(), *self.memory)}

    def text(self) -> bytes:
        """Returns the manifest as JSON, with its checksum."""
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
        """Reads a manifest from its JSON. Raises ValueError or KeyError where it is damaged."""
        body = json.loads(data)
        if body.pop("sha256") != _digest(_canonical(body)):
            raise ValueError("its checksum is another")
        if body["format"] != FORMAT:
            raise ValueError(f"its format is {body['format']}, and this raysim reads {FORMAT}")
        parts = {what: StoredFile(**part) for what, part in body["parts"].items()}
        manifest = cls(body["rounds"], body["config"], parts, tuple(StoredFile(**part) for part in body["memory"]))
        if outside := [name for name in manifest.files() if "/" in name or name in ("", ".", "..")]:
            raise ValueError(f"it lists {outside[0]!r}, which is no file of its folder")
        return manifest


@dataclass
class Checkpoints:
    """The checkpoints of a run.

    Attributes:
        store: the folder of their files.
        config: the run's configuration, which is written into each.
        keep: number of the latest checkpoints that are kept; the best one is kept too.
        packages: packages whose records may be read.
        best: rounds of the best checkpoint so far, None if none was evaluated.
    """

    store: Store
    config: Mapping[str, Any]
    keep: int
    packages: Collection[str]
    best: int | None = None
    _kept: list[Manifest] = field(default_factory=list)

    @property
    def rounds(self) -> list[int]:
        """The rounds of the checkpoints that are kept."""
        return [manifest.rounds for manifest in self._kept]

    def needs_all(self, changed: int, clients: int) -> bool:
        """Returns True if the next checkpoint must have all clients' memory, and not only what has changed."""
        listed = sum(part.entries for part in self._kept[-1].memory) if self._kept else 0
        return not self._kept or changed + listed > 2 * clients

    def save(self, standing: Standing, whole: bool) -> None:
        """Writes a checkpoint, and removes checkpoints that need not be kept.

        Args:
            standing: the run's standing; its memory is that of all clients if `whole`, otherwise of the clients whose
                memory has changed since the last checkpoint.
            whole: see `standing`.
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
        """Returns the rounds of the latest checkpoint; None if there is none."""
        return max(self._stored_rounds(), default=None)

    def load(self, rounds: int | None = None) -> tuple[Standing, Mapping[str, Any]]:
        """Returns the latest checkpoint, or that of `rounds`, and the configuration of the run that wrote it.

        Raises CheckpointError if there is none, or if it is damaged; the error names the checkpoint before it.
        """
        stored = self._stored_rounds()
        if not stored:
            raise CheckpointError(f"there is no checkpoint in {self.store.path}")
        wanted = stored[-1] if rounds is None else rounds
        if wanted not in stored:
            raise CheckpointError(f"there is no checkpoint of round {wanted} in {self.store.path}, only of {stored}")
        try:
            manifest = self._manifest(wanted)
            state, clock = self._read_tree(manifest.parts["standing"])
            tables = {
                what: pq.read_table(io.BytesIO(self._read(part)))
                for what, part in manifest.parts.items()
                if what != "standing"
            }
            memory: dict[int, Any] = {}
            for part in manifest.memory:
                memory |= self._read_tree(part)
        except (CheckpointError, OSError, ValueError, KeyError, TypeError) as error:
            before = [r for r in stored if r < wanted]
            instead = f"go on from the one before with --from {before[-1]}" if before else "there is none before it"
            raise CheckpointError(
                f"the checkpoint of round {wanted} in {self.store.path} is damaged ({error}); {instead}"
            ) from error
        self._kept = [*self._readable(r for r in stored if r < wanted), manifest]
        return Standing(wanted, state, clock, memory, tables), manifest.config

    def _prune(self) -> None:
        """Removes files that belong to no checkpoint that is kept."""
        latest = self._kept[-self.keep :]
        self._kept = [m for m in self._kept if m in latest or m.rounds == self.best]
        needed = set().union(*(manifest.files() for manifest in self._kept))
        superseded = [name for name in self.store.names() if name not in needed]
        # Manifests are removed first, so that a checkpoint which is half removed is no checkpoint any more.
        self.store.delete(sorted(superseded, key=lambda name: not name.endswith(".json")))

    def _stored_rounds(self) -> list[int]:
        return sorted(int(name.removesuffix(".json")) for name in self.store.names() if name.endswith(".json"))

    def _readable(self, rounds: Iterable[int]) -> list[Manifest]:
        manifests = []
        for r in rounds:
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                manifests.append(self._manifest(r))
        return manifests

    def _manifest(self, rounds: int) -> Manifest:
        return Manifest.parse(self.store.read(f"{rounds:08d}.json"))

    def _write(self, name: str, data: bytes, entries: int = 0) -> StoredFile:
        self.store.write(name, data)
        return StoredFile(name, _digest(data), entries)

    def _read(self, part: StoredFile) -> bytes:
        data = self.store.read(part.name)
        if _digest(data) != part.sha256:
            raise ValueError(f"{part.name} has another checksum than was noted: it is cut short or altered")
        return data

    def _read_tree(self, part: StoredFile) -> Any:
        return archive.unpack(self._read(part), self.packages)


def _canonical(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True).encode()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
