"""The ledger: what each phase cost and what each evaluation gave, kept as tables and written as Parquet.

Files in the run folder, rewritten whole and swapped in, so that a reader or a crash never meets half a file:
rounds.parquet (a row per phase), participation.parquet (a row per client and phase), metrics.parquet (a row per
evaluation, split and metric).
"""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from raysim.phase import Block
from server.dispatch import Outcome
from server.evaluation import Metrics
from server.fates import FATES
from server.participation import Grouping, Tally

ROUNDS = pa.schema(
    [
        pa.field("round", pa.int32()),  # 0, 1, ...
        pa.field("phase", pa.string()),
        pa.field("valid", pa.bool_()),  # false: too few results, and the round was undone
        pa.field("accepted", pa.int32()),  # clients whose results count
        pa.field("rows", pa.int64()),  # data rows they drew, repeats counted
        pa.field("bytes_down", pa.int64()),  # server to all invited clients together
        pa.field("bytes_up", pa.int64()),
        pa.field("wall_s", pa.float64()),  # of this machine, not of the devices
        # Mean rounds since the accepted were last accepted in a phase of that name, over those that were before.
        pa.field("age_rounds", pa.float64()),
        pa.field("gini", pa.float64()),  # of participation so far, over clients that have rows, all phases together
        pa.field("accepted_by_label", pa.list_(pa.int32())),  # by quarters of the label score; null without scores
        # Null without devices. Times are simulated seconds since the start.
        pa.field("start_s", pa.float64()),  # when the invitations go out
        pa.field("close_s", pa.float64()),
        pa.field("wait_s", pa.float64()),  # before the start, for enough devices to be eligible
        pa.field("available", pa.int64()),  # devices that are on
        pa.field("eligible", pa.int64()),  # on, able, idle and rested
        pa.field("invited", pa.int32()),  # accepted + late + cancelled + dropped_* + timed_out
        pa.field("topped_up", pa.int32()),  # of them from outside server.phase2_clients
        pa.field("late", pa.int32()),  # finished, but were not waited for
        pa.field("cancelled", pa.int32()),  # told to stop at the close
        pa.field("dropped_offline", pa.int32()),
        pa.field("dropped_failed", pa.int32()),
        pa.field("dropped_link", pa.int32()),  # still sending or receiving at the deadline
        pa.field("timed_out", pa.int32()),  # still computing at the deadline
        pa.field("bytes_down_wasted", pa.int64()),  # of bytes_down, for results that do not count, undone rounds too
        pa.field("bytes_up_wasted", pa.int64()),
        pa.field("compute_s", pa.float64()),  # of all invited devices together
        pa.field("compute_s_wasted", pa.float64()),
        pa.field("energy_j", pa.float64()),  # of all invited devices together; null without devices.energy
        pa.field("accepted_by_tier", pa.list_(pa.int32())),  # by quarters of the population's speed, fastest first
        pa.field("accepted_by_zone", pa.list_(pa.int32())),  # in the order of the availability's zones, null without
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
        pa.field("sim_s", pa.float64()),  # simulated seconds since the start; null without devices
    ]
)

Row = dict[str, Any]


@dataclass
class Ledger:
    """Attributes:
    rows_N: rows of each client's shard.
    groupings: by name, for the columns accepted_by_*.
    bytes_down, bytes_up, wall_s: sums over all phases so far.
    """

    rows_N: NDArray[np.int64]
    groupings: Mapping[str, Grouping] = field(default_factory=dict)
    bytes_down: int = 0
    bytes_up: int = 0
    wall_s: float = 0.0
    _tally: Tally = field(init=False)
    _rounds: list[Row] = field(default_factory=list)
    _participation: list["_Participation"] = field(default_factory=list)
    _metrics: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._tally = Tally(self.rows_N > 0)

    def phase(self, t: int, phase: str, blocks: Sequence[Block], outcome: Outcome, wall_s: float) -> None:
        """Books one phase; `blocks` is the work that was done, none if the phase was not valid.

        Participation is that work: in a valid phase, also of a round that is undone later.
        """
        drawn = [self._drawn(block) for block in blocks]
        self._participation += [
            _Participation(t, phase, block.clients_C, rows_C) for block, rows_C in zip(blocks, drawn, strict=True)
        ]
        age_rounds = self._tally.accept(t, phase, outcome.accepted) if outcome.valid else None
        row: Row = {
            "round": t,
            "phase": phase,
            "valid": outcome.valid,
            "accepted": len(outcome.accepted),
            "rows": sum(int(rows_C.sum()) for rows_C in drawn),
            "bytes_down": outcome.bytes_down,
            "bytes_up": outcome.bytes_up,
            "wall_s": wall_s,
            "age_rounds": age_rounds,
            "gini": self._tally.gini,
            **{f"accepted_by_{name}": grouping.counts(outcome.accepted) for name, grouping in self.groupings.items()},
        } | dict(outcome.devices)
        if outcome.devices:
            fates = sum(row[fate] for fate in FATES)
            assert fates == row["invited"], f"{fates} fates for {row['invited']} invited devices"
        self._rounds.append(row)
        self.bytes_down += outcome.bytes_down
        self.bytes_up += outcome.bytes_up
        self.wall_s += wall_s

    def undone(self, t: int) -> None:
        """Books the costs of a round that was undone as wasted, those of its valid phases too."""
        for row in self._rounds:
            if row["round"] == t:
                row |= {f"{cost}_wasted": row.get(cost) for cost in ("bytes_down", "bytes_up", "compute_s")}

    def so_far(self, sim_s: float | None) -> dict[str, float | None]:
        """What the rounds have cost until now, at simulated time `sim_s`."""
        return {"bytes_down": self.bytes_down, "bytes_up": self.bytes_up, "wall_s": self.wall_s, "sim_s": sim_s}

    def has_evaluation(self, rounds: int) -> bool:
        """Whether one after so many rounds is booked."""
        return any(row["round"] == rounds for row in self._metrics)

    def best(self, metric: str, split: str, among: Collection[int], higher: bool) -> int | None:
        """Of these numbers of rounds the first after which a metric was best; None if it was never measured then."""
        found = [
            (row["value"] if higher else -row["value"], -row["round"])
            for row in self._metrics
            if (row["metric"], row["split"]) == (metric, split) and row["round"] in among and row["value"] is not None
        ]
        return -max(found)[1] if found else None

    def evaluation(self, rounds: int, metrics: Metrics, so_far: Mapping[str, float | None]) -> None:
        """Books metrics by split and name of the point after `rounds` rounds, which had cost `so_far`."""
        self._metrics += [
            {"round": rounds, "split": split, "metric": name, "value": value, **so_far}
            for split, values in metrics.items()
            for name, value in values.items()
        ]

    def tables(self) -> dict[str, pa.Table]:
        """All that was booked, by name."""
        return {
            "rounds": pa.Table.from_pylist(self._rounds, schema=ROUNDS),
            "participation": pa.Table.from_batches([p.rows() for p in self._participation], schema=PARTICIPATION),
            "metrics": pa.Table.from_pylist(self._metrics, schema=METRICS),
        }

    def restore(self, tables: Mapping[str, pa.Table]) -> None:
        """Books what `tables` gave, into a ledger in which nothing is booked yet."""
        self._rounds = tables["rounds"].to_pylist()
        self._metrics = tables["metrics"].to_pylist()
        took_part = tables["participation"]
        clients, rows = (took_part[name].to_numpy() for name in ("client", "rows"))
        first = 0
        for row in self._rounds:
            if row["valid"]:
                last = first + row["accepted"]
                t, phase = row["round"], row["phase"]
                self._participation.append(_Participation(t, phase, clients[first:last], rows[first:last]))
                self._tally.accept(t, phase, clients[first:last])
                first = last
            self.bytes_down += row["bytes_down"]
            self.bytes_up += row["bytes_up"]
            self.wall_s += row["wall_s"]

    def write(self, folder: Path) -> None:
        """Writes the three tables."""
        for name, table in self.tables().items():
            unfinished = folder / f".{name}.parquet"
            pq.write_table(table.combine_chunks(), unfinished)
            os.replace(unfinished, folder / f"{name}.parquet")

    def _drawn(self, block: Block) -> NDArray[np.int64]:
        if block.rows_CKB is None:
            return self.rows_N[block.clients_C]
        drawn: NDArray[np.int64] = np.count_nonzero(block.rows_CKB >= 0, axis=(1, 2))
        return drawn


@dataclass(frozen=True)
class _Participation:
    """A block's clients in one phase, as arrays: over thousands of rounds there are millions of them."""

    round: int
    phase: str
    clients_C: NDArray[np.int64]
    rows_C: NDArray[np.int64]

    def rows(self) -> pa.RecordBatch:
        n = len(self.clients_C)
        columns = [np.full(n, self.round, np.int32), pa.array([self.phase] * n), self.clients_C, self.rows_C]
        return pa.RecordBatch.from_arrays([pa.array(column) for column in columns], schema=PARTICIPATION)
