"""Absences, energy, tables of devices, and the costs of rounds that were undone: known answers."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from cluster.config import load_config
from cluster.experiment import Experiment
from raysim.devices import SECOND_US, Availability
from raysim.devices.availability import Trace
from raysim.devices.population import DeviceModel, EnergyConfig, FailureConfig, LinkConfig, Population
from raysim.errors import ConfigError
from raysim.wire import Traffic
from server.fates import FATES
from tests.contracts.table import settings
from tests.play import QUADRATIC, experiment, server
from tests.server.test_dispatch import Drawn, collect, play, serve

# On-times in seconds of three devices that are observed for 1,000 s.
ON = {"a": [(0, 1000)], "b": [(0, 100), (150, 400)], "c": [(0, 30), (40, 60), (500, 1000)]}


def trace(folder: Path) -> Availability:
    rows = [f"{device},{a},{b},1000" for device, times in ON.items() for a, b in times]
    path = folder / "on.csv"
    path.write_text("\n".join(["device,start_s,end_s,horizon_s", *rows]) + "\n")
    return Trace(path=str(path), format="table", assign="in_order", seed=0, clients=len(ON))


def devices(on_offline: Any, seconds: float) -> Population:
    """Three devices whose tasks compute for `seconds` and move nothing."""
    model = DeviceModel(
        link=LinkConfig(sigma=0, jitter_cv=0, rtt_s=0), failure=FailureConfig(hazard_per_s=0, on_offline=on_offline)
    )
    return Drawn(model, len(ON), law=lambda clients, u: np.full(len(u), seconds))


def fates(outcome: Any) -> dict[str, int]:
    return {name: outcome.devices[name] for name in FATES if outcome.devices[name]}


def test_an_absence_ends_a_task_or_delays_it(tmp_path: Path) -> None:
    wait = {"over_select": 1.0, "close": "wait_all", "deadline_s": 300.0, "min_report": 0.1}
    abort = serve(devices("abort", 120), trace(tmp_path), **wait)
    (outcome,) = play(abort, 0, collect(3))
    assert outcome.accepted.tolist() == [0]
    assert fates(outcome) == {"accepted": 1, "dropped_offline": 2}
    assert outcome.devices["compute_s"] == pytest.approx(120 + 100 + 30)
    assert abort.clock.busy_until_us.tolist() == [120 * SECOND_US, 100 * SECOND_US, 30 * SECOND_US]

    pause = serve(devices("pause", 120), trace(tmp_path), **wait)
    (outcome,) = play(pause, 0, collect(3))
    assert outcome.accepted.tolist() == [0, 1]
    assert fates(outcome) == {"accepted": 2, "dropped_offline": 1}, "c is off at the deadline"
    assert outcome.devices["compute_s"] == pytest.approx(120 + 120 + 50)
    assert pause.clock.busy_until_us.tolist() == [120 * SECOND_US, 170 * SECOND_US, 300 * SECOND_US]


def test_a_task_may_pause_more_than_once(tmp_path: Path) -> None:
    patient = serve(devices("pause", 120), trace(tmp_path), over_select=1.0, close="wait_all", deadline_s=900.0)
    (outcome,) = play(patient, 0, collect(3))
    # c: 30 s, 20 s after a pause of 10 s, and the last 70 s from second 500 on.
    assert patient.clock.busy_until_us.tolist() == [120 * SECOND_US, 170 * SECOND_US, 570 * SECOND_US]
    assert outcome.devices["close_s"] == 570
    assert outcome.devices["compute_s"] == pytest.approx(360)


def test_cancelled_in_a_pause_only_the_time_at_work_is_booked(tmp_path: Path) -> None:
    devices_ = serve(devices("pause", 120), trace(tmp_path), over_select=3.0, late="cancel", deadline_s=900.0)
    (outcome,) = play(devices_, 0, collect(1))
    assert outcome.accepted.tolist() == [0]
    assert fates(outcome) == {"accepted": 1, "cancelled": 2}
    assert outcome.devices["compute_s"] == pytest.approx(120 + 100 + 50), "at 120 s b and c are off"


def test_energy_is_power_times_the_time_of_each_part() -> None:
    link = LinkConfig(median_down_mbps=8, sigma=0, up_ratio=0.5, jitter_cv=0, rtt_s=5)
    model = DeviceModel(
        link=link, failure=FailureConfig(hazard_per_s=0), energy=EnergyConfig(compute_w=2, rx_w=3, tx_w=5)
    )
    population = Drawn(model, 4, law=lambda clients, u: np.full(len(u), 7.0))
    (outcome,) = play(serve(population, over_select=1.0), 0, collect(4), traffic=Traffic(10**6, 0, 10**6))
    # 1 MB at 8 Mbit/s is 1 s down and 2 s up.
    assert outcome.devices["energy_j"] == pytest.approx(4 * (3 * 1 + 2 * 7 + 5 * 2))


def test_without_powers_no_energy_is_booked() -> None:
    (outcome,) = play(serve(devices("abort", 1), over_select=1.0), 0, collect(3))
    assert "energy_j" not in outcome.devices


def table(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def test_tables_of_devices_in_three_formats(tmp_path: Path) -> None:
    fedscale = '{"1": {"computation": 50, "communication": 4000}}'
    links = '{"x": {"down_u": 100, "down_sigma": 1, "up_u": 50, "up_sigma": 1}}'
    for given, sec_per_sample, down_bps, up_bps in (
        (table(tmp_path, "own.csv", "ms_per_sample,down_kbps,up_kbps\n80,2000,500\n"), 0.08, 2e6, 5e5),
        ({"path": table(tmp_path, "f.json", fedscale), "format": "fedscale"}, 0.15, 4e6, 4e6),
        ({"path": table(tmp_path, "l.json", links), "format": "flash_links", "unit": "kB/s"}, None, 8e5, 4e5),
        ({"path": table(tmp_path, "m.json", links), "format": "flash_links", "unit": "kbit/s"}, None, 1e5, 5e4),
    ):
        made = experiment(QUADRATIC, settings("cd_ma"), devices={"preset": "always_on", "table": given})
        if sec_per_sample is not None:
            np.testing.assert_allclose(made.world.population.sec_per_sample_N, sec_per_sample)
        np.testing.assert_allclose(made.world.population.down_bps_N, down_bps)
        np.testing.assert_allclose(made.world.population.up_bps_N, up_bps)


@pytest.mark.parametrize("given", [{"format": "flash_links"}, {"unit": "kB/s"}])
def test_a_unit_goes_with_flash_links_and_with_nothing_else(given: dict[str, str]) -> None:
    tree = QUADRATIC | {"algorithm": settings("cd_ma"), "devices": {"table": {"path": "x.json", **given}}}
    with pytest.raises(ConfigError, match=r"^devices.table: unit belongs to format: flash_links"):
        load_config(tree)


def test_phones_of_flash_are_drawn_whole_and_by_weight(tmp_path: Path) -> None:
    phones = [
        ("Google Nexus S", 383, "0.5GB"),
        ("Xiaomi Redmi Note 7 Pro", 6702, "4GB"),
        ("Google Pixel 4", 33289, "6GB"),
    ]
    listed = json.dumps([{"Model": name, "AI_Score": str(score), "RAM": ram} for name, score, ram in phones])
    given = {"path": table(tmp_path, "p.json", listed), "format": "flash_devices", "workload": "femnist"}
    made = experiment(
        QUADRATIC, settings("cd_ma"), data={"clients": 4000},
        devices={"preset": "always_on", "table": given, "memory": {"required_mb": 4096}},
    )  # fmt: skip
    slow = made.world.population.sec_per_sample_N > 0.1
    share = 18_820 / 35_407
    assert abs(slow.mean() - share) < 4 * math.sqrt(share * (1 - share) / 4000)
    assert (made.world.population.has_memory_N == ~slow).all()
    fast = made.world.population.sec_per_sample_N < 0.05
    assert 0 < fast.mean() < 0.0045 + 4 * math.sqrt(0.0045 / 4000)
    assert Experiment.build(load_config(made.resolved)).resolved == made.resolved


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"format": "flash_devices"},
            "workload belongs to format: flash_devices, which needs it: one of celeba, femnist",
        ),
        ({"workload": "celeba"}, "workload belongs to format: flash_devices"),
        ({"codes": "y.json"}, "codes belongs to format: flash_devices"),
    ],
)
def test_a_workload_goes_with_flash_devices_and_with_nothing_else(given: dict[str, str], message: str) -> None:
    tree = QUADRATIC | {"algorithm": settings("cd_ma"), "devices": {"table": {"path": "x.json", **given}}}
    with pytest.raises(ConfigError, match=rf"^devices.table: {message}"):
        load_config(tree)


def test_all_costs_of_a_round_that_was_undone_are_wasted(tmp_path: Path) -> None:
    """Every other device fails at once, so that now and then a second phase fails after a valid first one."""
    flaky = {"preset": "always_on", "failure": {"hazard_per_s": 0.0, "p_start": 0.3}}
    made = experiment(
        QUADRATIC, settings("cd_mage"), devices=flaky, rounds=40, server={"over_select": 1.5, "max_failed_rounds": 40}
    )
    list(server(made, tmp_path).run())
    rows = pq.read_table(tmp_path / "rounds.parquet").to_pylist()
    undone = {row["round"] for row in rows if not row["valid"]}
    seconds = [row for row in rows if row["phase"] == "update" and not row["valid"]]
    assert seconds, "some rounds fail in their second phase"
    for row in rows:
        for cost in ("bytes_down", "bytes_up", "compute_s"):
            if row["round"] in undone:
                assert row[f"{cost}_wasted"] == row[cost]
        if row["round"] not in undone:
            assert row["bytes_up_wasted"] < row["bytes_up"]
