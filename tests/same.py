"""What runs have written, and whether two are the same to the bit."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from server.ledger import TIMES


def tables(folder: Path) -> dict[str, pa.Table]:
    """The ledger's tables of a run, without what a wall clock said."""
    read = {name: pq.read_table(folder / f"{name}.parquet") for name in ("rounds", "participation", "metrics")}
    return {name: table.drop_columns([c for c in TIMES if c in table.column_names]) for name, table in read.items()}


def log(folder: Path) -> list[dict[str, Any]]:
    """The events of a run's log."""
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def differences(one: Path, other: Path) -> list[str]:
    """What of two finished runs' folders differs: parts of the model, tables."""
    models = [torch.load(folder / "model.pt", weights_only=True) for folder in (one, other)]
    found = [name for name in models[0].keys() | models[1].keys() if not _same(name, *models)]
    first, second = tables(one), tables(other)
    # As values: a table that was put together again may have its chunks elsewhere.
    return found + [f"{name}.parquet" for name in first if first[name].to_pylist() != second[name].to_pylist()]


def _same(name: str, one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return name in one and name in other and torch.equal(one[name], other[name])
