"""Names to classes and settings to arguments, on a registry of its own."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, PositiveInt, model_validator
from pydantic.dataclasses import dataclass as record

from raysim.errors import ConfigError
from raysim.registry import STRICT, Registry, nearest, plain


class Animal:
    """Anything with legs."""


@record(frozen=True, kw_only=True, config=STRICT)
class Dog(Animal):
    """A dog.

    Not a cat.
    """

    legs: PositiveInt = 4
    names: tuple[str, ...] = ()
    weight: Annotated[float, Field(gt=0)] | Literal["unknown"] = "unknown"

    @model_validator(mode="after")
    def _names_fit(self) -> "Dog":
        if len(self.names) > self.legs:
            raise ValueError("more names than legs")
        return self


class Snail(Animal):
    def __init__(self, shell: str, size: int, turns: int = 3) -> None:
        self.shell, self.size, self.turns = shell, size, turns


@dataclass(frozen=True)
class Stone:
    """No animal, for all that."""


ANIMALS = Registry("animal", {"dog": Dog, "snail": Snail}, injected=("shell",), base=Animal)


def test_settings_are_checked_and_completed() -> None:
    assert ANIMALS.settings("dog", {"names": ["Rex"]}) == {"legs": 4, "names": ("Rex",), "weight": "unknown"}
    assert ANIMALS.settings("snail", {"size": 2}) == {"size": 2, "turns": 3}


def test_build_gives_what_is_injected_to_those_who_take_it() -> None:
    snail = ANIMALS.build("snail", {"size": 2}, shell="round")
    assert (snail.shell, snail.size, snail.turns) == ("round", 2, 3)
    assert ANIMALS.build("dog", {"legs": 3}, shell="round") == Dog(legs=3)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("dgo", {}, "animal.name: there is no animal 'dgo'; did you mean 'dog'?"),
        ("q", {}, "animal.name: there is no animal 'q'; known: dog, snail"),
        ("dog", {"leg": 3}, "animal.leg: unknown key; did you mean 'legs'?"),
        ("dog", {"legs": 0}, "animal.legs: should be greater than 0 (got 0)"),
        ("dog", {"legs": 4.0}, "animal.legs: should be a valid integer (got 4.0)"),
        ("dog", {"names": "Rex"}, "animal.names: should be a list (got 'Rex')"),
        ("dog", {"names": ["Rex", 3]}, "animal.names.1: should be a valid string (got 3)"),
        ("dog", {"weight": "heavy"}, "animal.weight: should be a valid number or 'unknown' (got 'heavy')"),
        ("dog", {"legs": 1, "names": ["a", "b"]}, "animal: more names than legs"),
        ("snail", {}, "animal.size: is required by snail and not given"),
        ("snail", {"sise": 3}, "animal.sise: unknown key; did you mean 'size'?"),
        ("snail", {"size": 3, "shell": "flat"}, "animal.shell: unknown key; known: size, turns"),
        ("tests.raysim.test_registry:Stone", {}, "does not derive from tests.raysim.test_registry.Animal"),
    ],
)
def test_refused(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        ANIMALS.build(name, settings)
    assert message in str(error.value)


def test_the_section_to_blame_can_be_another() -> None:
    for call in (ANIMALS.build, ANIMALS.settings):
        with pytest.raises(ConfigError) as error:
            call("dog", {"legs": 0}, key="zoo.first")
        assert error.value.key == "zoo.first.legs"
        with pytest.raises(ConfigError) as error:
            call("cow", {}, key="zoo.first")
        assert error.value.key == "zoo.first.name"


def test_a_class_of_ones_own() -> None:
    own = f"{__name__}:Dog"
    assert ANIMALS.find(own) is Dog
    assert ANIMALS.build(own, {"legs": 3}) == Dog(legs=3)
    with pytest.raises(ConfigError, match=r"^animal\.legz: unknown key; did you mean 'legs'\?$"):
        ANIMALS.settings(own, {"legz": 3})


@dataclass(frozen=True, kw_only=True)
class Puppy(Dog):
    age: int


class Wolf(Dog):
    def __init__(self, pack: int, size: float = 1.0) -> None:
        object.__setattr__(self, "pack", pack)


class Poodle(Dog):
    pass


def test_classes_that_derive_from_a_record() -> None:
    assert ANIMALS.build(f"{__name__}:Puppy", {"legs": 3, "age": 1}) == Puppy(legs=3, age=1)
    assert ANIMALS.settings(f"{__name__}:Wolf", {"pack": 7}) == {"pack": 7, "size": 1.0}
    assert ANIMALS.build(f"{__name__}:Wolf", {"pack": 7}).pack == 7
    assert ANIMALS.build(f"{__name__}:Poodle", {"legs": 3}).legs == 3
    for name, key in (("Puppy", "age"), ("Wolf", "pack")):
        with pytest.raises(ConfigError, match=f"animal.{key}: should be a valid integer"):
            ANIMALS.settings(f"{__name__}:{name}", {key: "1"})


def test_lines_are_the_first_of_each_docstring() -> None:
    assert ANIMALS.lines() == [("dog", "A dog."), ("snail", "Anything with legs.")]


def test_nearest() -> None:
    assert nearest("K_", ("K", "S")) == "; did you mean 'K'?"
    assert nearest("k", ("K", "S")) == "; did you mean 'K'?"
    assert nearest("zzz", ("K", "S")) == "; known: K, S"
    assert nearest("zzz", ()) == ""


def test_plain_copies() -> None:
    given = {"a": (1, {"b": [None, True]}), 2: "c"}
    copied = plain(given)
    assert copied == {"a": [1, {"b": [None, True]}], "2": "c"}
    copied["a"][1]["b"].append(3)
    assert given == {"a": (1, {"b": [None, True]}), 2: "c"}
    given["a"] = given  # type: ignore[assignment]
    with pytest.raises(ConfigError, match=r"^a: contains itself$"):
        plain(given)
