"""Names to classes, and settings to constructor arguments.

A config key is a keyword of the constructor of the thing it configures: there is no second schema. A class is found by its
registered name or, for a user's own, by ``package.module:Name``. Its settings are checked against the constructor's
annotations, strictly: a number in quotes is not a number, and an unknown key is an error that names the nearest known one.
"""

import difflib
import importlib
import inspect
import json
import os
import sys
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass, is_dataclass
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
    """

    kind: str
    entries: Mapping[str, type]
    injected: Collection[str] = ()

    def find(self, name: str, key: str | None = None) -> type:
        """The class called `name`; `key` is the configuration path to blame."""
        key = key or f"{self.kind}.name"
        if ":" in name:
            return _imported(name, key)
        if name not in self.entries:
            raise ConfigError(key, f"there is no {self.kind} {name!r}{nearest(name, self.entries)}")
        return self.entries[name]

    def settings(self, name: str, given: Mapping[str, Any], key: str | None = None) -> dict[str, Any]:
        """`given`, checked against the constructor and completed with its defaults."""
        key = key or self.kind
        model = _model(self.find(name, f"{key}.name"), frozenset(self.injected))
        checked = validated(model, given, key, owner=name)
        return {field: getattr(checked, field) for field in model.model_fields}

    def build(self, name: str, settings: Mapping[str, Any], key: str | None = None, **supplied: Any) -> Any:
        """The instance: checked settings plus those of the `supplied` arguments that its constructor takes."""
        cls = self.find(name)
        takes = inspect.signature(cls).parameters
        arguments = self.settings(name, settings, key) | {k: v for k, v in supplied.items() if k in takes}
        try:
            return cls(**arguments)
        except ValidationError as error:
            raise _first(error, key or self.kind, type(error).__name__, ()) from None

    def lines(self) -> list[tuple[str, str]]:
        """(name, first line of the docstring) of each entry."""
        return [(name, (inspect.getdoc(cls) or "").split("\n", 1)[0]) for name, cls in self.entries.items()]


def validated(model: type[BaseModel], given: Mapping[str, Any], key: str, owner: str) -> Any:
    """`given` as an instance of `model`, or the first fault as a ConfigError with its dotted path.

    The check is made on JSON, whose strict mode takes a list for a tuple but no string for a number.
    """
    try:
        text = json.dumps(given)
    except TypeError as error:
        raise ConfigError(key, f"holds a value that is not plain data ({error})") from None
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        raise _first(error, key, owner, list(model.model_fields)) from None


def nearest(name: str, known: Collection[str]) -> str:
    """The end of an error message: the known name closest to `name`, or all of them."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(known)}" if known else ""


def _first(error: ValidationError, key: str, owner: str, known: Collection[str]) -> ConfigError:
    fault = error.errors()[0]
    path = ".".join(part for part in (key, *map(str, fault["loc"])) if part)
    if fault["type"] == "extra_forbidden":
        return ConfigError(path, f"unknown key{nearest(str(fault['loc'][-1]), known)}")
    if fault["type"] in ("missing", "missing_argument"):
        return ConfigError(path, f"is required by {owner!r} and not given")
    message = fault["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return ConfigError(path, f"{message} (got {fault['input']!r})")


def _imported(name: str, key: str) -> type:
    module, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:  # a console script, unlike python -m, leaves the working directory out
        sys.path.append(os.getcwd())
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except ImportError as error:
        raise ConfigError(key, f"cannot import {module!r} for {name!r}: {error}") from error
    if not isinstance(found, type):
        raise ConfigError(key, f"{module!r} has no class {attribute!r}")
    return found


def _model(cls: type, injected: frozenset[str]) -> type[BaseModel]:
    """A pydantic model of `cls`'s constructor keywords, without the injected ones."""
    annotated = cls if is_dataclass(cls) else cls.__init__  # type: ignore[misc]
    hints = typing.get_type_hints(annotated, include_extras=True)
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(cls).parameters.values():
        if parameter.name in injected or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        default = parameter.default if parameter.default is not parameter.empty else ...
        fields[parameter.name] = (hints.get(parameter.name, Any), Field(default))
    return create_model(cls.__name__, __config__=STRICT, **fields)
