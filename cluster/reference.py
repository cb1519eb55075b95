"""The tables of configuration keys in docs/, made from the typed models and their docstrings.

A page marks the place of a table, and says which keys it has:

    <!-- keys: evaluate=cluster.config:EvaluateConfig -->
    <!-- end of keys -->

Each word is ``prefix=package.module:Class``, or ``prefix=package.module:REGISTRY.name`` for a registered class, whose
settings are the keywords of its constructor; without a prefix the keys stand alone. `python -m cluster.reference`
writes the tables of all pages anew.
"""

import dataclasses
import importlib
import inspect
import re
import types
import typing
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from raysim.registry import Registry

PAGES = Path(__file__).parent.parent / "docs"

_MARKED = re.compile(r"(<!-- keys: ([^>]*?)\s*-->\n).*?(<!-- end of keys -->)", re.DOTALL)
_ENTRY = re.compile(r" {4}(\w+(?:, \w+)*): (.*)")


@dataclass(frozen=True)
class Row:
    """A row of a table: a key, or several that are explained together.

    Attributes:
        keys: the dotted keys.
        values: which values are allowed, for each key.
        defaults: the default values as YAML, for each key; "required" where there is none.
        meaning: the explanation in the docstring.
    """

    keys: tuple[str, ...]
    values: tuple[str, ...]
    defaults: tuple[str, ...]
    meaning: str


def rows(model: type, prefix: str = "", without: Collection[str] = ()) -> list[Row]:
    """Returns the rows of a model's keys, in the order of its fields.

    Args:
        model: a pydantic model, a dataclass, or another class whose constructor has annotations.
        prefix: the section of the keys.
        without: names of fields that are no keys.

    Raises:
        LookupError: a field has no entry under ``Attributes:`` in the docstring of its class or a base class.
    """
    explained = entries(model)
    found: list[Row] = []
    before: Entry | None = None
    for name, field in _fields(model).items():
        if name in without:
            continue
        if name not in explained:
            raise LookupError(f"{model.__module__}.{model.__qualname__}: {name} is not explained under Attributes")
        key = f"{prefix}.{name}" if prefix else name
        cells = (values(field.annotation, field.metadata),), (_default(field),)
        entry = explained[name]
        if entry is before:
            last = found.pop()
            found.append(Row((*last.keys, key), (*last.values, *cells[0]), (*last.defaults, *cells[1]), entry.meaning))
        else:
            found.append(Row((key,), *cells, entry.meaning))
        before = entry
    return found


def table(given: list[Row]) -> str:
    """Returns rows as a Markdown table."""
    lines = ["| key | values | default | meaning |", "|---|---|---|---|"]
    for row in given:
        cells = (", ".join(f"`{key}`" for key in row.keys), _joined(row.values), _joined(row.defaults), row.meaning)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def rewritten(page: str) -> str:
    """Returns a page with each marked table made anew. Raises LookupError or ValueError where a mark is wrong."""

    def made(match: re.Match[str]) -> str:
        found = [row for word in match[2].split() for row in _named(word)]
        return f"{match[1]}{table(found)}{match[3]}"

    if page.count("<!-- keys:") != len(_MARKED.findall(page)):
        raise ValueError("a table of keys is not closed by <!-- end of keys -->")
    return _MARKED.sub(made, page)


@dataclass(frozen=True, eq=False)
class Entry:
    """One entry of a docstring's ``Attributes:``.

    Attributes:
        names: those that it explains, in the order in which they stand.
        meaning: the text, in one line.
    """

    names: tuple[str, ...]
    meaning: str


def entries(cls: type) -> Mapping[str, Entry]:
    """Returns the entries of a class's docstring and its bases', by attribute; the class's own replace the bases'."""
    found = {}
    for base in reversed(cls.__mro__):
        for entry in _entries(vars(base).get("__doc__") or ""):
            found.update(dict.fromkeys(entry.names, entry))
    return found


def values(annotation: Any, metadata: Collection[Any] = ()) -> str:
    """Returns which values an annotation allows, in words. None is left out: the default says that it is allowed."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return values(arguments[0], [*metadata, *arguments[1:]])
    if origin is Literal:
        return ", ".join(_code(value) for value in arguments)
    if origin in (typing.Union, types.UnionType):
        parts = [values(argument, metadata) for argument in arguments if argument is not type(None)]
        return " or ".join(dict.fromkeys(parts))
    if origin in (tuple, list):
        if origin is tuple and arguments[-1] is not Ellipsis:
            return "list: " + ", ".join(values(argument) for argument in arguments)
        inner = "" if arguments[0] is Any else f" of {values(arguments[0])}"
        return f"list{inner}s" if inner == " of section" else f"list{inner}"
    if origin is dict:
        inner = arguments[1]
        return "mapping" if inner is Any else f"mapping, each value a {values(inner)}"
    if annotation is bool:
        return "`true`, `false`"
    if annotation in (int, float):
        return " ".join(filter(None, ("integer" if annotation is int else "number", _bounds(metadata))))
    if annotation is str:
        return "text"
    if isinstance(annotation, type) and _fields(annotation):
        return "section"
    raise ValueError(f"there are no words for the annotation {annotation}")


def _bounds(metadata: Collection[Any]) -> str:
    """Returns the bounds of a number: > 0, or in [0, 1)."""
    low = high = None
    for one in _flat(metadata):
        if isinstance(one, annotated_types.Ge | annotated_types.Gt):
            low = (one.ge, "[", "≥") if isinstance(one, annotated_types.Ge) else (one.gt, "(", ">")
        elif isinstance(one, annotated_types.Le | annotated_types.Lt):
            high = (one.le, "]", "≤") if isinstance(one, annotated_types.Le) else (one.lt, ")", "<")
    if low and high:
        return f"in {low[1]}{_number(low[0])}, {_number(high[0])}{high[1]}"
    one_sided = low or high
    return f"{one_sided[2]} {_number(one_sided[0])}" if one_sided else ""


def _flat(metadata: Collection[Any]) -> Iterator[Any]:
    for one in metadata:
        if isinstance(one, FieldInfo):
            yield from one.metadata
        else:
            yield one


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None:
        return "none"
    if isinstance(value, BaseModel) and not value.model_dump(exclude_defaults=True):
        return ""  # a section: each of its keys has its own default
    return _code(value)


def _code(value: Any) -> str:
    return f"`{_yaml(value)}`"


def _yaml(value: Any) -> str:
    """Returns a value as one writes it in a configuration."""
    if isinstance(value, BaseModel):
        value = value.model_dump(exclude_defaults=True)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_yaml(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_yaml, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return _number(value) if isinstance(value, int | float) else str(value) or '""'


def _number(value: Any) -> str:
    if isinstance(value, int):
        return f"2^{value.bit_length() - 1}" if value > 2**31 and value & (value - 1) == 0 else str(value)
    short = f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return re.sub(r"e\+?(-?)0*", r"e\1", short)


def _joined(cells: tuple[str, ...]) -> str:
    return cells[0] if len(set(cells)) == 1 else ", ".join(cells)


def _entries(docstring: str) -> Iterator[Entry]:
    _, found, section = f"\n{inspect.cleandoc(docstring)}\n".partition("\nAttributes:\n")
    lines = section.splitlines() if found else []
    at = 0
    while at < len(lines) and (begun := _ENTRY.fullmatch(lines[at])):
        text = [begun[2]]
        at += 1
        while at < len(lines) and lines[at].startswith(" " * 8):
            text.append(lines[at].strip())
            at += 1
        yield Entry(tuple(begun[1].split(", ")), " ".join(text))


def _fields(cls: Any) -> Mapping[str, FieldInfo]:
    """Returns the fields of a pydantic model or dataclass, or the keywords of another class's constructor."""
    for place in ("model_fields", "__pydantic_fields__"):
        if hasattr(cls, place):
            return typing.cast(Mapping[str, FieldInfo], getattr(cls, place))
    if cls.__init__ is object.__init__:
        return {}
    hints = typing.get_type_hints(cls.__init__, include_extras=True)
    parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
    return {
        p.name: FieldInfo.from_annotation(hints[p.name])
        if p.default is p.empty
        else FieldInfo.from_annotated_attribute(hints[p.name], p.default)
        for p in parameters
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    }


def _named(word: str) -> list[Row]:
    """Returns the rows that a word of a mark asks for."""
    prefix, equals, place = word.rpartition("=")
    module, colon, attribute = place.partition(":")
    owner, _, registered = attribute.partition(".")
    found = getattr(importlib.import_module(module), owner) if colon else None
    if isinstance(found, Registry):
        return rows(found.find(registered), prefix, found.injected)
    if not isinstance(found, type) or (equals and not prefix):
        raise ValueError(f"{word!r} in a mark is not of the form prefix=package.module:Class")
    return rows(found, prefix)


def main() -> None:
    """Writes the tables of all pages anew, and prints the pages that have changed."""
    for page in sorted(PAGES.glob("*.md")):
        before = page.read_text(encoding="utf-8")
        if (after := rewritten(before)) != before:
            page.write_text(after, encoding="utf-8")
            print(f"wrote {page}")  # noqa: T201 - a command


if __name__ == "__main__":
    main()
