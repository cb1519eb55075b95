"""Pictures and curves that a run leaves."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from matplotlib.image import imread

from server.exhibits import CURVES
from tests.contracts.table import settings
from tests.play import DIGITS, experiment, server

ROBUST: dict[str, Any] = dict(DIGITS) | {"problem": {"name": "robust"}, "rounds": 5}


def test_pictures_are_kept_at_the_first_every_so_many_and_the_last_evaluation(tmp_path: Path) -> None:
    made = experiment(ROBUST, settings("cd_ma"), evaluate={"every": 1, "pictures": 2, "splits": ["test"]})
    playing = server(made, tmp_path)
    *_, last = playing.run()
    assert last.round == 5
    kept = sorted(path.name for path in (tmp_path / "pictures").iterdir())
    assert kept == [f"perturbation_{t:06d}.png" for t in (0, 2, 4, 5)]
    shown = torch.from_numpy(imread(tmp_path / "pictures" / kept[-1]))
    y = playing.point.y.view(8, 8)
    expected = 0.5 + y / (2 * y.abs().max())
    assert shown.shape == (280, 280, 3)
    torch.testing.assert_close(shown[::35, 34::35, 0], expected.float(), rtol=0, atol=1 / 255)


def test_curves_are_those_of_the_final_point_on_each_split(tmp_path: Path) -> None:
    made = experiment(DIGITS, settings("cd_ma"))
    playing = server(made, tmp_path)
    *_, last = playing.run()
    table = pq.read_table(tmp_path / "curves.parquet")
    assert table.schema.equals(CURVES)
    for row in table.to_pylist():
        assert row["curve"] == "roc"
        area = sum(
            (b - a) * (c + d) / 2 for a, b, c, d in zip(row["x"], row["x"][1:], row["y"], row["y"][1:], strict=False)
        )
        assert area == pytest.approx(last.metrics[row["split"]]["auc"], abs=2e-3)
    assert table["split"].to_pylist() == ["train", "test"]


def test_a_problem_with_nothing_to_show_leaves_nothing(tmp_path: Path) -> None:
    base = dict(DIGITS) | {"problem": {"name": "fair"}, "partition": {"name": "stride", "clients": 20}}
    list(server(experiment(base, settings("cd_ma")), tmp_path).run())
    assert not (tmp_path / "pictures").exists()
    assert not (tmp_path / "curves.parquet").exists()
    assert torch.load(tmp_path / "model.pt", weights_only=True)["y"].sum() == pytest.approx(1)
