"""Registries map names to classes, and the settings of a configuration to constructor arguments.

A config key is a keyword of the constructor of the thing that it configures: there is no second schema. A class is
found by its registered name or, for a user's own, by ``package.module:Name``. Its settings are checked against the
constructor's annotations, strictly: a number in quotes is not a number, and an unknown key is an error that names the
nearest known one.
"""

import difflib
import importlib
import inspect
import json
import os
import re
import sys
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from raysim.errors import ConfigError

STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)


@dataclass(frozen=True)
class Registry:
    """A table name -> class for one kind of thing.

    Attributes:
        kind: the word for an entry, which is also its section in a configuration ("algorithm").
        entries: the registered classes.
        injected: constructor keywords that the simulator supplies, so that they are no settings.
        base: the class that every entry derives from, also a user's own.
    """

    kind: str
    entries: Mapping[str, type]
    injected: Collection[str] = ()
    base: type = object

    def find(self, name: str, key: str | None = None) -> type:
        """Returns the class called `name`. Raises ConfigError at the path `key` where there is none."""
        key = key or f"{self.kind}.name"
        if ":" in name:
            cls = _import(name, key)
            if not issubclass(cls, self.base):
                raise ConfigError(key, f"{name!r} does not derive from {self.base.__module__}.{self.base.__name__}")
            return cls
        if name not in self.entries:
            raise ConfigError(key, f"there is no {self.kind} {name!r}{nearest(name, self.entries)}")
        return self.entries[name]

    def settings(self, name: str, given: Mapping[str, Any], key: str | None = None) -> dict[str, Any]:
        """Returns the settings `given`, checked against the constructor and completed with its defaults.

        Raises ConfigError at the path of the first fault.
        """
        key = key or self.kind
        model = _model(self.find(name, f"{key}.name"), frozenset(self.injected))
        checked = validated(model, given, key, owner=name)
        return {field: getattr(checked, field) for field in model.model_fields}

    def build(self, name: str, settings: Mapping[str, Any], key: str | None = None, **supplied: Any) -> Any:
        """Returns an instance, made of checked settings and those `supplied` arguments that its constructor takes.

        Raises ConfigError at the path of the first fault.
        """
        key = key or self.kind
        cls = self.find(name, f"{key}.name")
        takes = _parameters(cls)
        arguments = self.settings(name, settings, key) | {k: v for k, v in supplied.items() if k in takes}
        try:
            return cls(**arguments)
        except ValidationError as error:  # fields may be right each by itself but not together
            raise _blame(error, cls, arguments, key, name) from None

    def takes(self, name: str, keyword: str) -> bool:
        """Returns True if the constructor of the class called `name` has this keyword."""
        return keyword in _parameters(self.find(name))

    def lines(self) -> list[tuple[str, str]]:
        """Returns (name, first line of the docstring) of each entry."""
        return [(name, (inspect.getdoc(cls) or "").split("\n", 1)[0]) for name, cls in self.entries.items()]


def validated(model: type[BaseModel], given: Mapping[str, Any], key: str, owner: str) -> Any:
    """Returns `given` as an instance of `model`. Raises ConfigError, with the dotted path of the fault to mend first.

    The check is made on JSON, whose strict mode takes a list for a tuple but no string for a number.
    """
    tree = plain(given, key)
    try:
        return model.model_validate_json(json.dumps(tree))
    except ValidationError as error:
        raise _blame(error, model, tree, key, owner) from None


def plain(value: Any, path: str = "") -> Any:
    """Returns a copy of `value` in dicts, lists, text and numbers. Raises ConfigError where it holds anything else."""
    try:
        if isinstance(value, Mapping):
            return {str(key): plain(inner, _dotted(path, key)) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [plain(inner, _dotted(path, place)) for place, inner in enumerate(value)]
    except RecursionError:
        raise ConfigError(path.split(".")[0], "contains itself") from None
    if value is None or isinstance(value, str | int | float):
        return value
    kind = f"{type(value).__module__}.{type(value).__name__}".removeprefix("builtins.")
    raise ConfigError(path, f"is of type {kind}; give text, a number, true, false, a list or a mapping")


def nearest(name: str, known: Collection[str]) -> str:
    """Returns the end of an error message: the known name closest to `name`, or all of them."""
    by_lower = {one.lower(): one for one in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {by_lower[close[0]]!r}?"
    return f"; known: {', '.join(known)}" if known else ""


# The types of error by which pydantic reports a key that a model, or a dataclass, does not have.
_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")

# Messages for the types of error whose own message speaks of JSON or Python: a configuration is YAML.
_WORDS = {
    "model_type": "should be a section of its own, keys and values",
    "dict_type": "should be keys and values",
    "list_type": "should be a list",
    "tuple_type": "should be a list",
    "bool_type": "should be true or false",
}


def _blame(error: ValidationError, model: type, given: Any, key: str, owner: str) -> ConfigError:
    """Returns the error for the fault to mend first: an unknown key before the missing key that it may stand for."""
    faults = error.errors(include_url=False)
    fault = next((f for f in faults if f["type"] in _UNKNOWN), faults[0])
    place = _place(fault, given)
    path = _dotted(key, *place)
    if fault["type"] in _UNKNOWN:
        return ConfigError(path, f"unknown key{nearest(str(place[-1]), _known(model, place))}")
    if fault["type"] in ("missing", "missing_argument"):
        return ConfigError(path, f"is required by {owner} and not given")
    first, *others = dict.fromkeys(_reason(f) for f in faults if _place(f, given) == place)
    reason = " or ".join([first, *(other.removeprefix("should be ") for other in others)])
    return ConfigError(path, reason if fault["type"] == "value_error" else f"{reason} (got {fault['input']!r})")


def _place(fault: Any, given: Any) -> list[str | int]:
    """Returns the path of a fault in `given`, without the names that pydantic gives to the branches of a union."""
    place: list[str | int] = []
    for part in fault["loc"]:
        in_tree = part in given if isinstance(given, dict) else isinstance(given, list) and isinstance(part, int)
        if in_tree:
            given = given[part]
            place.append(part)
    return [*place, fault["loc"][-1]] if fault["type"] in ("missing", "missing_argument") else place


def _known(model: Any, place: list[str | int]) -> list[str]:
    """Returns the keys of the section that the last part of `place` is in."""
    for part in place[:-1]:
        field = _fields(model).get(str(part))
        kind = field.annotation if field else None
        model = next((inner for inner in (kind, *typing.get_args(kind)) if _fields(inner)), None)
    return list(_fields(model))


def _fields(model: Any) -> Mapping[str, Any]:
    """Returns the fields of a pydantic model or dataclass, by name."""
    return getattr(model, "model_fields", None) or getattr(model, "__pydantic_fields__", None) or {}


def _reason(fault: Any) -> str:
    message = _WORDS.get(fault["type"]) or fault["msg"].removeprefix("Value error, ")
    return re.sub(r"^\w+ (?=should )", "", message)  # "Input should", "String should", ...


def _dotted(*parts: str | int) -> str:
    return ".".join(str(part) for part in parts if part != "")


def _import(name: str, key: str) -> type:
    module, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), attribute)):
        raise ConfigError(key, f"{name!r} is not of the form package.module:Name")
    if os.getcwd() not in sys.path:  # a console script, unlike python -m, leaves the working directory out
        sys.path.append(os.getcwd())
    try:
        imported = getattr(importlib.import_module(module), attribute, None)
    except Exception as error:  # the module is the user's, and may fail in any way
        cause = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(key, f"cannot import {module!r} for {name!r} ({cause})") from error
    if not isinstance(imported, type):
        raise ConfigError(key, f"{module!r} has no class {attribute!r}")
    return imported


def _parameters(cls: type) -> Mapping[str, inspect.Parameter]:
    """Returns the constructor's parameters, where inspect.signature(cls) would give those of a pydantic base."""
    owner = _owner(cls)
    if "__signature__" in vars(owner):
        return inspect.signature(owner).parameters
    _, *parameters = inspect.signature(owner.__init__).parameters.items()  # type: ignore[misc]
    return dict(parameters)


def _owner(cls: type) -> type:
    """Returns the class that the constructor of `cls` comes from."""
    return next(base for base in cls.__mro__ if "__init__" in vars(base))


def _model(cls: type, injected: frozenset[str]) -> type[BaseModel]:
    """Returns a pydantic model of the keywords of `cls`'s constructor, without the injected ones."""
    annotated = cls if "__dataclass_fields__" in vars(_owner(cls)) else cls.__init__  # type: ignore[misc]
    hints = typing.get_type_hints(annotated, include_extras=True)
    fields: dict[str, Any] = {}
    for parameter in _parameters(cls).values():
        if parameter.name in injected or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        default = parameter.default if parameter.default is not parameter.empty else ...
        fields[parameter.name] = (hints.get(parameter.name, Any), Field(default))
    return create_model(cls.__name__, __config__=STRICT, **fields)
