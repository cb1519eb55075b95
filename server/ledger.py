"""The ledger: the costs of each phase and the results of each evaluation, kept as tables and written as Parquet.

The files in the run folder are rewritten whole and swapped in, so that no reader and no crash ever meets half a file:
rounds.parquet (a row per phase), participation.parquet (a row per client and phase), metrics.parquet (a row per
evaluation, split and metric), and where clients' own models are evaluated clients.parquet (a row per evaluation,
client, split and metric).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from raysim.data import Split
from raysim.exchange import Block
from raysim.output import write_whole
from server.archive import parquet
from server.dispatch import Outcome
from server.evaluation import Measured, Metrics
from server.fates import FATES
from server.participation import Grouping, Tally

ROUNDS = pa.schema(
    [
        pa.field("round", pa.int32()),  # 0, 1, ...
        pa.field("phase", pa.string()),
        pa.field("valid", pa.bool_()),  # false: too few results, and the round was undone
        pa.field("accepted", pa.int32()),  # clients whose results count
        pa.field("rejected", pa.int32()),  # clients whose results could not be used (server.bad_results)
        pa.field("rows", pa.int64()),  # data rows that they drew, repeats counted
        pa.field("bytes_down", pa.int64()),  # server to all invited clients together
        pa.field("bytes_up", pa.int64()),
        pa.field("wall_s", pa.float64()),  # seconds of this machine, not of the devices
        pa.field("plan_s", pa.float64()),  # part of wall_s until cohort and minibatches were drawn
        # The next part of wall_s, until the clients' sums were added up; the rest is the server's.
        pa.field("clients_s", pa.float64()),
        # Mean rounds since accepted clients were last accepted in a phase of that name, over those that ever were.
        pa.field("age_rounds", pa.float64()),
        # Gini coefficient of participation so far, over clients that have rows, all phases together.
        pa.field("gini", pa.float64()),
        # Clients by quarters of the label score; null without scores.
        pa.field("accepted_by_label", pa.list_(pa.int32())),
        # All columns below are null without devices. Times are simulated seconds since the start.
        pa.field("start_s", pa.float64()),  # the instant of the invitations
        pa.field("close_s", pa.float64()),
        pa.field("wait_s", pa.float64()),  # waiting for enough eligible devices, before the start
        pa.field("available", pa.int64()),  # devices that are on
        pa.field("eligible", pa.int64()),  # on, able, idle and rested
        pa.field("invited", pa.int32()),  # accepted + rejected + late + cancelled + dropped_* + timed_out
        pa.field("topped_up", pa.int32()),  # invited devices from outside the rule of server.phase2_clients
        pa.field("late", pa.int32()),  # devices that finished, but were not waited for
        pa.field("cancelled", pa.int32()),  # devices that were told to stop at the close
        pa.field("dropped_offline", pa.int32()),
        pa.field("dropped_failed", pa.int32()),
        pa.field("dropped_link", pa.int32()),  # still sending or receiving at the deadline
        pa.field("timed_out", pa.int32()),  # still computing at the deadline
        # Part of bytes_down for results that do not count, also of undone rounds.
        pa.field("bytes_down_wasted", pa.int64()),
        pa.field("bytes_up_wasted", pa.int64()),
        pa.field("compute_s", pa.float64()),  # seconds of all invited devices together
        pa.field("compute_s_wasted", pa.float64()),
        pa.field("energy_j", pa.float64()),  # joules of all invited devices together; null without devices.energy
        # Clients by quarters of the population's speed, fastest first.
        pa.field("accepted_by_tier", pa.list_(pa.int32())),
        # Clients in the order of the availability's zones; null without zones.
        pa.field("accepted_by_zone", pa.list_(pa.int32())),
    ]
)
PARTICIPATION = pa.schema(
    [
        pa.field("round", pa.int32()),
        pa.field("phase", pa.string()),
        pa.field("client", pa.int64()),
        pa.field("rows", pa.int64()),
        pa.field("rejected", pa.bool_()),  # the result could not be used
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
        pa.field("wall_s", pa.float64()),  # seconds of all phases since the start, evaluation excluded
        pa.field("sim_s", pa.float64()),  # simulated seconds since the start; null without devices
    ]
)

CLIENTS = pa.schema(
    [
        pa.field("round", pa.int32()),  # rounds completed when it was measured
        pa.field("split", pa.string()),  # train or test: the client's own rows of it
        pa.field("client", pa.int64()),
        pa.field("took_part", pa.bool_()),  # true: the client had taken part in a phase before
        pa.field("metric", pa.string()),
        pa.field("value", pa.float64()),  # null where undefined
    ]
)

Row = dict[str, Any]


@dataclass(frozen=True)
class Spent:
    """The seconds of this machine that a phase took, by columns of ROUNDS."""

    wall_s: float
    plan_s: float
    clients_s: float


# Columns that differ from run to run, however much else is the same.
TIMES = ("wall_s", "plan_s", "clients_s")

# The columns of ROUNDS whose sums over all phases the ledger keeps.
_SUMS = ("bytes_down", "bytes_up", "wall_s")


@dataclass
class Book:
    """A table that grows, of which rows that were read once are not converted again.

    Attributes:
        schema: the columns.
        pending: new rows, as dicts or record batches, which follow those of `settled`.
        settled: the rows that were read before; None before the first time.
    """

    schema: pa.Schema
    pending: list[Any] = field(default_factory=list)
    settled: pa.Table | None = None

    def table(self) -> pa.Table:
        """Returns all rows; pending rows cannot be changed any more."""
        rows = [entry for entry in self.pending if isinstance(entry, dict)]
        batches = [entry for entry in self.pending if not isinstance(entry, dict)]
        parts = [pa.Table.from_pylist(rows, self.schema), pa.Table.from_batches(batches, self.schema)]
        if self.settled is not None:
            parts.insert(0, self.settled)
        self.settled, self.pending = pa.concat_tables(parts).combine_chunks(), []
        return self.settled


@dataclass
class Ledger:
    """Books the costs of phases and the results of evaluations.

    Attributes:
        rows_N: rows of each client's shard.
        groupings: divisions of the clients by name, for the columns accepted_by_*.
        bytes_down, bytes_up, wall_s: sums over all phases so far.
    """

    rows_N: NDArray[np.int64]
    groupings: Mapping[str, Grouping] = field(default_factory=dict)
    bytes_down: int = 0
    bytes_up: int = 0
    wall_s: float = 0.0
    _tally: Tally = field(init=False)
    _rounds: Book = field(default_factory=lambda: Book(ROUNDS))
    _participation: Book = field(default_factory=lambda: Book(PARTICIPATION))
    _metrics: Book = field(default_factory=lambda: Book(METRICS))
    _clients: Book = field(default_factory=lambda: Book(CLIENTS))

    def __post_init__(self) -> None:
        self._tally = Tally(self.rows_N > 0)

    def phase(self, t: int, phase: str, blocks: Sequence[Block], outcome: Outcome, spent: Spent) -> Row:
        """Books one phase and returns its row of ROUNDS.

        Args:
            t: the round.
            phase: name of the phase.
            blocks: the work that was done, none if too few clients were accepted. It counts as participation, also
                where the round is undone later.
            outcome: the outcome of the phase.
            spent: the seconds that it took.
        """
        rows = [self._rows_C(block) for block in blocks]
        self._participation.pending += [
            _participation(t, phase, block.clients_C, rows_C, np.isin(block.clients_C, outcome.rejected))
            for block, rows_C in zip(blocks, rows, strict=True)
        ]
        age_rounds = self._tally.accept(t, phase, outcome.accepted) if outcome.valid else None
        row: Row = {
            "round": t,
            "phase": phase,
            "valid": outcome.valid,
            "accepted": len(outcome.accepted),
            "rejected": len(outcome.rejected),
            "rows": sum(int(rows_C.sum()) for rows_C in rows),
            "bytes_down": outcome.bytes_down,
            "bytes_up": outcome.bytes_up,
            "wall_s": spent.wall_s,
            "plan_s": spent.plan_s,
            "clients_s": spent.clients_s,
            "age_rounds": age_rounds,
            "gini": self._tally.gini,
            **{f"accepted_by_{name}": grouping.counts(outcome.accepted) for name, grouping in self.groupings.items()},
        } | dict(outcome.devices)
        if outcome.devices:
            fates = sum(row[fate] for fate in (*FATES, "rejected"))
            assert fates == row["invited"], f"{fates} fates for {row['invited']} invited devices"
        self._rounds.pending.append(row)
        self.bytes_down += outcome.bytes_down
        self.bytes_up += outcome.bytes_up
        self.wall_s += spent.wall_s
        return row

    def undone(self, t: int) -> None:
        """Books all costs of the last round t, which was undone, as wasted, also those of its valid phases."""
        for row in self._rounds.pending:
            if row["round"] == t:
                row |= {f"{cost}_wasted": row.get(cost) for cost in ("bytes_down", "bytes_up", "compute_s")}

    def so_far(self, sim_s: float | None) -> dict[str, float | None]:
        """Returns the costs of all rounds so far, at simulated time `sim_s`."""
        return {"bytes_down": self.bytes_down, "bytes_up": self.bytes_up, "wall_s": self.wall_s, "sim_s": sim_s}

    def has_evaluation(self, rounds: int) -> bool:
        """Returns True if an evaluation after so many rounds is booked."""
        return rounds in self._metrics.table()["round"].to_numpy()

    def latest(self) -> Metrics:
        """Returns the metrics of the last evaluation, by split and name; nothing if there was none."""
        table = self._metrics.table()
        metrics: dict[Split, dict[str, float | None]] = {}
        for row in table.filter(pc.equal(table["round"], pc.max(table["round"]))).to_pylist():
            metrics.setdefault(row["split"], {})[row["metric"]] = row["value"]
        return metrics

    def best(self, metric: str, split: str, among: Collection[int], higher: bool) -> int | None:
        """Returns the number of rounds, `among` those given, after which a metric was best, the first of equal ones.

        It returns None if the metric was not measured after any of them.
        """
        table = self._metrics.table()
        of_metric = pc.and_(pc.equal(table["metric"], metric), pc.equal(table["split"], split))
        eligible = pc.and_(pc.is_in(table["round"], pa.array(among, pa.int32())), pc.is_valid(table["value"]))
        order = [("value", "descending" if higher else "ascending"), ("round", "ascending")]
        ranked = table.filter(pc.and_(of_metric, eligible)).sort_by(order)
        return ranked["round"][0].as_py() if len(ranked) else None

    @property
    def asked_N(self) -> NDArray[np.bool_]:
        """The clients that have taken part in any phase, (N,) True or False."""
        return self._tally.times_N > 0

    def evaluation(self, rounds: int, measured: Measured, so_far: Mapping[str, float | None]) -> None:
        """Books the results of an evaluation after `rounds` rounds, whose costs were `so_far`."""
        self._clients.pending += [{"round": rounds, **row} for row in measured.clients]
        self._metrics.pending += [
            {"round": rounds, "split": split, "metric": name, "value": value, **so_far}
            for split, values in measured.metrics.items()
            for name, value in values.items()
        ]

    def tables(self) -> dict[str, pa.Table]:
        """Returns all tables, by name. It must not be called within a round, which may yet be undone."""
        books = {"rounds": self._rounds, "participation": self._participation, "metrics": self._metrics}
        tables = {name: book.table() for name, book in books.items()}
        clients = self._clients.table()
        return tables | {"clients": clients} if len(clients) else tables

    def restore(self, tables: Mapping[str, pa.Table]) -> None:
        """Books what `tables` gave, into a ledger in which nothing is booked yet."""
        self._rounds, self._participation, self._metrics = (
            Book(schema, settled=tables[name].cast(schema))
            for name, schema in (("rounds", ROUNDS), ("participation", PARTICIPATION), ("metrics", METRICS))
        )
        if "clients" in tables:
            self._clients = Book(CLIENTS, settled=tables["clients"].cast(CLIENTS))
        clients, rejected = (tables["participation"][name].to_numpy() for name in ("client", "rejected"))
        first = 0
        for row in tables["rounds"].select(["round", "phase", "valid", "accepted", "rejected", *_SUMS]).to_pylist():
            last = first + row["rejected"] + (row["accepted"] if row["valid"] else 0)
            if row["valid"]:
                self._tally.accept(row["round"], row["phase"], clients[first:last][~rejected[first:last]])
            first = last
            for name in _SUMS:
                setattr(self, name, getattr(self, name) + row[name])

    def write(self, folder: Path) -> None:
        """Writes the tables into the run folder. Raises OutputError."""
        for name, table in self.tables().items():
            write_whole(folder / f"{name}.parquet", parquet(table))

    def _rows_C(self, block: Block) -> NDArray[np.int64]:
        rows_C = np.zeros(len(block), np.int64)
        for minibatches in block.minibatches:
            if minibatches.rows_CKB is None:
                rows_C += self.rows_N[block.clients_C]
            else:
                rows_C += np.count_nonzero(minibatches.rows_CKB >= 0, axis=(1, 2))
        return rows_C


def _participation(
    t: int, phase: str, clients_C: NDArray[np.int64], rows_C: NDArray[np.int64], rejected_C: NDArray[np.bool_]
) -> pa.RecordBatch:
    """Returns rows of PARTICIPATION for a block's clients, as arrays, since a long run has millions of rows."""
    n = len(clients_C)
    columns = [np.full(n, t, np.int32), pa.array([phase] * n, pa.string()), clients_C, rows_C, rejected_C]
    return pa.RecordBatch.from_arrays([pa.array(column) for column in columns], schema=PARTICIPATION)
