"""The ledger: what each phase cost and what each evaluation gave, kept as tables and written as Parquet.

Files in the run folder, rewritten whole and swapped in, so that a reader or a crash never meets half a file:
rounds.parquet (a row per phase), participation.parquet (a row per client and phase), metrics.parquet (a row per
evaluation, split and metric).
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from raysim.phase import Block
from server.evaluation import Metrics

ROUNDS = pa.schema(
    [
        pa.field("round", pa.int32()),  # 0, 1, ...
        pa.field("phase", pa.string()),
        pa.field("clients", pa.int32()),  # that took part
        pa.field("rows", pa.int64()),  # data rows they drew, repeats counted
        pa.field("bytes_down", pa.int64()),  # server to clients, all together
        pa.field("bytes_up", pa.int64()),
        pa.field("wall_s", pa.float64()),  # of this machine, not of the devices
    ]
)
PARTICIPATION = pa.schema(
    [
        pa.field("round", pa.int32()),
        pa.field("phase", pa.string()),
        pa.field("client", pa.int64()),
        pa.field("rows", pa.int64()),
    ]
)
METRICS = pa.schema(
    [
        pa.field("round", pa.int32()),  # rounds completed when it was measured; 0 is the initial point
        pa.field("split", pa.string()),  # train (the pool of all clients) or test
        pa.field("metric", pa.string()),
        pa.field("value", pa.float64()),  # null where undefined
        pa.field("bytes_down", pa.int64()),  # since the start
        pa.field("bytes_up", pa.int64()),
        pa.field("wall_s", pa.float64()),  # of the phases since the start, evaluation excluded
    ]
)

Row = dict[str, Any]


@dataclass
class Ledger:
    """Attributes:
    rows_N: rows of each client's shard.
    bytes_down, bytes_up, wall_s: sums over all phases so far.
    """

    rows_N: NDArray[np.int64]
    bytes_down: int = 0
    bytes_up: int = 0
    wall_s: float = 0.0
    _rounds: list[Row] = field(default_factory=list)
    _participation: list[Row] = field(default_factory=list)
    _metrics: list[Row] = field(default_factory=list)

    def phase(self, t: int, phase: str, blocks: Sequence[Block], bytes_down: int, bytes_up: int, wall_s: float) -> None:
        """Books one phase; bytes are those of all its clients together."""
        took_part = [
            {"round": t, "phase": phase, "client": client, "rows": int(rows)}
            for block in blocks
            for client, rows in zip(block.clients_C.tolist(), self._drawn(block), strict=True)
        ]
        self._participation += took_part
        self._rounds.append(
            {
                "round": t,
                "phase": phase,
                "clients": len(took_part),
                "rows": sum(row["rows"] for row in took_part),
                "bytes_down": bytes_down,
                "bytes_up": bytes_up,
                "wall_s": wall_s,
            }
        )
        self.bytes_down += bytes_down
        self.bytes_up += bytes_up
        self.wall_s += wall_s

    def evaluation(self, rounds: int, metrics: Metrics) -> None:
        """Books metrics by split and name, measured after `rounds` rounds."""
        so_far = {"bytes_down": self.bytes_down, "bytes_up": self.bytes_up, "wall_s": self.wall_s}
        self._metrics += [
            {"round": rounds, "split": split, "metric": name, "value": value, **so_far}
            for split, values in metrics.items()
            for name, value in values.items()
        ]

    def write(self, folder: Path) -> None:
        """Writes the three tables."""
        for name, rows, schema in (
            ("rounds", self._rounds, ROUNDS),
            ("participation", self._participation, PARTICIPATION),
            ("metrics", self._metrics, METRICS),
        ):
            unfinished = folder / f".{name}.parquet"
            pq.write_table(pa.Table.from_pylist(rows, schema=schema), unfinished)
            os.replace(unfinished, folder / f"{name}.parquet")

    def _drawn(self, block: Block) -> NDArray[np.int64]:
        if block.rows_CKB is None:
            return self.rows_N[block.clients_C]
        drawn: NDArray[np.int64] = np.count_nonzero(block.rows_CKB >= 0, axis=(1, 2))
        return drawn
