"""Experiments files: one shared configuration and a table of variants.

The variant `cd_mage` of auc_mnist.yaml is the experiment auc_mnist_cd_mage. It is called by that name, as if it were a
file beside auc_mnist.yaml (auc_mnist_cd_mage.yaml), or by its file and its own name (auc_mnist.yaml:cd_mage).
"""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, model_validator

from cluster.tree import read_yaml, with_values
from raysim.errors import ConfigError
from raysim.registry import STRICT, nearest, plain, validated

# The experiments that come with raysim lie beside its packages in a checkout; an installed wheel has none.
SHIPPED = Path(__file__).parent.parent / "configs"

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


class Experiments(BaseModel):
    """An experiments file.

    Attributes:
        description: one line that says what the experiments share; `raysim list` shows it.
        base: the configuration that all variants share, or the path of another one, relative to this file. A variant's
            name takes the place of the base's.
        variants: for each variant, by its name, the values in which it differs from the base. Keys are dotted, as in a
            study's `set`; a mapping replaces a whole section.
    """

    model_config = STRICT

    description: str = ""
    base: str | dict[str, Any]
    variants: Annotated[dict[Name, dict[str, Any]], Field(min_length=1)]

    @model_validator(mode="after")
    def _can_be(self) -> "Experiments":
        for variant, values in self.variants.items():
            if "name" in values:
                raise ValueError(f"variant {variant} sets a name, but its name follows from the file's and its own")
            for key in values:
                if section := next((other for other in values if key.startswith(f"{other}.")), None):
                    raise ValueError(f"variant {variant} sets both {section!r} and {key!r}; give one of them")
        return self


@dataclass(frozen=True)
class Variant:
    """One experiment of an experiments file.

    Attributes:
        file: the path of the experiments file.
        name: the variant's name in it.
    """

    file: Path
    name: str

    def __str__(self) -> str:
        return f"in variant {self.name} of {self.file}"

    @cached_property
    def experiments(self) -> Experiments:
        """The file's content. Raises ConfigError naming the file and the key."""
        return load(self.file, read_yaml(self.file))


def find(path: Path) -> Variant | None:
    """Finds the variant that a path means; returns None where the path is that of a file, or means nothing.

    Raises ConfigError where the path names an experiments file and a variant that it does not have.
    """
    if path.is_file():
        return None
    file, colon, name = str(path).rpartition(":")
    if colon and Path(file).is_file():
        variant = Variant(Path(file), name)
        if name not in variant.experiments.variants:
            raise ConfigError(file, f"has no variant {name!r}{nearest(name, variant.experiments.variants)}")
        return variant
    words = path.stem.split("_")
    for place in range(len(words) - 1, 0, -1):
        variant = Variant(path.with_name("_".join(words[:place]) + path.suffix), "_".join(words[place:]))
        if not variant.file.is_file() or not is_experiments(tree := read_yaml(variant.file)):
            continue
        if variant.name in load(variant.file, tree).variants:
            return variant
    return None


def read(path: Path) -> dict[str, Any]:
    """Reads the configuration that a path names: that of a file, or of a variant, with its base and its name.

    Raises:
        ConfigError: naming the file; for an unknown variant the nearest known one, and for an experiments file without
            a variant those that it has.
    """
    return _read(path, ())


def is_experiments(tree: Mapping[str, Any]) -> bool:
    """Returns whether a file that holds this tree is an experiments file."""
    return "variants" in tree


def load(file: Path, tree: Mapping[str, Any]) -> Experiments:
    """Checks the tree that an experiments file holds. Raises ConfigError naming the file and the key."""
    try:
        experiments: Experiments = validated(Experiments, tree, key="", owner="every experiments file")
    except ConfigError as error:
        raise ConfigError(str(file), f"{error.key}: {error.message}" if error.key else error.message) from None
    return experiments


def listed(folder: Path) -> Iterator[tuple[Path, Experiments]]:
    """Yields each experiments file in a folder and the folders below it, in the order of their paths."""
    for file in sorted(folder.rglob("*.yaml")):
        if is_experiments(tree := read_yaml(file)):
            yield file, load(file, tree)


def full_name(file: Path, variant: str) -> str:
    """Returns the name of a variant's experiment."""
    return f"{file.stem}_{variant}"


def _read(path: Path, through: tuple[Path, ...]) -> dict[str, Any]:
    """Reads what `path` names as the base of the experiments files `through`, the outermost first."""
    variant = find(path)
    if variant is None:
        return _plain_file(path)
    if variant.file.resolve() in through:
        raise ConfigError(str(variant.file), f"base leads back to the file itself, through {path}")
    experiments = variant.experiments
    if isinstance(experiments.base, str):
        base = _read(variant.file.parent / experiments.base, (*through, variant.file.resolve()))
    else:
        base = plain(experiments.base)
    try:
        changed = with_values(base, experiments.variants[variant.name])
    except ConfigError as error:
        raise ConfigError(error.key, f"{error.message} ({variant})") from None
    return {**changed, "name": full_name(variant.file, variant.name)}


def _plain_file(path: Path) -> dict[str, Any]:
    if not path.exists() and (beside := _beside(path)):
        names = {full_name(file, variant): file for file, known in beside.items() for variant in known.variants}
        if close := difflib.get_close_matches(path.stem, names, n=1, cutoff=0.5):
            hint = f"did you mean {close[0] + path.suffix!r}, a variant of {names[close[0]].name}?"
        else:
            hint = f"the experiments files there are {', '.join(file.name for file in beside)}"
        raise ConfigError(str(path), f"there is no such file or variant; {hint}")
    tree = read_yaml(path)
    if is_experiments(tree):
        known = list(load(path, tree).variants)
        example = path.with_name(full_name(path, known[0]) + path.suffix)
        raise ConfigError(str(path), f"holds {len(known)} experiments; give one, as {example}: {', '.join(known)}")
    return tree


def _beside(path: Path) -> dict[Path, Experiments]:
    """Returns the experiments files in the folder of a path, without those that cannot be read."""
    found = {}
    for file in sorted(path.parent.glob(f"*{path.suffix}")) if path.suffix else ():
        try:
            if is_experiments(tree := read_yaml(file)):
                found[file] = load(file, tree)
        except ConfigError:
            continue  # the caller reports the error about `path`
    return found
