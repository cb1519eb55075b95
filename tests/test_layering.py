"""The law of imports: who may know whom, and where Ray, clocks and global randomness may not be."""

import ast
import graphlib
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
# The rooms of raysim/ from the bottom up: what stands on a floor imports from its own floor or from those below.
FLOORS = [
    {"errors"},
    {"registry", "output", "draws", "domain", "derivative"},
    {"point", "batch", "privacy", "data", "models", "devices"},
    {"phase", "inception"},
    {"exchange", "algorithm"},
    {"wire", "problems"},
    {"dry_run", "fleet", "algorithms"},
]
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


def modules(path: Path) -> str:
    """Dotted name of a file."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def graph() -> dict[str, set[str]]:
    """The modules that each module imports, wherever in it."""
    names = {modules(path): path for path in FILES}
    found: dict[str, set[str]] = {}
    for name, path in names.items():
        wanted = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                wanted |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                of = {f"{node.module}.{alias.name}" for alias in node.names} & names.keys()
                wanted |= of or {node.module}
        found[name] = (wanted & names.keys()) - {name}
    return found


def test_no_module_and_no_room_is_in_a_circle() -> None:
    imported = graph()
    graphlib.TopologicalSorter(imported).prepare()  # raises CycleError, which names the circle
    rooms: dict[str, set[str]] = {}
    for name, others in imported.items():
        room = ".".join(name.split(".")[:2])
        rooms.setdefault(room, set()).update(other for other in (".".join(o.split(".")[:2]) for o in others))
    graphlib.TopologicalSorter({room: others - {room} for room, others in rooms.items()}).prepare()


def test_no_arrow_in_raysim_runs_back_up() -> None:
    floor = {room: level for level, rooms in enumerate(FLOORS) for room in rooms}
    assert floor.keys() == {name.split(".")[1] for name in graph() if name.startswith("raysim.")}, "each has its floor"
    upward = [
        f"{name} imports {other}"
        for name, others in graph().items()
        for other in others
        if name.startswith("raysim.") and floor[name.split(".")[1]] < floor[other.split(".")[1]]
    ]
    assert not upward
