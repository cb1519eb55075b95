"""The law of imports: who may know whom, and where Ray, clocks and global randomness may not be."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("raysim", "clients", "server", "cluster")
MAY_IMPORT = {
    "raysim": {"raysim"},
    "clients": {"raysim", "clients"},
    "server": {"raysim", "server"},
    "cluster": {"raysim", "clients", "server", "cluster"},
}
MAY_IMPORT_RAY = ("clients/actors/", "clients/delivery.py", "server/actor.py")
FILES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Top-level names of everything a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            found.add((node.module or "").split(".")[0])
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_rooms_import_only_what_they_may(path: Path) -> None:
    name = str(path.relative_to(ROOT))
    room = name.split("/")[0]
    used = imports(path)
    assert used & set(ROOMS) <= MAY_IMPORT[room]
    if room != "cluster" and not name.startswith(MAY_IMPORT_RAY):
        assert "ray" not in used
    if room == "raysim":
        assert not used & {"time", "datetime", "random"}, "no wall clock, no global generator"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_global_random_state(path: Path) -> None:
    """NumPy's module-level functions and torch's global seed are touched nowhere, but where torch's is put back."""
    text = path.read_text()
    for call in ("np.random.seed", "np.random.rand", "np.random.choice", "np.random.permutation", "import random"):
        assert call not in text
    if "torch.manual_seed" in text:
        assert "fork_rng" in text


def test_no_room_for_odds_and_ends() -> None:
    assert not [path for path in FILES if "util" in path.stem or "helper" in path.stem or "misc" in path.stem]
