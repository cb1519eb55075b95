"""`raysim devices`: a population and its rounds, without training."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from cluster import survey
from raysim.errors import ConfigError
from tests.contracts.table import settings
from tests.play import QUADRATIC, experiment, server

MANY = {"data": {"clients": 400}}


def test_rounds_are_those_that_a_run_would_have(tmp_path: Path) -> None:
    made = experiment(QUADRATIC, settings("cd_mage"), devices="phones_global", **MANY)
    found = survey.survey(made, rounds=6)
    playing = server(made, tmp_path)
    ends = [0.0]
    for t in range(6):
        playing.play(t)
        ends.append(playing.clock.now_s)
    # In round 0 the rehearsed message of a steady round is longer for some algorithms; for CD-MAGE it is the same.
    np.testing.assert_allclose(np.cumsum(found.round_s), ends[1:])
    assert sum(found.fates.values()) == pytest.approx(1)
    playing.ledger.write(tmp_path)
    rows = pq.read_table(tmp_path / "rounds.parquet").to_pylist()
    np.testing.assert_allclose(found.tiers, np.sum([row["accepted_by_tier"] for row in rows], axis=0) / (2 * 6 * 4))
    assert 0.1 < found.on.mean() < 0.3


def test_it_draws_a_png(tmp_path: Path) -> None:
    made = experiment(QUADRATIC, settings("cd_ma"), devices="always_on")
    found = survey.survey(made, rounds=3)
    assert (found.on == 1).all()
    survey.draw(made, found, tmp_path / "devices.png")
    with Image.open(tmp_path / "devices.png") as image:
        assert image.format == "PNG"


def test_without_devices_there_is_nothing_to_show() -> None:
    with pytest.raises(ConfigError, match=r"^devices: there are none"):
        survey.survey(experiment(QUADRATIC, settings("cd_ma")))
