"""The tables of keys in the documents: what they say of a model, and that the pages say it."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from cluster.config import Config
from cluster.reference import PAGES, Row, rewritten, rows, table, values
from cluster.study import StudyConfig
from raysim.algorithms import ALGORITHMS
from raysim.devices import AVAILABILITY


class Inner(BaseModel):
    """Holds a section."""

    a: int = 1


class Below(BaseModel):
    """Is a base.

    Attributes:
        size: how many | how large,
            over two lines.
        old: explained here, and anew in the class above.

    Other text: is no entry.
    """

    size: Annotated[int, Field(ge=1)]
    old: bool = False


class Model(Below):
    """Has keys of every kind.

    Attributes:
        old: explained anew.
        low, high: the two ends.
        inner: a section.
        maybe: nothing, or a number.
    """

    low: Annotated[float, Field(gt=0)] = 1e-6
    high: Annotated[float, Field(ge=0, lt=1)] = 0.5
    inner: Inner = Inner()
    maybe: Annotated[float, Field(ge=0)] | Literal["auto"] | None = None


def test_rows_follow_the_fields_and_the_docstrings_of_class_and_base() -> None:
    assert rows(Model, "top") == [
        Row(("top.size",), ("integer ≥ 1",), ("required",), "how many | how large, over two lines."),
        Row(("top.old",), ("`true`, `false`",), ("`false`",), "explained anew."),
        Row(
            ("top.low", "top.high"), ("number > 0", "number in [0, 1)"), ("`1e-6`", "`0.5`"), "the two ends."
        ),
        Row(("top.inner",), ("section",), ("",), "a section."),
        Row(("top.maybe",), ("number ≥ 0 or `auto`",), ("none",), "nothing, or a number."),
    ]  # fmt: skip
    assert rows(Model, without=("old", "low"))[1].keys == ("high",)


def test_a_table_is_markdown_whatever_its_cells_hold() -> None:
    lines = table(rows(Model)).splitlines()
    assert lines[0] == "| key | values | default | meaning |"
    assert lines[2] == r"| `size` | integer ≥ 1 | required | how many \| how large, over two lines. |"
    assert lines[4] == "| `low`, `high` | number > 0, number in [0, 1) | `1e-6`, `0.5` | the two ends. |"
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {5}


def test_a_key_that_is_not_explained_is_an_error() -> None:
    class Silent(Model):
        """Explains nothing.

        Attributes: see `Model`.
        """

        more: int = 3

    with pytest.raises(LookupError, match=r"Silent: more is not explained under Attributes"):
        rows(Silent)
    assert len(rows(Silent, without=("more",))) == 5, "the base's entries count"


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (bool, "`true`, `false`"),
        (str, "text"),
        (Annotated[int, Field(ge=0, lt=2**63)], "integer in [0, 2^63)"),
        (Annotated[float, Field(ge=1e-6, le=1e9)], "number in [1e-6, 1e9]"),
        (Annotated[float, Field(le=3)], "number ≤ 3"),
        (Literal["a", "b"], "`a`, `b`"),
        (int | Literal["auto"] | None, "integer or `auto`"),
        (tuple[Literal["a", "b"], ...], "list of `a`, `b`"),
        (tuple[float, int], "list: number, integer"),
        (list[Inner], "list of sections"),
        (list[Any], "list"),
        (dict[str, Any], "mapping"),
        (dict[str, Annotated[float, Field(gt=0)]], "mapping, each value a number > 0"),
        (str | Inner, "text or section"),
    ],
)
def test_values_in_words(annotation: Any, words: str) -> None:
    assert values(annotation) == words


@dataclass(frozen=True)
class Method:
    """Is a method.

    Attributes:
        S, K: as for the other.
        eta: a step size.
        clients: supplied.
    """

    S: int
    K: int
    eta: Annotated[float, Field(gt=0)] = 1e-3
    clients: int = 0


def test_keywords_of_a_constructor_are_keys_too() -> None:
    assert rows(Method, "algorithm", ("clients",)) == [
        Row(("algorithm.S", "algorithm.K"), ("integer", "integer"), ("required", "required"), "as for the other."),
        Row(("algorithm.eta",), ("number > 0",), ("`0.001`",), "a step size."),
    ]


def test_registered_classes_have_rows() -> None:
    markov = rows(AVAILABILITY.find("markov"), "devices.availability", AVAILABILITY.injected)
    assert {key.rpartition(".")[2] for row in markov for key in row.keys} == {"share", "label", "mean_on_s", "diurnal"}
    assert rows(AVAILABILITY.find("always")) == []
    cd_mage = [key for row in rows(ALGORITHMS.find("cd_mage"), without=ALGORITHMS.injected) for key in row.keys]
    assert cd_mage == ["S", "K", "batch", "same_clients", "eta", "gamma"]


def test_a_mark_is_filled_and_the_rest_of_a_page_is_left_alone() -> None:
    mark = f"<!-- keys: a={__name__}:Below b={__name__}:Method -->\n"
    page = f"before\n\n{mark}old\n<!-- end of keys -->\n\nafter\n"
    made = rewritten(page)
    assert made == f"before\n\n{mark}{table([*rows(Below, 'a'), *rows(Method, 'b')])}<!-- end of keys -->\n\nafter\n"
    assert rewritten(made) == made
    with pytest.raises(ValueError, match="not closed"):
        rewritten(mark)
    with pytest.raises(ValueError, match="not of the form"):
        rewritten(page.replace(f"b={__name__}:Method", "Method"))


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda page: page.name)
def test_every_page_says_what_the_models_say(page: Path) -> None:
    written = page.read_text(encoding="utf-8")
    assert rewritten(written) == written, "run: python -m cluster.reference"


def keys(model: Any, prefix: str = "") -> set[str]:
    """Returns the dotted keys of a model and of the sections in it."""
    found = set()
    for name, field in model.model_fields.items():
        found.add(f"{prefix}{name}")
        for kind in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(kind, type) and issubclass(kind, BaseModel) and kind.__name__ != "Choice":
                found |= keys(kind, f"{prefix}{name}.")
    return found


def test_every_key_of_a_configuration_and_of_a_study_stands_in_a_table() -> None:
    told = {
        page: set(re.findall(r"`([\w.]+)`", _first_cells(page))) for page in ("configuration", "devices", "studies")
    }
    assert keys(Config) <= told["configuration"] | told["devices"]
    assert {key for key in keys(StudyConfig) if not key.startswith(("ray.", "parts."))} <= told["studies"]


def _first_cells(page: str) -> str:
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    return "\n".join(line.split("|")[1] for line in text.splitlines() if line.startswith("|"))
