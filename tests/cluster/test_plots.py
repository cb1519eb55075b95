"""Figures of finished runs, and what they are drawn from."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import same_color
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

from cluster import plots, summary, yaml12
from cluster.plots import Curve
from raysim.errors import DataError, OutputError
from server.exhibits import CURVES
from server.ledger import METRICS, ROUNDS
from tests.contracts.table import settings
from tests.play import DIGITS, experiment, server


def run_folder(folder: Path, rounds: list[int], values: list[float | None], **config: Any) -> Path:
    """What plots read of a run: its configuration and its metrics, 1 MB uploaded a round."""
    rows = [
        {"round": t, "split": "train", "metric": "auc", "value": v, "bytes_down": 0, "bytes_up": t * 10**6, "wall_s": 0}
        for t, v in zip(rounds, values, strict=True)
    ]
    folder.mkdir()
    pq.write_table(pa.Table.from_pylist(rows, schema=METRICS), folder / "metrics.parquet")
    (folder / "config.yaml").write_text(yaml12.dump({"name": "mine", "seed": 0, "algorithm": {"S": 5}} | config))
    return folder


def lines(ax: Axes) -> dict[str, tuple[list[float], list[float]]]:
    return {
        str(line.get_label()): (np.asarray(line.get_xdata()).tolist(), np.asarray(line.get_ydata()).tolist())
        for line in ax.get_lines()
    }


def test_seeds_of_one_experiment_are_their_median_in_a_band(tmp_path: Path) -> None:
    folders = [
        run_folder(tmp_path / "a", [0, 2, 4, 6], [0.5, 0.6, 0.8, 0.9], seed=0),
        run_folder(tmp_path / "b", [0, 4], [0.7, 0.9], seed=1, output={"folder": "elsewhere"}),  # looked at less often
        run_folder(tmp_path / "c", [0, 4], [0.1, None], name="other"),
    ]
    figure = plots.compare(folders, "auc", "train", tmp_path / "out.png")
    by_round, by_bytes = figure.axes
    for ax, xlabel, x in ((by_round, "round", [0, 4]), (by_bytes, "uploaded, MB", [0, 4])):
        assert ax.get_xlabel() == xlabel
        drawn = lines(ax)
        assert set(drawn) == {"mine (2 runs)", "other"}
        assert drawn["mine (2 runs)"][0] == x
        np.testing.assert_allclose(drawn["mine (2 runs)"][1], [0.6, 0.85])
        np.testing.assert_array_equal(drawn["other"][1], [0.1, np.nan])
    assert by_round.get_ylabel() == "train auc"
    (band,) = by_round.collections
    corners = {(float(x), float(y)) for x, y in band.get_paths()[0].vertices}
    assert corners == {(0, 0.5), (0, 0.7), (4, 0.8), (4, 0.9)}
    with Image.open(tmp_path / "out.png") as image:
        assert image.format == "PNG"
        assert image.size[0] > image.size[1] > 300


def test_experiments_that_share_only_their_name_are_kept_apart(tmp_path: Path) -> None:
    folders = [
        run_folder(tmp_path / "first", [0, 1], [0.5, 0.6]),
        run_folder(tmp_path / "second", [0, 1], [0.5, 0.9], algorithm={"S": 10}),
    ]
    figure = plots.compare(folders, "auc", "train", tmp_path / "out.png")
    drawn = lines(figure.axes[0])
    assert {label: y for label, (_, y) in drawn.items()} == {"first": [0.5, 0.6], "second": [0.5, 0.9]}


def test_a_run_draws_its_own_metric_twice(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", [0, 3], [0.5, 0.75])
    pq.write_table(ROUNDS.empty_table(), folder / "rounds.parquet")
    made = plots.draw(folder, "auc")
    assert made == [folder / "plots" / "auc_round.png", folder / "plots" / "auc_bytes_up.png"]
    for path in made:
        with Image.open(path) as image:
            assert image.format == "PNG"


def test_points_evaluated_beside_are_told_and_drawn_with_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = {"name": "compositional_auc", "rho": 1.0}
    made = experiment(DIGITS, settings("local_scgdam", S=12), problem=problem, evaluate={"splits": ["train", "test"]})
    *_, last = server(made, tmp_path).run()
    (tmp_path / "config.yaml").write_text(yaml12.dump(made.resolved))
    found = summary.write(tmp_path, made)
    measured = {split: last.metrics[split]["inner_auc"] for split in ("train", "test")}
    assert found["final_beside"] == {"inner": measured}
    assert found["final"]["test"] != measured["test"]
    drawn: dict[str, Figure] = {}
    monkeypatch.setattr(plots, "save", lambda figure, out: drawn.update({out.stem: figure}))
    plots.draw(tmp_path, "auc")
    ends = {label: y[-1] for label, (_, y) in lines(drawn["auc_round"].axes[0]).items()}
    assert ends == {
        "train": found["final"]["train"], "test": found["final"]["test"],
        "train, inner": measured["train"], "test, inner": measured["test"],
    }  # fmt: skip


ZONES = [{"offset_h": -5.0}, {"offset_h": 1.0}]
FREQUENT = {"name": "markov", "share": 0.8, "diurnal": {"amplitude": 0.2, "zones": ZONES}}


def test_a_run_on_devices_draws_time_fates_and_participation(tmp_path: Path) -> None:
    made = experiment(DIGITS, settings("cd_mage"), devices={"preset": "phones_global", "availability": FREQUENT})
    *_, last = server(made, tmp_path).run()
    (tmp_path / "config.yaml").write_text(yaml12.dump(made.resolved))
    summary.write(tmp_path, made)
    curve = Curve.read(tmp_path, "auc", "train")
    assert curve.axes["sim_s"][-1] == pytest.approx((last.sim_s or 0) / 3600)
    names = {path.stem for path in plots.draw(tmp_path, "auc")}
    assert names == {"auc_round", "auc_bytes_up", "auc_sim_s", "fates", "participation", "roc"}
    with Image.open(tmp_path / "plots" / "participation.png") as image:
        width, height = image.size
    assert width / height == pytest.approx(10 / 6.8, abs=0.01), "two rows: how often, and by tier, zone and label"


def drawn_by(folder: Path, monkeypatch: pytest.MonkeyPatch, metric: str = "auc") -> dict[str, Figure]:
    """What plots.draw makes of a run, by name, without the metric's own figures."""
    figures: dict[str, Figure] = {}
    monkeypatch.setattr(plots, "save", lambda figure, out: figures.update({out.stem: figure}))
    plots.draw(folder, metric)
    return {name: figure for name, figure in figures.items() if not name.startswith(f"{metric}_")}


def numbered_folder(folder: Path, **values: list[float | None]) -> Path:
    """A run that was evaluated after rounds 0 and 5: to `values` on test, and to 9 throughout on train."""
    run_folder(folder, [], [])
    pq.write_table(ROUNDS.empty_table(), folder / "rounds.parquet")
    rows = [
        {"round": t, "split": split, "metric": metric, "value": v, "bytes_down": 0, "bytes_up": t * 10**6, "wall_s": 0}
        for split in ("train", "test")
        for metric, found in ({"auc": [0.5, 0.75]} | values).items()
        for t, v in zip((0, 5), found if split == "test" else (9.0, 9.0), strict=True)
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=METRICS), folder / "metrics.parquet")
    return folder


def test_numbered_metrics_are_drawn_together_over_rounds_and_as_they_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = numbered_folder(tmp_path / "run", loss_1=[4.0, 2.0], loss_0=[1.0, None], loss_2=[None, 0.5])
    drawn = drawn_by(folder, monkeypatch)
    assert set(drawn) == {"loss_by_class"}
    over_rounds, last = drawn["loss_by_class"].axes
    assert (over_rounds.get_xlabel(), over_rounds.get_ylabel()) == ("round", "test loss")
    assert (last.get_xlabel(), last.get_ylabel()) == ("class", "test loss after round 5")
    assert over_rounds.get_title() == "run"
    found = lines(over_rounds)
    assert list(found) == ["0", "1", "2"]
    np.testing.assert_array_equal([y for _, y in found.values()], [[1, np.nan], [4, 2], [np.nan, 0.5]])
    assert [x for x, _ in found.values()] == [[0, 5]] * 3
    bars = [bar for bar in last.patches if isinstance(bar, Rectangle)]
    assert [bar.get_x() + bar.get_width() / 2 for bar in bars] == pytest.approx([0, 1, 2])
    np.testing.assert_array_equal([bar.get_height() for bar in bars], [np.nan, 2, 0.5])
    for bar, line in zip(bars, over_rounds.get_lines(), strict=True):
        assert same_color(bar.get_facecolor(), line.get_color())


def test_many_classes_differ_in_colour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in (10, 11, 62):
        folder = numbered_folder(tmp_path / str(n), **{f"y_{c}": [1 / n, 1 / n] for c in range(n)})
        over_rounds, _ = drawn_by(folder, monkeypatch)["y_by_class"].axes
        assert len({tuple(line.get_color()) for line in over_rounds.get_lines()}) == n


@pytest.mark.parametrize(
    "names",
    [
        ["accuracy_0"],
        ["accuracy_0", "accuracy_2"],
        ["accuracy_1", "accuracy_2"],
        ["accuracy_0", "loss_1"],
        ["a1", "a0"],
    ],
)
def test_a_single_number_or_a_gap_makes_no_family(
    names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = numbered_folder(tmp_path / "run", **{name: [0.0, 1.0] for name in names})
    assert drawn_by(folder, monkeypatch) == {}


def test_a_family_that_is_nowhere_defined_is_no_error(tmp_path: Path) -> None:
    folder = numbered_folder(tmp_path / "run", loss_0=[None, None], loss_1=[None, None])
    assert folder / "plots" / "loss_by_class.png" in plots.draw(folder, "auc")
    assert (folder / "plots" / "loss_by_class.png").exists()


def test_a_run_without_test_rows_draws_its_classes_on_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = experiment(DIGITS, settings("parallel_sgda"), problem={"name": "fair"}, evaluate={"splits": ["train"]})
    for _ in server(made, tmp_path).run():
        pass
    (tmp_path / "config.yaml").write_text(yaml12.dump(made.resolved))
    drawn = drawn_by(tmp_path, monkeypatch, made.problem.headline)
    assert set(drawn) == {"accuracy_by_class", "loss_by_class", "y_by_class"}
    over_rounds, last = drawn["y_by_class"].axes
    assert over_rounds.get_ylabel() == "train y"
    assert sum(bar.get_height() for bar in last.patches if isinstance(bar, Rectangle)) == pytest.approx(1)
    assert [y[0] for _, y in lines(over_rounds).values()] == pytest.approx([0.1] * 10)


def test_a_curve_of_the_final_point_is_a_line_for_each_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = numbered_folder(tmp_path / "run")
    labels = {"x_label": "recall", "y_label": "precision"}
    rows = [
        {"split": "train", "curve": "pr", "x": [0.0, 1.0], "y": [1.0, 0.5], **labels},
        {"split": "test", "curve": "pr", "x": [0.0, 0.5, 1.0], "y": [1.0, 0.75, 0.25], **labels},
        {"split": "train", "curve": "other", "x": [0.0], "y": [0.0], **labels},
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=CURVES), folder / "curves.parquet")
    drawn = drawn_by(folder, monkeypatch)
    assert set(drawn) == {"pr", "other"}
    (ax,) = drawn["pr"].axes
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_title()) == ("recall", "precision", "run")
    assert lines(ax) == {"train": ([0, 1], [1, 0.5]), "test": ([0, 0.5, 1], [1, 0.75, 0.25])}


def test_where_nothing_was_evaluated_nothing_is_drawn(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", [], [])
    assert plots.draw(folder, "auc") == []
    assert not (folder / "plots").exists()


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", [0], [0.5])
    with pytest.raises(DataError, match=r"nowhere is no folder of a run with results"):
        Curve.read(tmp_path / "nowhere", "auc", "train")
    with pytest.raises(DataError, match=r"run has no test acu; it has train auc$"):
        Curve.read(folder, "acu", "test")
    with pytest.raises(OutputError, match=r"cannot write .*none/out\.png"):
        plots.compare([folder], "auc", "train", tmp_path / "none" / "out.png")
    with pytest.raises(OutputError, match=r"cannot write .*out\.doc: Format 'doc' is not supported"):
        plots.compare([folder], "auc", "train", tmp_path / "out.doc")
    (folder / "metrics.parquet").write_bytes(b"PAR1 but not really")
    with pytest.raises(DataError, match=r"run is no folder of a run with results"):
        Curve.read(folder, "auc", "train")
