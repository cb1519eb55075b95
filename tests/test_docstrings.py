"""The law of docstrings: each opens with a sentence, and whatever is public has one."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("raysim", "clients", "server", "cluster")
# Prepositions, pronouns and conjunctions: what opens with one of them is no sentence.
OPENERS = {
    "As", "Beside", "By", "For", "From", "How", "If", "In", "It", "Its", "Of", "On", "That", "These", "They", "Those",
    "To", "What", "When", "Where", "Whether", "Which", "Who", "With", "Within", "Without",
}  # fmt: skip
FILES = {str(path.relative_to(ROOT)): path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))}
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Class(NamedTuple):
    """A class of the packages: its module's path, its definition, and its bases' names."""

    path: str
    node: ast.ClassDef

    @property
    def bases(self) -> list[str]:
        """The names of the bases, without what they are subscripted with."""
        return [ast.unparse(base).split("[")[0] for base in self.node.bases]

    @property
    def methods(self) -> dict[str, bool]:
        """The public methods, each with whether it has a docstring."""
        return {
            each.name: ast.get_docstring(each) is not None
            for each in self.node.body
            if isinstance(each, ast.FunctionDef) and not each.name.startswith("_")
        }


TREES = {name: ast.parse(path.read_text()) for name, path in FILES.items()}
CLASSES = {
    (name, node.name): Class(name, node)
    for name, tree in TREES.items()
    for node in ast.walk(tree)
    if isinstance(node, ast.ClassDef)
}


def origin(path: str, name: str) -> Class | None:
    """The class of the packages that a name stands for in a file; None for any other."""
    if (path, name) in CLASSES:
        return CLASSES[path, name]
    module, _, attribute = name.rpartition(".")
    for node in ast.walk(TREES.get(path, ast.Module([], []))):
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        for alias in node.names:
            local = alias.asname or alias.name
            if local not in (name, module):
                continue
            source = node.module.replace(".", "/")
            places = (f"{source}.py", f"{source}/__init__.py") if local == name else (f"{source}/{alias.name}.py",)
            for place in places:
                if place in TREES:
                    return origin(place, alias.name if local == name else attribute)
    return None


def documented_above(made: Class, method: str) -> bool:
    """True if a base documents the method: one of the packages, or a module of PyTorch's, whose `forward` is known."""
    for base in made.bases:
        if base.startswith("nn.") and method == "forward":
            return True
        above = origin(made.path, base)
        if above is not None and (above.methods.get(method) or documented_above(above, method)):
            return True
    return False


def documented_by_protocol(made: Class, method: str) -> bool:
    """True if the class has all methods of a Protocol, and that documents the method."""
    return any(
        protocol.methods.get(method, False) and protocol.methods.keys() <= made.methods.keys()
        for protocol in CLASSES.values()
        if "Protocol" in protocol.bases
    )


def documented(path: str) -> Iterator[tuple[Documented, str]]:
    """The docstrings of a file."""
    for node in ast.walk(TREES[path]):
        if isinstance(node, Documented):
            text = ast.get_docstring(node)
            if text is not None:
                yield node, text


@pytest.mark.parametrize("path", FILES)
def test_docstrings_open_with_a_sentence(path: str) -> None:
    faults = [
        f"{path}:{getattr(node, 'lineno', 1)}: {text.splitlines()[0]}"
        for node, text in documented(path)
        if text.split()[0].strip("\"',.:;`()") in OPENERS or text.startswith("Attributes:") or text[0] in "(`"
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("path", FILES)
def test_what_is_public_has_a_docstring(path: str) -> None:
    tree = TREES[path]
    faults = [] if ast.get_docstring(tree) else [f"{path}:1: the module"]
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name.startswith("_"):
            continue
        if not ast.get_docstring(node):
            faults.append(f"{path}:{node.lineno}: {node.name}")
        if isinstance(node, ast.ClassDef):
            made = CLASSES[path, node.name]
            faults += [
                f"{path}:{node.lineno}: {node.name}.{method}"
                for method, has_one in made.methods.items()
                if not (has_one or documented_above(made, method) or documented_by_protocol(made, method))
            ]
    assert not faults, "\n".join(faults)
