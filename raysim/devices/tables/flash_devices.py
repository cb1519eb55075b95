"""Reads FLASH's list of phones, from AI Benchmark, with the training times that its authors measured on three."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from raysim.data.root import find_file
from raysim.devices.files import field, read_json, records_by_id
from raysim.devices.tables.table import DeviceTable
from raysim.errors import DataError

Workload = Literal["celeba", "femnist", "reddit", "shakespeare"]


@dataclass(frozen=True)
class _Profile:
    """Holds what FLASH's authors measured on the slow, the middle and the fast phone.

    Attributes:
        batch: the rows of a batch.
        ms: milliseconds of training on a batch, on each of the three phones.
    """

    batch: int
    ms: tuple[float, float, float]


# FLASH, models/utils/device_util/device_util.py and the batch sizes of its experiments.
_PROFILED = ("Google Nexus S", "Xiaomi Redmi Note 7 Pro", "Google Pixel 4")
_PROFILES: Mapping[Workload, _Profile] = {
    "celeba": _Profile(10, (5392, 1355, 561)),
    "femnist": _Profile(10, (1642, 588, 179)),
    "reddit": _Profile(10, (2596, 916, 527.7)),
    "shakespeare": _Profile(100, (28_621, 13_579, 10_681)),
}
# The keys of AI Benchmark's list, the form of each text, whose first group counts, and an example.
_LISTED = {
    "Model": (re.compile(r"(.+)"), "Google Pixel 4"),
    "AI_Score": (re.compile(r"([1-9]\d*)(\s.*)?"), "33289 1"),
    "RAM": (re.compile(r"(?=.*[1-9])(\d+(?:\.\d+)?)\s*GB"), "8GB"),
}
_UNKNOWN_PHONES = np.array([18_820, 16_428, 159])  # how FLASH draws the speed of a phone it does not know


def read_flash_devices(path: str | Path, workload: Workload, codes: str | Path | None = None) -> DeviceTable:
    """Reads FLASH's phones: a row for each phone of AI Benchmark, as fast as the nearest of three that were measured.

    As in FLASH (Yang et al., 2021), nearest is by AI score, and a phone of unknown model is slow, middle or fast with
    53.2, 46.4 and 0.4 %. Within each of these kinds phones are drawn as often as the codes name them, or without codes
    equally often; a phone that is on the list twice shares its codes between its rows.

    Args:
        path: raw_ai_benchmark_list.json, a list of {Model, RAM, AI_Score, ...}: RAM as "8GB" (2^30 bytes each), the
            score the first number of the text.
        workload: the task whose training times are taken. They are for batches of 10 rows, in shakespeare 100, and
            divided by that.
        codes: real2benchmark.json, {code of an Android model: its name on the list, or "unknown"}, each code as
            frequent as any other; a name that is not on the list counts as unknown. None: all phones are unknown.

    Raises:
        DataError: A file, a record (counted from 0) or a value is missing or wrong.
    """
    found = find_file(str(path))
    names, scores, ram_mb = _listed_phones(found)
    missing = next((name for name in _PROFILED if name not in names), None)
    if missing is not None:
        raise DataError(
            f"{found}: has no phone {missing!r}; FLASH measured {', '.join(_PROFILED)}, so all three must be there"
        )
    measured = np.array([scores[np.argmax(names == name)] for name in _PROFILED])
    kind = np.abs(scores[:, None] - measured).argmin(axis=1)
    coded, unknown = (np.zeros(len(names)), 1) if codes is None else _code_counts(find_file(str(codes)), names, found)
    weights = np.empty(len(names))
    for k, share in enumerate(_UNKNOWN_PHONES / _UNKNOWN_PHONES.sum()):
        of_kind = kind == k
        within = coded[of_kind] if coded[of_kind].any() else np.ones(of_kind.sum())
        weights[of_kind] = (coded[of_kind].sum() + unknown * share) * within / within.sum()
    profile = _PROFILES[workload]
    seconds = np.array(profile.ms) / profile.batch / 1e3
    return DeviceTable(sec_per_sample=seconds[kind], ram_mb=ram_mb, weights=weights)


def _listed_phones(path: Path) -> tuple[NDArray[np.str_], NDArray[np.float64], NDArray[np.float64]]:
    """Returns the names, AI scores and memory in MB of the phones on AI Benchmark's list, (rows,) each."""
    tree = read_json(path)
    if not isinstance(tree, list):
        raise DataError(f"{path}: holds a {type(tree).__name__} where a list of phones should be; check the format")
    names, scores, ram_mb = [], [], []
    for i, phone in enumerate(tree):
        name, score, ram_gb = (_listed_text(path, str(i), phone, key) for key in _LISTED)
        names.append(name)
        scores.append(float(score))
        ram_mb.append(float(ram_gb) * 1024)
    if not names:
        raise DataError(f"{path}: has no records")
    return np.array(names), np.array(scores), np.array(ram_mb)


def _listed_text(path: Path, id: str, phone: Any, key: str) -> str:
    """Returns the part that counts of a phone's text under `key`. Raises DataError if the text has another form."""
    value, (form, example) = field(path, id, phone, key), _LISTED[key]
    match = form.fullmatch(value.strip()) if isinstance(value, str) else None
    if not match:
        raise DataError(f"{path}: record {id!r}: {key} is {value!r}; it must be text such as {example!r}")
    return match[1]


def _code_counts(path: Path, names: NDArray[np.str_], listed: Path) -> tuple[NDArray[np.float64], int]:
    """Counts the codes of Android models.

    Args:
        path: the file of codes.
        names: (rows,) the phones on the list.
        listed: the file of the list, for errors.

    Returns:
        (rows,) how many codes each phone on the list has, and how many codes are of phones that are not on it.
    """
    codes: Counter[str] = Counter()
    for id, name in records_by_id(path, read_json(path)):
        if not isinstance(name, str):
            raise DataError(f"{path}: record {id!r} is {name!r}; it must be the name of a phone, or 'unknown'")
        codes[name.strip()] += 1
    rows = Counter(names.tolist())
    known = sum(codes[name] for name in rows)
    if not known:
        raise DataError(f"{path}: none of its {codes.total()} codes is of a phone in {listed}; check the two files")
    return np.array([codes[name] / rows[name] for name in names.tolist()]), codes.total() - known
