"""Studies: runs of one or several configurations with other values for some of their keys."""

import csv
import hashlib
import io
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, model_validator

from clients.placement import Count
from cluster import variants, yaml12
from cluster.config import Config, RayConfig, load_config
from cluster.experiment import require_known
from cluster.tree import flat, override, parted, read_yaml, with_values
from raysim.errors import ConfigError
from raysim.registry import STRICT, nearest, plain, validated

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
LONGEST = 100  # characters in a trial's name

# Names in a study's folder: the study's file, the table of its trials, and the folder that holds theirs.
STUDY, TABLE, TRIALS = "study.yaml", "trials.csv", "trials"

Status = Literal["waiting", "finished", "failed", "ended early", "stopped"]


class Part(BaseModel):
    """Holds configurations that begin from the same one.

    Attributes:
        base: the configuration at which trials begin, or the path of one, relative to the study's file.
        set: other values for its keys, by dotted key, as with `-o`; a mapping replaces a whole section.
        grid: lists of values by dotted key. Every combination is a trial. `devices: [always_on, phones_global]` is a
            list of values too.
    """

    model_config = STRICT

    base: str | dict[str, Any] | None = None
    set: dict[str, Any] = {}
    grid: dict[str, list[Any]] = {}


class Early(BaseModel):
    """Holds section `early`: trials that are behind are ended, by ASHA (Li et al. 2020, arXiv 1810.05934, algorithm 2).

    Attributes:
        over: keys such as step sizes. Only trials that differ in nothing but these keys are compared; trials of
            different seeds never are.
        grace: how many rounds every trial is given.
        reduction: of this many trials that come to `grace` rounds, one goes on; of those again after `reduction` times
            as many rounds, and so on.
    """

    model_config = STRICT

    over: Annotated[tuple[str, ...], Field(min_length=1)]
    grace: Count
    reduction: Annotated[int, Field(ge=2)] = 4


class Select(BaseModel):
    """Holds section `select`: which settings are best, by the median over seeds of a metric at a budget.

    Attributes:
        by: keys. There is a best setting for each combination of their values.
        metric: the metric that decides; without one, the headline metric.
        split: the split on which it is taken; without one, the last of those that a run evaluated.
        higher_is_better: whether high values of `metric` are good. It is needed beside `metric`, and only there.
        rounds, bytes_up, simulated_hours: the budget, of which one may be given: the last evaluation within it counts.
            Without a budget the last evaluation of all counts.
    """

    model_config = STRICT

    by: tuple[str, ...] = ("algorithm.name",)
    metric: str | None = None
    split: Literal["train", "test"] | None = None
    higher_is_better: bool | None = None
    rounds: Count | None = None
    bytes_up: Annotated[float, Field(gt=0)] | None = None
    simulated_hours: Annotated[float, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _can_be(self) -> "Select":
        if sum(budget is not None for budget in (self.rounds, self.bytes_up, self.simulated_hours)) > 1:
            raise ValueError("give one budget: rounds, bytes_up or simulated_hours")
        if (self.metric is None) != (self.higher_is_better is None):
            raise ValueError("metric and higher_is_better go together")
        return self


class StudyConfig(Part):
    """Holds a study.

    Attributes:
        name: the study's name. Its folder is `<folder>/<name>-<time>`.
        parts: each begins where the study does, or at a `base` of its own, and has its own `set` and `grid` beside the
            study's; a key is given once.
        concurrency: how many trials are played at a time, at most; `auto` is as many as there is room for.
        early: ends trials that are behind before their last round.
        select: says which settings are called best in the end.
        folder: the folder in which the study's folder is made.
        ray: the cluster that the study uses, as section `ray` of a configuration.
    """

    name: Annotated[str, Field(pattern=NAME, max_length=LONGEST)]
    parts: Annotated[list[Part], Field(min_length=1)] = [Part()]
    concurrency: Count | Literal["auto"] = "auto"
    early: Early | None = None
    select: Select | None = None
    folder: str = "runs"
    ray: RayConfig = RayConfig()


@dataclass(frozen=True)
class Trial:
    """One run of a study.

    Attributes:
        name: the name of its folder, which no other trial has.
        part: the index of its part in the study.
        values: the values of the grids and of its part's `set`, by dotted key.
        config: the configuration with these values.
    """

    name: str
    part: int
    values: Mapping[str, Any]
    config: Config

    def without(self, keys: Iterable[str]) -> str:
        """Returns an identity that trials share if they differ only in the values of these keys."""
        left = {key: value for key, value in self.values.items() if key not in set(keys)}
        return yaml12.dump({"part": self.part, **left})


@dataclass(frozen=True)
class Study:
    """A study whose base configurations have been read.

    Attributes:
        config: the study's configuration, in which each base is a mapping.
    """

    config: StudyConfig

    @classmethod
    def load(cls, source: str | Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> "Study":
        """Reads a study's file, or takes one made in Python.

        Args:
            source: a path or a mapping, as in load_config.
            overrides: each ``key=value``, the value in YAML. The key is the study's, or a configuration's after
                ``set.`` or ``grid.``.

        Raises ConfigError naming the key.
        """
        if isinstance(source, Mapping):
            tree, beside = plain(source), Path()
        else:
            tree, beside = read_yaml(Path(source)), Path(source).parent
        for given in overrides:
            path, value = parted(given)
            section, _, key = path.partition(".")
            if section in ("set", "grid") and key:
                tree = {**tree, section: {**(tree.get(section) or {}), key: value}}
            else:
                override(tree, given)
        config: StudyConfig = validated(StudyConfig, tree, key="", owner="every study")
        read = {"base": _based(config.base, beside)}
        parts = [part.model_copy(update={"base": _based(part.base, beside)}) for part in config.parts]
        return cls(config.model_copy(update={**read, "parts": parts}))

    @property
    def tree(self) -> dict[str, Any]:
        """The study as plain data."""
        return self.config.model_dump(mode="json")

    @cached_property
    def trials(self) -> list[Trial]:
        """The trials, in the order of the parts and of the keys of their grids, the last of which changes fastest.

        Raises ConfigError naming the wrong key and its trial.
        """
        found = [trial for place, part in enumerate(self.config.parts) for trial in self._of(place, part)]
        if twice := [name for name, times in Counter(trial.name for trial in found).items() if times > 1]:
            raise ConfigError("parts", f"two trials are called {twice[0]!r}: they differ in nothing that names them; "
                              "give their parts another name each, as in set: {name: ...}")  # fmt: skip
        keys = {key for trial in found for key in trial.values}
        over = self.config.early.over if self.config.early else ()
        if unknown := next((key for key in over if key not in keys), None):
            raise ConfigError("early.over", f"no trial varies {unknown!r}; there are {', '.join(sorted(keys))}")
        if select := self.config.select:
            known = {key for trial in found for key in flat(trial.config.model_dump(mode="json"))}
            if unknown := next((key for key in select.by if key not in known), None):
                raise ConfigError("select.by", f"no trial has {unknown!r}{nearest(unknown, known)}")
            fewest = min(trial.config.rounds for trial in found)
            if select.rounds is not None and select.rounds > fewest:
                raise ConfigError("select.rounds", f"is {select.rounds}, and there are trials of {fewest} rounds")
        return found

    def _of(self, place: int, part: Part) -> list[Trial]:
        base = part.base if part.base is not None else self.config.base
        if base is None:
            raise ConfigError("base", "is missing: the path of a configuration, or one written out here")
        assert isinstance(base, dict)  # `base` has been read by now
        grid = _together(f"parts.{place}", self.config.grid, part.grid)
        for key, values in grid.items():
            if not values:
                raise ConfigError(f"grid.{key}", "is an empty list; give it values, or leave the key out")
            if twice := [value for place, value in enumerate(values) if value in values[:place]]:
                raise ConfigError(f"grid.{key}", f"has {twice[0]!r} twice")
        if not grid and len(self.config.parts) == 1:
            raise ConfigError("grid", "is empty, and there is one part: that is a single run, for `raysim run`")
        fixed = _together(f"parts.{place}", self.config.set, part.set)
        _together(f"parts.{place}", fixed, grid)
        # Each value goes with its word in the names of trials.
        choices = [list(zip(_words(key, values), values, strict=True)) for key, values in grid.items()]
        return [
            _trial(place, base, fixed, part.set, dict(zip(grid, chosen, strict=True)))
            for chosen in itertools.product(*choices)
        ]


@dataclass(frozen=True)
class TrialRow:
    """A row of trials.csv, which gives the fate of a trial.

    Attributes:
        said: the result of a trial that finished, or the error of one that failed.
        wall_s: the seconds that it took when it was last played.
    """

    trial: str
    status: Status = "waiting"
    wall_s: float = 0.0
    said: str = ""


def rows(where: Path) -> list[TrialRow]:
    """Returns the rows of trials.csv in a study's folder."""
    try:
        written = (where / TABLE).read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    found = csv.DictReader(io.StringIO(written))
    return [TrialRow(**(row | {"wall_s": float(row["wall_s"])})) for row in found]  # type: ignore[arg-type]


def is_study(path: Path) -> bool:
    """Returns whether a path names a study, not a configuration. Raises ConfigError where it cannot be read."""
    return not variants.read(path).keys().isdisjoint({"base", "grid", "parts"})


def _based(base: str | dict[str, Any] | None, beside: Path) -> dict[str, Any] | None:
    return variants.read(beside / base) if isinstance(base, str) else base


def _together(where: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns two groups of keys as one. Raises ConfigError where a key, or a section and a key in it, is in both."""
    keys = [*ours, *theirs]
    for key, other in itertools.combinations(keys, 2):
        if f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}."):
            raise ConfigError(where, f"sets {other!r}, and {key!r} is set for it already; give one of them")
    return {**ours, **theirs}


def _trial(
    part: int,
    base: Mapping[str, Any],
    fixed: Mapping[str, Any],
    own: Mapping[str, Any],
    chosen: Mapping[str, tuple[str, Any]],
) -> Trial:
    values = {key: value for key, (_, value) in chosen.items()}
    named = str({**base, **fixed}.get("name", "trial"))
    name = "_".join([named, *(word for word, _ in chosen.values())])
    # Runs that differ only in their seed share a name, since plots draw them as one line.
    line = "_".join([named, *(word for key, (word, _) in chosen.items() if key != "seed")])
    if len(name) > LONGEST:  # must not depend on the other trials, since a study may grow
        others = {key: value for key, value in values.items() if key != "seed"}
        digest = hashlib.sha256(yaml12.dump({"part": part, "name": named, **others}).encode()).hexdigest()[:10]
        line = f"{named[:60]}_{digest}"
        name = "_".join([line, *(word for key, (word, _) in chosen.items() if key == "seed")])
    try:
        config = load_config(with_values(base, {**fixed, **values, "name": line, "clients.fleet": "in_process"}))
        require_known(config)
    except ConfigError as error:
        raise ConfigError(error.key, f"{error.message} (in trial {name})") from None
    return Trial(name, part, {**own, **values}, config)


def _words(key: str, values: Sequence[Any]) -> list[str]:
    """Returns each value's word in a trial's name: S10, seed0, phones_global; a list or mapping gives its place."""
    last = key.rpartition(".")[2]
    found = []
    for place, value in enumerate(values):
        if isinstance(value, Mapping | list):
            word = f"{last}-{place}"
        else:
            word = value if isinstance(value, str) else f"{last}{value}".replace("e+", "e")
        found.append(re.sub(r"[^A-Za-z0-9._-]+", "-", word))
    alike = Counter(found)
    return [word if alike[word] == 1 else f"{word}-{place}" for place, word in enumerate(found)]
