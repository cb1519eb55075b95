"""Configurations as plain trees of mappings: read from YAML, and changed at dotted keys."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cluster import yaml12
from raysim.errors import ConfigError
from raysim.registry import plain


def with_values(tree: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a copy of a configuration with other values at dotted keys; a mapping replaces a whole section.

    Raises ConfigError where a key leads through a value that is not a section.
    """
    changed: dict[str, Any] = plain(tree)
    for path, value in values.items():
        _put(changed, path, plain(value, path))
    return changed


def flat(tree: Any, path: str = "") -> dict[str, Any]:
    """Returns the leaves of a tree of mappings by their dotted keys."""
    if not isinstance(tree, Mapping):
        return {path: tree}
    return {
        place: value
        for key, inner in tree.items()
        for place, value in flat(inner, f"{path}.{key}" if path else str(key)).items()
    }


def read_yaml(path: Path) -> dict[str, Any]:
    """Reads the mapping that a file holds. Raises ConfigError naming the file."""
    try:
        tree = yaml12.parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise ConfigError(str(path), f"is not valid YAML: {error}") from None
    if not isinstance(tree, dict):
        raise ConfigError(str(path), "must be a mapping of keys to values")
    return tree


def override(tree: dict[str, Any], given: str) -> None:
    """Sets in a tree what a ``key.sub=value`` gives, the value in YAML. Raises ConfigError."""
    path, value = parted(given)
    _put(tree, path, value)


def parted(given: str) -> tuple[str, Any]:
    """Splits a ``key.sub=value`` into the key and the value. Raises ConfigError."""
    path, equals, text = given.partition("=")
    path = path.strip()
    if not equals or not all(path.split(".")):
        raise ConfigError(f"-o {given}", "is not of the form key.sub=value")
    try:
        return path, yaml12.parse(text)
    except ValueError as error:
        raise ConfigError(path, f"{text!r} is not valid YAML: {error}") from None


def _put(tree: dict[str, Any], path: str, value: Any) -> None:
    *sections, last = path.split(".")
    for depth, section in enumerate(sections, start=1):
        tree = tree.setdefault(section, {})
        if not isinstance(tree, dict):
            raise ConfigError(path, f"cannot be set, since {'.'.join(sections[:depth])} is no section")
    tree[last] = value
