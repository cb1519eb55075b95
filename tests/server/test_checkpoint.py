"""Checkpoints: complete or not there, checksummed, no more of them than asked for, and nothing executed in reading."""

import hashlib
import pickle
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
import torch

from raysim.domain import Simplex
from raysim.errors import CheckpointError, OutputError
from raysim.point import Point
from server import archive
from server.checkpoint import Checkpoints, Standing, Store, StoredFile
from tests.contracts.table import settings
from tests.play import QUADRATIC, experiment, server


class Pair(NamedTuple):
    first: Any
    second: Any = None


@dataclass(frozen=True)
class Careful:
    """A record whose constructor must not be called by a reader."""

    value: int

    def __post_init__(self) -> None:
        if self.value < 0:
            raise AssertionError("called")


def test_trees_come_back_as_they_were() -> None:
    z = Point(torch.arange(3.0), torch.tensor([0.25, 0.75]), Simplex(renormalise=True))
    tree = {
        "z": z, 7: [None, True, 1, 0.1, float("inf"), "text"], "pair": Pair((1, z), np.arange(4, dtype=np.int64)),
        "empty": ((), {}, []), "half": torch.tensor([1, 2], dtype=torch.float16),
    }  # fmt: skip
    again = archive.unpack(archive.pack(tree), {"raysim", "tests"})
    assert list(again) == list(tree)
    assert again[7] == tree[7]
    assert type(again[7][1]) is bool
    assert again["empty"] == ((), {}, [])
    assert type(again["pair"]) is Pair
    assert isinstance(again["pair"].second, np.ndarray)
    assert again["pair"].second.tolist() == [0, 1, 2, 3]
    for point in (again["z"], again["pair"].first[1]):
        assert type(point) is Point
        assert torch.equal(point.x, z.x)
        assert point.domain == z.domain
    assert again["half"].dtype == torch.float16


def test_what_is_read_is_memory_of_its_own() -> None:
    whole = torch.zeros(1000)
    assert len(archive.pack(whole[:2])) < 3000


def test_no_constructor_is_called_and_no_other_package_is_imported() -> None:
    made = object.__new__(Careful)
    object.__setattr__(made, "value", -1)
    data = archive.pack(made)
    assert archive.unpack(data, {"tests"}).value == -1
    with pytest.raises(CheckpointError, match="which is no record of raysim"):
        archive.unpack(data, {"raysim"})


class Bomb:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("it was executed",))


def test_a_pickle_is_refused_without_being_executed() -> None:
    import io

    file = io.BytesIO()
    torch.save(Bomb(), file)
    for data in (file.getvalue(), pickle.dumps(Bomb())):
        with pytest.raises(CheckpointError, match="cannot be read"):
            archive.unpack(data, {"raysim"})


def test_what_cannot_be_written_is_named() -> None:
    with pytest.raises(CheckpointError, match=r"tests.server.test_checkpoint.Bomb cannot be written"):
        archive.pack({"a": [Bomb()]})


def kept(folder: Path) -> list[int]:
    return sorted(int(path.stem) for path in folder.glob("*.json"))


def standing(rounds: int, memory: dict[int, Any] | None = None) -> Standing:
    tables = {"rounds": pa.table({"round": list(range(rounds))})}
    return Standing(rounds, {"z": torch.full((2,), float(rounds))}, None, memory or {}, tables)


def checkpoints(folder: Path, keep: int = 2) -> Checkpoints:
    return Checkpoints(Store.at(folder), {"name": "test"}, keep, {"raysim"})


def test_the_latest_and_the_best_are_kept_and_nothing_else(tmp_path: Path) -> None:
    made = checkpoints(tmp_path)
    for r in range(1, 7):
        made.save(standing(r), whole=True)
        if r == 2:
            made.best = 2
    assert kept(tmp_path) == [2, 5, 6]
    assert {path.name.split(".")[0] for path in tmp_path.iterdir()} == {"00000002", "00000005", "00000006"}
    found, config = made.load()
    assert (found.rounds, float(found.state["z"][0]), config) == (6, 6.0, {"name": "test"})
    assert made.load(2)[0].tables["rounds"].num_rows == 2


def test_memory_is_written_where_it_changed_and_anew_when_most_is_superseded(tmp_path: Path) -> None:
    made, memory = checkpoints(tmp_path), {}
    sizes = []
    for r in range(1, 40):
        changed = {c: torch.full((3,), float(100 * r + c)) for c in {r % 10, (r + 3) % 10}}
        memory |= changed
        whole = made.needs_all(len(changed), len(memory))
        made.save(standing(r, dict(memory) if whole else changed), whole)
        (manifest,) = [m for m in made._kept if m.rounds == r]
        sizes.append(sum(part.entries for part in manifest.memory))
        found = checkpoints(tmp_path).load(r)[0].memory
        assert {c: v.tolist() for c, v in found.items()} == {c: v.tolist() for c, v in memory.items()}
    assert max(sizes) <= 20
    assert len(list(tmp_path.glob("*.memory.pt"))) <= 11


@pytest.mark.parametrize("part", ["standing.pt", "rounds.parquet", "memory.pt", "json"])
@pytest.mark.parametrize("how", ["cut short", "altered", "missing"])
def test_what_is_damaged_is_named_and_the_one_before_is_offered(part: str, how: str, tmp_path: Path) -> None:
    made = checkpoints(tmp_path)
    made.save(standing(3, {1: torch.ones(2)}), whole=True)
    made.save(standing(6, {1: torch.ones(2)}), whole=True)
    path = tmp_path / f"00000006.{part}"
    data = bytearray(path.read_bytes())
    if how == "missing":
        path.unlink()
    elif how == "altered":
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    else:
        path.write_bytes(data[:-10])
    again = checkpoints(tmp_path)
    if (part, how) == ("json", "missing"):  # then it is not there
        assert again.load()[0].rounds == 3
        return
    with pytest.raises(CheckpointError, match=r"of round 6 in .* is damaged .*go on .* with --from 3"):
        again.load()
    assert again.load(3)[0].rounds == 3


def test_a_manifest_cannot_name_a_file_outside_of_its_folder(tmp_path: Path) -> None:
    made = checkpoints(tmp_path / "checkpoints")
    made.save(standing(3), whole=True)
    (manifest,) = made._kept
    (tmp_path / "elsewhere").write_bytes(b"secret")
    part = StoredFile("../elsewhere", hashlib.sha256(b"secret").hexdigest())
    moved = replace(manifest, parts={**manifest.parts, "standing": part})
    made.store.write(manifest.name, moved.text())
    with pytest.raises(CheckpointError, match=r"it lists '\.\./elsewhere', which is no file of its folder"):
        made.load()


def test_a_checkpoint_that_was_not_finished_is_not_one(tmp_path: Path) -> None:
    made = checkpoints(tmp_path)
    made.save(standing(3), whole=True)
    made._write("00000006.standing.pt", b"only the first file")
    assert checkpoints(tmp_path).load()[0].rounds == 3


def test_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"there is no checkpoint in {tmp_path}"):
        checkpoints(tmp_path / "x").load()


def test_a_url_of_fsspecs_is_a_place(tmp_path: Path) -> None:
    store = Store.at("memory://raysim-checkpoints/a")
    made = Checkpoints(store, {}, 2, {"raysim"})
    for r in (1, 2, 3):
        made.save(standing(r), whole=True)
    assert Checkpoints(store, {}, 2, {"raysim"}).load()[0].rounds == 3
    assert [name for name in store.names() if name.endswith("json")] == ["00000002.json", "00000003.json"]


def test_a_place_that_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"checkpoint.folder: cannot use nowhere://x"):
        Store.at("nowhere://x")
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"cannot write .*free space or choose another folder"):
        checkpoints(tmp_path / "file").save(standing(1), whole=True)


def test_the_best_checkpoint_of_a_run_is_that_of_its_best_evaluation(tmp_path: Path) -> None:
    every = {"checkpoint": {"every": 1, "keep": 1}}
    # It diverges: the first evaluation after a checkpoint is the best.
    made = experiment(QUADRATIC, settings("cd_ma", eta=0.7, gamma=0.7), rounds=6, **every)
    playing = server(made, tmp_path)
    reports = [report for report in playing.run() if report.evaluated]
    norms = {report.round: report.metrics["train"]["gradient_norm"] for report in reports if report.round}
    best = min(norms, key=norms.__getitem__)
    assert kept(tmp_path / "checkpoints") == sorted({best, 6})


@pytest.mark.slow
def test_unless_asked_for_they_take_a_fiftieth_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds that are counted here: a round takes one, and writing a checkpoint as many as it says."""
    now, costs = [0.0], iter([10.0, 0.0, 2000.0])
    monkeypatch.setattr("server.saving.time.perf_counter", lambda: now[0])
    one_step = settings("cd_ma", S=1, K=1)
    made = experiment(QUADRATIC, one_step, rounds=1000, evaluate={"every": 2000}, checkpoint={"keep": 100})
    playing = server(made, tmp_path)
    play, save = playing.play, playing.job.checkpoints.save

    def a_second(t: int) -> None:
        playing.saving.finish()  # nothing else counts meanwhile
        now[0] += 1
        play(t)

    def slow(*given: Any) -> None:
        save(*given)
        now[0] += next(costs, 0.0)

    monkeypatch.setattr(playing, "play", a_second)
    monkeypatch.setattr(playing.job.checkpoints, "save", slow)
    list(playing.run())
    # After 10 rounds; then 10 s are a fiftieth of 500 s, of which they are the first; then 10 rounds are enough; and
    # 2,000 s are never made up for.
    assert playing.job.checkpoints.rounds == [10, 500, 510, 1000]


def test_a_checkpoint_that_takes_long_holds_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = experiment(QUADRATIC, settings("cd_ma"), rounds=60, evaluate={"every": 1000})
    playing = server(made, tmp_path)
    save, released, begun = playing.job.checkpoints.save, threading.Event(), []

    def slow(*given: Any) -> None:
        begun.append(given[0].rounds)
        assert released.wait(60)
        save(*given)

    monkeypatch.setattr(playing.job.checkpoints, "save", slow)
    for report in playing.run():
        if report.round == 55:  # rounds went on, and no second one was begun
            assert begun == [10]
            released.set()
    assert begun[-1] == 60
