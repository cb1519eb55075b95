"""YAML as a person means it, and back."""

import math
from typing import Any

import pytest

from cluster import yaml12

KNOWN: list[tuple[str, Any]] = [
    ("1e-3", 0.001), ("1E5", 1e5), ("+1.5", 1.5), (".5", 0.5), ("2.", 2.0), ("-.inf", -math.inf), ("1e1", 10.0),
    ("10", 10), ("-7", -7), ("010", 10), ("0x10", "0x10"), ("1_000", "1_000"),
    ("no", "no"), ("on", "on"), ("Yes", "Yes"), ("true", True), ("False", False), ("'false'", "false"),
    ("1:30", "1:30"), ("2001-01-01", "2001-01-01"), ("e5", "e5"), ("1e-3x", "1e-3x"),
    ("", None), ("~", None), ("null", None), ("nil", "nil"),
    ("[1, 1e-1, no]", [1, 0.1, "no"]), ("{a: 1, b: {c: on}}", {"a": 1, "b": {"c": "on"}}),
]  # fmt: skip


@pytest.mark.parametrize(("text", "value"), KNOWN, ids=[text or "nothing" for text, _ in KNOWN])
def test_known_answers(text: str, value: Any) -> None:
    parsed = yaml12.parse(text)
    assert parsed == value
    assert type(parsed) is type(value)


def test_not_a_number() -> None:
    assert math.isnan(yaml12.parse(".nan"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\nb: 2\na: 3\n", "line 3, column 1: the key 'a' is given twice"),
        ("a: {b: 1, b: 2}", "line 1, column 11: the key 'b' is given twice"),
        ("a: [1", "line 1, column 6: expected ',' or ']'"),
        ("a:\n\tb: 1", "line 2, column 1: found character '\\t'"),
        ("? [a]\n: 1", "the key ['a'] is no word"),
        ("a: *b", "line 1, column 4: found undefined alias 'b'"),
        ("!!python/object:os.system 1", "could not determine a constructor"),
        ("a: 1\n---\nb: 2\n", "line 2, column 1: but found another document"),
        ("a: \x00", "special characters are not allowed"),
    ],
)
def test_faults_are_one_line_with_their_place(text: str, words: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the words are checked just below
        yaml12.parse(text)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "value",
    ["1e-3", "12e4567", "no", "on", "true", "null", "~", "", "1:30", "0x10", "1_000", "10", ".5", ".inf", "2001-01-01",
     "é #1", "a: b", 1e-7, 0.1, 1e22, 1.0, math.inf, 10, -3, True, None, [], {}, [0, 1], {"a": [None, {"b": "c"}]}],
    ids=repr,
)  # fmt: skip
def test_what_is_dumped_is_parsed_to_the_same(value: Any) -> None:
    (again,) = yaml12.parse(yaml12.dump({"key": value})).values()
    assert again == value
    assert type(again) is type(value)


def test_dump_keeps_the_order_of_keys() -> None:
    assert yaml12.dump({"b": 1, "a": 2}) == "b: 1\na: 2\n"
