"""Reads YAML as its authors mean it: 1e-3 is a number, `no` is a word, and a repeated key is an error.

PyYAML follows YAML 1.1, where 1e-3 is a string, `on` is true and 1:30 is ninety; and it keeps the last of two equal
keys. Here plain words are read by the core schema of YAML 1.2, with decimal numbers only.
"""

import re
from collections.abc import Hashable
from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            wrong = "is no word" if not isinstance(key, Hashable) else "is given twice" if key in seen else None
            if wrong:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} {wrong}", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Quotes the words that either version of YAML would take for something else."""


_Loader.yaml_implicit_resolvers = {}  # drops those of YAML 1.1
for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
):
    for _kind in (_Loader, _Dumper):
        _kind.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), list(_first))
_Loader.add_constructor("tag:yaml.org,2002:int", lambda loader, node: int(node.value))


def parse(text: str) -> Any:
    """Returns the value of a YAML document. Raises ValueError, in one line that says where the fault is."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ValueError(f"{where}{error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None


def dump(value: Any) -> str:
    """Returns plain data as YAML with its keys in their order; `parse` gives the data back."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
