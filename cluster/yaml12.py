"""YAML as a person means it: 1e-3 is a number, `no` is a word, a key given twice is a mistake.

PyYAML follows YAML 1.1, where 1e-3 is a string, `on` is true and 1:30 is ninety; and it keeps the last of two equal keys.
"""

import re
from collections.abc import Hashable
from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    """The core schema of YAML 1.2."""

    yaml_implicit_resolvers: dict[str, Any] = {}

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} is given twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", "-+.0123456789"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), list(_first))
_Loader.add_constructor("tag:yaml.org,2002:int", lambda loader, node: int(node.value))


def parse(text: str) -> Any:
    """The value of a YAML document. Raises yaml.YAMLError, whose text has line and column."""
    return yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader


def dump(value: Any) -> str:
    """Plain data as YAML, keys in their order."""
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
