"""Tests the recipe for an availability model: a file outside the package, named by dotted path, plays an experiment."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from cluster import load_config, run
from raysim.devices import SECOND_US
from raysim.errors import ConfigError
from tests.contracts import test_availability as contracts
from tests.contracts.availability import Row
from tests.guests.experiment import on_devices

NIGHTS = '''\
"""Models devices that are on at night."""

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from pydantic.dataclasses import dataclass as record

from raysim import draws
from raysim.devices import NEVER, Availability
from raysim.devices.availability import Times
from raysim.devices.clock import DAY_US, SECOND_US
from raysim.registry import STRICT


@record(frozen=True, kw_only=True, config=STRICT)
class Nights(Availability):
    """Each device is on for the first hours after a bedtime of its own, every day.

    Attributes:
        hours: the length of a night.
        seed, clients: supplied by the simulator.
    """

    hours: Annotated[float, Field(gt=0, lt=24)]
    seed: int
    clients: int

    def since_us(self, clients: NDArray[np.int64], t_us: Times) -> NDArray[np.int64]:
        """Returns (clients,) the time since each client's last bedtime."""
        bedtime_us = (draws.uniform(self.seed, "bedtime", clients) * DAY_US).astype(np.int64)
        return (t_us - bedtime_us) % DAY_US

    @property
    def night_us(self) -> int:
        return round(self.hours * 3600 * SECOND_US)

    def on(self, clients: NDArray[np.int64], t_us: int, round: int) -> NDArray[np.bool_]:
        return self.since_us(clients, t_us) < self.night_us

    def off_at(self, clients: NDArray[np.int64], t_us: Times, round: int, horizon_us: int) -> NDArray[np.int64]:
        left_us = self.night_us - self.since_us(clients, t_us)
        return np.where(left_us > horizon_us, NEVER, t_us + left_us)

    def on_at(self, clients: NDArray[np.int64], t_us: Times, round: int, horizon_us: int) -> NDArray[np.int64]:
        left_us = DAY_US - self.since_us(clients, t_us)
        return np.where(left_us > horizon_us, NEVER, t_us + left_us)
'''
ROW = Row("night_model:Nights", {"hours": 9.0}, share=9 / 24, session_s=9 * 3600.0)


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes a user's own file to a folder that Python imports from."""
    (tmp_path / "night_model.py").write_text(NIGHTS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "night_model", raising=False)


def test_an_experiment_runs_with_a_model_of_ones_own(tmp_path: Path) -> None:
    hours = 12.0
    availability = {"name": "night_model:Nights", "hours": hours}
    config = load_config(on_devices("nights", availability, tmp_path))
    rounds = pq.read_table(run(config).folder / "rounds.parquet").to_pylist()
    assert [row["round"] for row in rounds] == [0, 1, 2]
    model = Row("night_model:Nights", {"hours": hours}).build(tmp_path, 40, seed=0)
    for row in rounds:
        on = model.on(np.arange(40), round(row["start_s"] * SECOND_US), row["round"])
        assert row["available"] == on.sum()
        assert 0 < row["available"] < 40


@pytest.mark.parametrize(
    "law",
    [
        contracts.test_the_share_of_on_time_is_the_stationary_one,
        contracts.test_the_mean_session_is_as_long_as_promised,
        contracts.test_answers_depend_on_nothing_but_the_client_and_the_instant,
        contracts.test_the_next_turn_agrees_with_on_on_both_of_its_sides,
        contracts.test_clients_may_be_asked_from_instants_of_their_own,
        contracts.test_the_next_change_is_the_first_at_which_anybody_turns,
        contracts.test_the_seed_matters_where_there_is_chance,
    ],
    ids=lambda law: law.__name__.removeprefix("test_"),
)
def test_a_row_buys_a_model_of_ones_own_the_contracts(law: Callable[[Row, Path], None], tmp_path: Path) -> None:
    law(ROW, tmp_path)


def test_settings_of_ones_own_model_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"^devices\.availability\.hour: unknown key; did you mean 'hours'\?"):
        Row("night_model:Nights", {"hour": 9.0}).build(Path(), 10)
