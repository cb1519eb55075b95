"""What a report says of runs whose curves are known."""

import json
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from cluster import report, yaml12
from cluster.report import fits, selection, tables
from cluster.report.run import Run, headline
from cluster.report.runs import Runs, middle
from cluster.study import Select
from raysim.errors import ConfigError, DataError
from server.ledger import METRICS, ROUNDS
from tests.contracts.table import settings
from tests.play import QUADRATIC

Values = Callable[[np.ndarray[Any, Any]], Any]


def made(
    folder: Path,
    values: Values,
    rounds: int = 40,
    seed: int = 0,
    metric: str = "auc",
    target: float | None = 0.9,
    stopped: bool = False,
    devices: bool = True,
    mb: float = 1.0,
    last: Mapping[str, float] | None = None,
    epsilon: float | None = None,
    **algorithm: Any,
) -> Path:
    """What a report reads of a finished run that was evaluated in every round, mb MB up and a minute a round.

    With `stopped` it ended at its target; `last` are other metrics of its last evaluation.
    """
    t = np.arange(rounds + 1)
    curve = np.asarray(values(t), dtype=float)
    higher = metric == "auc"
    if stopped:
        t = t[: int(np.flatnonzero(curve >= target if higher else curve <= target)[0]) + 1]
    sim = {"sim_s": 60.0} if devices else {}
    rows = [
        {"round": i, "split": "test", "metric": metric, "value": curve[i], "bytes_up": int(i * mb * 1e6)}
        | {name: i * unit for name, unit in sim.items()}
        for i in t.tolist()
    ]
    rows += [rows[-1] | {"metric": name, "value": value} for name, value in (last or {}).items()]
    folder.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=METRICS), folder / "metrics.parquet")
    counts = {"invited": 10, "accepted": 7, "late": 2, "cancelled": 0, "rejected": 0}
    phases = [{"round": i, **(counts if devices else {})} for i in t[:-1].tolist()]
    pq.write_table(pa.Table.from_pylist(phases, schema=ROUNDS), folder / "rounds.parquet")
    config = {
        "name": "mine",
        "seed": seed,
        "rounds": rounds,
        "problem": {"name": "auc" if higher else "quadratic"},
        "algorithm": {"name": "cd_mage", "S": 2, "K": 1} | algorithm,
        "evaluate": {"target": target, "stop_at_target": stopped},
    }
    (folder / "config.yaml").write_text(yaml12.dump(config))
    summary: dict[str, Any] = {
        "headline": {"metric": metric, "higher_is_better": higher},
        "rounds": int(t[-1]),
        "final": {"train": 0.0, "test": float(curve[t[-1]])},
        "participants": 20,
        "participation_gini": 0.25,
        "target": {"rounds": int(t[-1]) if stopped else None},
    }
    if epsilon is not None:
        summary["privacy"] = {"update": {"epsilon": 1.0, "epsilon_spent": epsilon}}
    if devices:
        summary |= {"late": 0.2, "dropped": 0.1, "bytes_wasted": 0.3, "compute_wasted": 0.4}
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def reaching(after: float) -> Values:
    """A curve that is at .9 after so many rounds, and just below before."""
    return lambda t: np.where(t >= after, 0.9, 0.5 + 0.3 * t / after)


def test_a_run_costs_what_it_had_cost_at_the_first_evaluation_at_the_target(tmp_path: Path) -> None:
    run = Run.read(made(tmp_path / "a", lambda t: np.where(t == 3, 0.95, 0.5), mb=2.0))
    cost = run.reached(0.9)
    assert cost is not None
    assert (cost["round"], cost["bytes_up"], cost["sim_s"]) == (3, 6.0, 0.05)
    assert run.reached(0.96) is None, "and not the last round"
    assert (run.metric, run.split, run.higher) == ("auc", "test", True)


def test_the_metric_at_a_budget_is_the_last_evaluation_within_it(tmp_path: Path) -> None:
    run = Run.read(made(tmp_path / "a", lambda t: t / 100, rounds=20, mb=2.0))
    assert run.at("bytes_up", 7.9) == 0.03
    assert run.at("bytes_up", 8.0) == 0.04
    assert run.at("round", 20) == 0.20
    assert run.at("bytes_up", 41.0) == 0.20, "runs of as many rounds do not upload exactly as much"
    assert run.at("bytes_up", 50.0) is None, "what it would have come to is not known"


def test_of_costs_of_which_some_are_infinite_the_median_may_be() -> None:
    inf = np.inf
    for costs, expected in (([3, 1, 2], 2), ([1, inf, 2], 2), ([1, inf, inf], inf), ([1, 2], 1.5), ([1, inf], inf)):
        assert middle(np.array(costs, dtype=float)) == expected


def test_runs_are_grouped_by_all_but_their_seed_and_called_by_what_tells_them_apart(tmp_path: Path) -> None:
    grid = [(name, S, seed) for name in ("cd_mage", "cd_ma") for S in (2, 8) for seed in (1, 0)]
    # The steps differ with the algorithm, which tells them apart.
    folders = [
        made(tmp_path / f"{i}", reaching(5), seed=seed, name=name, S=S, eta=0.1 if name == "cd_ma" else 0.2)
        for i, (name, S, seed) in enumerate(grid)
    ]
    runs = Runs.read(folders)
    assert [s.label for s in runs.settings] == ["cd_mage S = 2", "cd_mage S = 8", "cd_ma S = 2", "cd_ma S = 8"]
    assert [run.seed for run in runs.settings[0].runs] == [0, 1]
    assert runs.levels("algorithm.S") == [2, 8]
    assert runs.target == 0.9
    (group, *_) = fits.families(runs, "algorithm.S")
    assert (group[0], [s.label for s in group[1]]) == ("cd_mage", ["cd_mage S = 2", "cd_mage S = 8"])


def test_targets_are_told_with_how_many_reached_them_and_never_as_the_last_round(tmp_path: Path) -> None:
    after = {(2, 0): 10, (2, 1): 30, (2, 2): 20, (8, 0): 6, (8, 1): 99, (8, 2): 99}
    runs = Runs.read([made(tmp_path / f"{S}{i}", reaching(r), seed=i, S=S) for (S, i), r in after.items()])
    first, second = tables.to_target(runs, 0.9)
    assert first | {"reached": "3/3", "rounds": 20, "rounds, range": "10 - 30", "MB up": 20, "hours": 1 / 3} == first
    assert (second["reached"], second["rounds"], second["rounds, range"]) == ("1/3", None, "6 - 6")
    assert [row["rounds to target"] for row in tables.each_run(runs, 0.9)] == [10, 30, 20, 6, None, None]
    assert [row["times fewer rounds"] for row in tables.speed_up(runs, 0.9)] == [1, None]


def test_clients_with_tests_of_their_own_have_a_table_and_others_none(tmp_path: Path) -> None:
    def rising_and_falling(t: Any) -> Any:
        return np.where(t <= 30, t / 100, 0.25)

    own = {"auc_worst": 0.1, "auc_std": 0.05, "never_took_part": 3.0}
    private = made(tmp_path / "a", rising_and_falling, last=own, epsilon=7.5, S=2)
    plain = made(tmp_path / "b", reaching(10), last=own, S=4)
    others = made(tmp_path / "c", reaching(10), S=8)
    first, second = tables.by_client(Runs.read([private, plain, others]))
    expected = {"last": 0.25, "best": 0.3, "after rounds": 30, "worst client": 0.1, "deviation": 0.05}
    assert first == {"setting": "S = 2", "seed": 0, **expected, "never took part": 3, "epsilon spent": 7.5}
    assert (second["best"], second["after rounds"], second["epsilon spent"]) == (0.9, 10, None)
    assert "epsilon spent" not in tables.by_client(Runs.read([plain, others]))[0]
    assert tables.by_client(Runs.read([others])) == []


def test_a_speed_up_is_over_the_fewest_clients_that_reached_it(tmp_path: Path) -> None:
    after = {2: 99, 4: 24, 8: 12, 16: 8}
    runs = Runs.read([made(tmp_path / f"{S}", reaching(rounds), S=S) for S, rounds in after.items()])
    found = [(r["S"], r["times the clients"], r["times fewer rounds"]) for r in tables.speed_up(runs, 0.9)]
    assert found == [(2, 0.5, None), (4, 1, 1), (8, 2, 2), (16, 4, 3)]


def test_an_exponent_is_that_of_the_power_and_stands_beside_the_theorems(tmp_path: Path) -> None:
    folders = [
        made(tmp_path / f"{name}{S}{K}", reaching(64 / S**power), rounds=80, S=S, K=K, name=name)
        for name, power in (("cd_mage", 1), ("cd_mage_plus", 0.5))
        for S in (1, 4, 16)
        for K in (1, 2, 4, 8)
    ]
    runs = Runs.read(folders)
    found = fits.fitted(runs, 0.9)
    by_S = {fit.where: fit for fit in found if fit.of == "rounds until the target, in S"}
    assert set(by_S) == {f"{name} K = {K}" for name in ("cd_mage", "cd_mage_plus") for K in (1, 2, 4, 8)}
    for where, fit in by_S.items():
        plus = where.startswith("cd_mage_plus")
        expected = Fraction(-1, 2) if plus else Fraction(-1)
        assert fit.exponent == pytest.approx(float(expected))
        assert fit.theory == expected
        assert fit.source == f"Xie et al. 2021, theorem {2 if plus else 1}; no interval from 3 points"
        assert fit.points == 3
        assert np.isnan(fit.low)
    by_K = [fit for fit in found if fit.of == "rounds until the target, in K"]
    assert len(by_K) == 6
    assert all(abs(fit.exponent) < 1e-12 and fit.theory is None and fit.low <= fit.high for fit in by_K)


def test_an_interval_holds_the_exponent_as_often_as_it_says(tmp_path: Path) -> None:
    """Also where seeds are not all that lies between the numbers and the line: each S may have its own."""
    random = np.random.default_rng(0)
    levels = np.array([2.0, 5, 10, 20, 50])
    held, times = 0, 100
    for _ in range(times):
        own = 0.2 * random.standard_normal((5, 1)) + 0.15 * random.standard_normal((5, 3))
        after = np.round(2_000 * levels[:, None] ** -0.7 * np.exp(own))
        costs = {S: after[place] for place, S in enumerate(levels)}
        found = fits.power(levels, np.array([np.exp(np.log(costs[S]).mean()) for S in levels]))
        held += found[1] <= -0.7 <= found[2]
    assert abs(held / times - 0.95) < 3 * (0.95 * 0.05 / times) ** 0.5


def test_settings_where_not_all_runs_reached_it_are_not_fitted_and_said_to_be_left_out(tmp_path: Path) -> None:
    after = {(S, seed): 32 / S for S in (1, 2, 4, 8) for seed in (0, 1)} | {(1, 1): 999}
    folders = [made(tmp_path / f"{S}-{i}", reaching(rounds), seed=i, S=S) for (S, i), rounds in after.items()]
    (fit,) = fits.fitted(Runs.read(folders), 0.9)
    assert fit.exponent == pytest.approx(-1)
    assert fit.points == 3
    assert "without 1 of 4 settings where not all reached it" in fit.source
    (none,) = fits.fitted(Runs.read(folders[:4]), 0.9)
    assert none.points == 0
    assert tables.exponents([none])[0]["fitted"] is None


def test_an_exponent_of_rounds_is_that_of_the_mean_squared_gradient(tmp_path: Path) -> None:
    folders = [
        made(tmp_path / f"{seed}", lambda t: np.maximum(t, 1) ** -0.25, 2000, seed, "primal_gradient_norm", None)
        for seed in (0, 1)
    ]
    (fit,) = fits.fitted(Runs.read(folders), None)
    assert fit.theory == Fraction(-1, 2)
    assert fit.exponent == pytest.approx(-0.5, abs=0.03), "the mean of t^(-1/2) is about 2 T^(-1/2)"
    assert fit.low <= fit.exponent <= fit.high


def test_at_equal_upload_a_run_that_ended_at_its_target_is_at_least_there(tmp_path: Path) -> None:
    folders = [
        made(tmp_path / "quick", reaching(4), name="cd_ma", stopped=True),
        made(tmp_path / "slow", lambda t: t / 100, name="cd_mage"),
    ]
    runs = Runs.read(folders)
    assert tables.budgets_MB(runs) == [5, 10, 20, 40]
    quick, slow = tables.equal_upload(runs)
    assert list(quick.values())[1:] == ["≥ 0.9"] * 4
    assert list(slow.values())[1:] == [0.05, 0.1, 0.2, 0.4]


def test_a_run_that_was_broken_off_counts_as_one_that_did_not_reach_it(tmp_path: Path) -> None:
    study = tmp_path / "study"
    base = QUADRATIC | {"algorithm": settings("cd_mage"), "name": "mine"}
    for seed in (0, 1, 2):
        made(study / "trials" / f"mine_seed{seed}", reaching(10), seed=seed, rounds=40 if seed < 2 else 6)
    (study / "trials" / "mine_seed2" / "summary.json").unlink()
    tree = {
        "name": "mine",
        "base": base,
        "set": {"rounds": 40},
        "grid": {"seed": [0, 1, 2, 3]},
        "select": {"rounds": 40},
    }
    (study / "study.yaml").write_text(yaml12.dump(tree))
    status = {0: "finished", 1: "finished", 2: "failed", 3: "failed"}  # of the last there is not even a folder
    lines = [f"mine_seed{seed},{status},1.0,\n" for seed, status in status.items()]
    (study / "trials.csv").write_text("trial,status,wall_s,said\n" + "".join(lines))
    page = report.make([study], tmp_path / "out", "").read_text()
    (row,) = pq.read_table(tmp_path / "out" / "tables" / "to_target.parquet").to_pylist()
    assert (row["reached"], row["rounds"], row["rounds, range"]) == ("2/4", None, "10 - 10")
    (best,) = report.best(study)[0]
    assert (best["runs"], best["median"], best["best"]) == ("2/4", 0.9, "")
    assert page.count("mine_seed3") == 1
    assert "2 finished runs of 1 settings" in page


def test_at_equal_upload_of_two_in_the_middle_the_worse_counts(tmp_path: Path) -> None:
    folders = [
        made(tmp_path / "quick", reaching(4), seed=0, stopped=True),
        made(tmp_path / "slow", lambda t: t / 100, seed=1),
    ]
    (row,) = tables.equal_upload(Runs.read(folders))
    assert list(row.values())[1:] == [0.05, 0.1, 0.2, 0.4]


def test_another_metric_has_its_own_direction_and_no_target(tmp_path: Path) -> None:
    folder = made(tmp_path / "a", reaching(4))
    table = pq.read_table(folder / "metrics.parquet").to_pylist()
    table += [row | {"metric": "loss", "value": 1 - row["value"]} for row in table]
    pq.write_table(pa.Table.from_pylist(table, schema=METRICS), folder / "metrics.parquet")
    with pytest.raises(ConfigError, match=r"--metric: 'loss' needs --higher-is-better or --lower-is-better"):
        Runs.read([folder], "loss")
    runs = Runs.read([folder], "loss", higher=False)
    assert runs.target is None
    assert runs.settings[0].cost(0.1, "round") == 4


def test_targets_that_were_reached_at_once_or_never_are_no_trouble(tmp_path: Path) -> None:
    def of(folder: Path, values: Values, **algorithm: Any) -> list[Path]:
        kinds = [(S, K) for S in (1, 2, 4) for K in (1, 2)]
        return [made(folder / f"{S}{K}", values, S=S, K=K, **algorithm) for S, K in kinds]

    at_once = of(tmp_path / "once", lambda t: 0 * t + 1.0) + of(tmp_path / "other", lambda t: 0 * t + 1.0, name="cd_ma")
    assert report.make(at_once, tmp_path / "out", "").exists()
    without_K = made(tmp_path / "without", reaching(3), name="parallel_sgda", K=None)
    assert report.make([*of(tmp_path / "never", lambda t: 0.1 + 0 * t), without_K], tmp_path / "more", "").exists()
    alike = [made(tmp_path / f"alike{i}", reaching(3), eta=i, S=4) for i in (1, 2, 3)]
    far = made(tmp_path / "far", lambda t: 0.1 + 0 * t, eta=1, S=8)
    assert report.make([*alike, far], tmp_path / "last", "").exists()


def test_devices_are_told_as_shares(tmp_path: Path) -> None:
    (row,) = tables.devices(Runs.read([made(tmp_path / "a", reaching(4))]))
    assert (row["accepted"], row["late"], row["dropped"]) == pytest.approx((0.7, 0.2, 0.1))
    assert tables.devices(Runs.read([made(tmp_path / "b", reaching(4), devices=False)])) == []


@pytest.mark.parametrize(
    ("select", "best"),
    [
        ({"rounds": 10}, "eta = 3"),  # quick at first
        ({"bytes_up": 10e6}, "eta = 3"),
        ({"simulated_hours": 1 / 6}, "eta = 3"),
        ({"rounds": 40}, "eta = 2"),
        ({}, "eta = 2"),
    ],
)
def test_best_is_the_highest_median_at_the_budget_of_settings_with_all_their_runs(
    select: dict[str, Any], best: str, tmp_path: Path
) -> None:
    curves: dict[float, list[Values]] = {
        1: [lambda t: t / 100] * 3,
        2: [lambda t: t / 50, lambda t: t / 50, lambda t: 0 * t],  # one run is lost
        3: [lambda t: np.minimum(t / 20, 0.6)] * 3,
    }
    folders = [
        made(tmp_path / f"{eta}-{i}", curve, seed=i, eta=eta)
        for eta, of_seeds in curves.items()
        for i, curve in enumerate(of_seeds)
    ]
    rule = Select(**select)
    ranked = selection.ranked(Runs.read(folders), rule)
    assert [row["setting"] for row in ranked if row["best"]] == [best]
    assert ranked[0]["setting"] == best
    (told,) = selection.lines(ranked)
    assert told.startswith(f"best for cd_mage: {best}, median ")


def test_less_may_be_better(tmp_path: Path) -> None:
    folders = [
        made(tmp_path / f"{eta}", lambda t, eta=eta: 1.0 * eta + 0 * t, metric="gradient_norm", eta=eta)
        for eta in (3, 1, 2)
    ]
    assert [row["setting"] for row in selection.ranked(Runs.read(folders), Select())] == [
        "eta = 1", "eta = 2", "eta = 3"
    ]  # fmt: skip


def test_a_report_holds_everything_in_one_file_and_beside_it(tmp_path: Path) -> None:
    after = {("cd_mage", S, K): 60 / (S * K) for S in (1, 2, 4) for K in (1, 3)}
    after |= {("cd_ma", S, K): 200 for S in (1, 2, 4) for K in (1, 3)}
    folders = [
        made(tmp_path / f"{name}-{S}-{K}-{seed}", reaching(rounds + seed), 80, seed, S=S, K=K, name=name)
        for (name, S, K), rounds in after.items()
        for seed in (0, 1)
    ]
    out = tmp_path / "report"
    page = report.make(folders, out, "raysim report <these> & those").read_text()
    figures = {path.stem for path in (out / "figures").glob("*.png")}
    curves = {"curves_round", "curves_bytes_up", "curves_sim_s"}
    assert figures == curves | {"equal_upload", "cost_S_K", "speed_up", "exponents", "devices"}
    assert len(re.findall(r'<img src="data:image/png;base64,[A-Za-z0-9+/=]{1000,}"', page)) == len(figures)
    assert not re.findall(r'(?:src|href)="(?!data:|#)', page), "nothing else is needed"
    assert "raysim report &lt;these&gt; &amp; those" in page
    assert page.count("24 runs, made with raysim report") == len(figures)
    assert all(folder.name in page for folder in folders)
    for path in (out / "tables").glob("*.csv"):
        rows = pa.csv.read_csv(path).num_rows
        assert rows == pq.read_table(path.with_suffix(".parquet")).num_rows > 0
    to_target = pq.read_table(out / "tables" / "to_target.parquet").to_pylist()
    assert [row["rounds"] for row in to_target if row["setting"].startswith("cd_ma ")] == [None] * 6
    assert "without a target" not in page


def test_without_devices_there_is_neither_time_nor_fate(tmp_path: Path) -> None:
    folders = [made(tmp_path / f"{S}{K}", reaching(9), devices=False, S=S, K=K) for S in (1, 2) for K in (1, 2)]
    report.make(folders, tmp_path / "out", "")
    figures = {path.stem for path in (tmp_path / "out" / "figures").iterdir()}
    assert figures == {"curves", "cost_S_K", "speed_up"}
    (row, *_) = pq.read_table(tmp_path / "out" / "tables" / "to_target.parquet").to_pylist()
    assert "hours" not in row


def test_what_cannot_be_reported_on_is_said(tmp_path: Path) -> None:
    first = made(tmp_path / "first", reaching(3))
    other = made(tmp_path / "other", reaching(3), metric="gradient_norm")
    with pytest.raises(DataError, match=r"the runs are of test auc, test gradient_norm; give --metric"):
        report.make([first, other], tmp_path / "out", "")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.yaml").touch()
    with pytest.raises(DataError, match=r"no folder of a finished run, nor of a study \(.*\); .*raysim run --resume"):
        report.make([first, tmp_path / "broken"], tmp_path / "out", "")
    with pytest.raises(DataError, match=r"nowhere is no folder of a finished run, nor of a study \(.*\)$"):
        report.make([first, tmp_path / "nowhere"], tmp_path / "out", "")
    (tmp_path / "broken" / "config.yaml").unlink()
    with pytest.raises(DataError, match=r"broken is no folder of a finished run"):
        report.make([first, tmp_path / "broken"], tmp_path / "out", "")
    with pytest.raises(DataError, match=r"first has no test loss; it has test auc"):
        report.make([first], tmp_path / "out", "", metric="loss")
    again = made(tmp_path / "again", reaching(5))
    with pytest.raises(DataError, match=r"first and \S+again are the same experiment with the same seed"):
        report.make([first, again], tmp_path / "out", "")
    assert len(Runs.read([first, first]).all) == 1
    stopped = made(tmp_path / "stopped", reaching(5), stopped=True, S=9)
    with pytest.raises(ConfigError, match=r"--target: is 0\.97, and \S+stopped ended at its own, 0\.9"):
        report.make([stopped], tmp_path / "out", "", target=0.97)
    further = made(tmp_path / "further", reaching(3), target=0.8, S=7)
    with pytest.raises(ConfigError, match=r"--target: the runs have different targets"):
        report.make([first, further], tmp_path / "out", "")
    assert report.make([first, further], tmp_path / "out", "", target=0.85).exists()


def test_the_headline_of_a_run_that_goes_on_is_its_problems_and_of_a_problem_of_the_users_to_be_named(
    tmp_path: Path,
) -> None:
    folder = made(tmp_path / "a", reaching(5))
    (folder / "summary.json").unlink()
    assert headline(folder) == "auc"
    config = yaml12.parse((folder / "config.yaml").read_text())
    (folder / "config.yaml").write_text(yaml12.dump(config | {"problem": {"name": "mine:Own"}}))
    with pytest.raises(DataError, match=r"a has not finished, and its problem is your own: .*--metric"):
        headline(folder)
