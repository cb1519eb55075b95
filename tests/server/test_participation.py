"""Spread of participation: known answers, and the cost of keeping count."""

import tracemalloc
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from cluster import summary
from cluster.experiment import Experiment
from raysim.errors import ConfigError
from raysim.problems import LabelScored, Quadratic
from server.participation import Grouping, Tally
from tests.contracts.table import settings
from tests.play import DIGITS, QUADRATIC, experiment, server


def test_tiers_are_quarters_of_those_that_have_rows_and_ties_are_not_parted() -> None:
    seconds = np.array([8.0, 1, 2, 3, 4, 5, 6, 7, 100, 100])
    tiers = Grouping.by_speed(seconds, seconds < 100)
    assert tiers.of_N.tolist() == [3, 0, 0, 1, 1, 2, 2, 3, 3, 3]
    assert tiers.counts(np.array([1, 2, 5])) == [2, 0, 1, 0]
    assert tiers.names[0] == "fastest"
    three = np.repeat([0.018, 0.059, 0.164], [1, 46, 53])
    of_three = Grouping.by_speed(three, np.ones(100, bool))
    # All that are as slow as the median are in the second quarter, which it is the end of.
    assert of_three.counts(np.arange(100)) == [47, 53, 0, 0]
    assert Grouping.by_speed(np.ones(5), np.ones(5, bool)).counts(np.arange(5)) == [5, 0, 0, 0]


def test_label_groups_are_quarters_of_the_score() -> None:
    scores = np.array([0.0, 0.249, 0.25, 0.5, 0.749, 0.75, 1.0])
    assert Grouping.by_label(scores).of_N.tolist() == [0, 0, 1, 2, 2, 3, 3]


def test_age_is_the_mean_number_of_rounds_since_the_last_phase_of_that_name() -> None:
    tally = Tally(np.ones(6, bool))
    assert tally.accept(0, "collect", np.array([0, 1])) is None
    assert tally.accept(0, "update", np.array([1, 2])) is None, "another phase's clients are other clients"
    assert tally.accept(2, "collect", np.array([1, 2, 3])) == 2, "of clients that were before, there is only 1"
    assert tally.accept(3, "collect", np.array([0, 1])) == (3 + 1) / 2
    assert tally.accept(4, "update", np.array([4])) is None
    assert tally.accept(9, "collect", np.array([], dtype=np.int64)) is None
    assert tally.times_N.tolist() == [2, 4, 2, 1, 1, 0]


@pytest.mark.parametrize("seed", range(5))
def test_gini_is_that_of_the_counts_to_the_bit_at_every_step(seed: int) -> None:
    rng = np.random.default_rng(seed)
    has_rows = rng.random(60) < 0.8
    tally, counts = Tally(has_rows), np.zeros(60, np.int64)
    able, liking = np.flatnonzero(has_rows), rng.random(60) ** 4
    assert tally.gini == summary.gini(counts[has_rows]) == 0
    for t in range(200):
        weight = liking[able] / liking[able].sum()
        clients = np.sort(rng.choice(able, rng.integers(0, 8), replace=False, p=weight))
        tally.accept(t, "update", clients)
        counts[clients] += 1
        assert tally.gini == summary.gini(counts[has_rows])
    assert 0.1 < tally.gini < 0.9
    assert tally.clients.sum() == has_rows.sum()


def test_gini_of_many_clients_and_phases_loses_nothing() -> None:
    """Sums of a million clients, some with tens of thousands of phases, are near 2^53."""
    tally = Tally(np.ones(1_000_000, bool))
    counts = np.random.default_rng(0).integers(0, 30_000, 1_000_000)
    tally.clients = np.bincount(counts)
    assert tally.gini == summary.gini(counts)


def test_a_phase_costs_what_its_cohort_costs_and_not_what_the_population_does() -> None:
    tally = Tally(np.ones(1_000_000, bool))
    cohorts = np.random.default_rng(0).integers(0, 1_000_000, (20, 50))
    for name in ("collect", "update"):
        tally.accept(0, name, np.unique(cohorts[0]))  # a phase's first time makes its array
    tracemalloc.start()
    for t, cohort in enumerate(cohorts, 1):
        for name in ("collect", "update"):
            tally.accept(t, name, np.unique(cohort))
            _ = tally.gini
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50_000


# In the ledger


def played(folder: Path, base: dict[str, Any], **sections: Any) -> tuple[Experiment, list[dict[str, Any]]]:
    """A run of CD-MAGE to its end, and its rows."""
    made = experiment(base, settings("cd_mage"), rounds=30, **sections)
    list(server(made, folder).run())
    return made, pq.read_table(folder / "rounds.parquet").to_pylist()


FLAKY = {"preset": "phones_global", "failure": {"hazard_per_s": 0.0, "p_start": 0.2}}


@pytest.mark.parametrize("devices", [None, FLAKY])
def test_the_last_gini_is_the_summary_s_undone_rounds_and_all(devices: dict[str, Any] | None, tmp_path: Path) -> None:
    policy = {"over_select": 1.3, "max_failed_rounds": 30}
    made, rows = played(
        tmp_path, DIGITS, partition={"name": "by_label", "clients": 200}, devices=devices, server=policy
    )
    found = summary.write(tmp_path, made)
    assert rows[-1]["gini"] == found["participation_gini"] > 0
    invalid = [i for i, row in enumerate(rows) if not row["valid"]]
    assert bool(invalid) == (devices is not None)
    for i in invalid:
        assert rows[i]["age_rounds"] is None, "its clients did no work"
        assert rows[i]["gini"] == (rows[i - 1]["gini"] if i else 0)
    assert any(rows[i]["phase"] == "update" for i in invalid) == bool(invalid), "rounds are undone after a valid phase"


def test_accepted_are_told_apart_by_speed_zone_and_label(tmp_path: Path) -> None:
    compute = {"median_s_per_sample": 2.0, "sigma": 1.5}
    made, rows = played(
        tmp_path, DIGITS, partition={"name": "by_label", "clients": 200}, devices=FLAKY | {"compute": compute},
        server={"over_select": 2.0, "deadline_s": 1e4, "max_failed_rounds": 30},
    )  # fmt: skip
    for row in rows:
        by = [row[f"accepted_by_{name}"] for name in ("tier", "zone", "label")]
        assert [len(counts) for counts in by] == [4, 7, 4]
        assert all(sum(counts) == row["accepted"] for counts in by)
        assert by[2][1] == 0, "a shard holds one label"
    found = summary.write(tmp_path, made)
    took_part = pq.read_table(tmp_path / "participation.parquet")["client"].to_numpy()
    seconds = made.world.population.sec_per_sample_N
    fastest = seconds <= np.sort(seconds)[49]
    tiers = found["participation_by_tier"]
    assert [tier["group"] for tier in tiers] == ["fastest", "second", "third", "slowest"]
    assert [tier["share_of_clients"] for tier in tiers] == [0.25] * 4
    assert tiers[0]["share_of_accepted"] == pytest.approx(fastest[took_part].mean())
    assert tiers[0]["share_of_accepted"] > 0.35 > 0.15 > tiers[3]["share_of_accepted"], "over-selection favours them"
    valid = [row for row in rows if row["valid"]]
    for name in ("tier", "zone", "label"):
        shares = np.sum([row[f"accepted_by_{name}"] for row in valid], axis=0) / len(took_part)
        groups = found[f"participation_by_{name}"]
        np.testing.assert_allclose([group["share_of_accepted"] for group in groups], shares)
        assert sum(group["share_of_clients"] for group in groups) == pytest.approx(1)
    assert [zone["group"] for zone in found["participation_by_zone"]][:2] == ["UTC-8", "UTC-5"]
    score_N = made.world.label_score_N
    assert score_N is not None
    assert found["participation_by_label"][3]["share_of_clients"] == pytest.approx((score_N > 0.5).mean())
    (line,) = [line for line in summary.lines(found) if "slowest quarter" in line]
    assert line.endswith("(of clients 25.0 / 25.0 / 25.0 / 25.0 %)")


def test_without_devices_there_are_labels_alone_and_without_labels_nothing(tmp_path: Path) -> None:
    _, rows = played(tmp_path, DIGITS)
    assert all(sum(row["accepted_by_label"]) == row["accepted"] for row in rows)
    assert all(row["accepted_by_tier"] is row["accepted_by_zone"] is None for row in rows)
    made, rows = played(tmp_path, QUADRATIC)
    assert all(row["accepted_by_label"] is None for row in rows)
    assert made.world.groupings == {}
    assert rows[-1]["age_rounds"] >= 1, "4 of 8 clients come again soon"
    assert not [key for key in summary.write(tmp_path, made) if key.startswith("participation_by")]


@dataclass(frozen=True, kw_only=True)
class Percent(LabelScored, Quadratic):
    """Scores of another range than they are to be of."""

    def label_scores(self, labels: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.full(len(labels), 50.0)


def test_label_scores_out_of_range_are_refused_before_anything_runs() -> None:
    problem = {"name": "tests.server.test_participation:Percent"}
    with pytest.raises(ConfigError, match=r"^problem.name: Percent.label_scores must give numbers from 0 to 1"):
        experiment(QUADRATIC, settings("cd_ma"), problem=problem)


def test_one_time_zone_is_none(tmp_path: Path) -> None:
    devices = {"preset": "phones_us_night"}
    made = experiment(DIGITS, settings("cd_mage"), devices=devices, partition={"name": "by_label", "clients": 200})
    assert set(made.world.groupings) == {"tier", "label"}
