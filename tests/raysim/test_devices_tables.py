"""Tests files of measured devices: each format on a small file, and each wrong input's error."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raysim.devices.tables import (
    read_device_table,
    read_fedscale_capacity,
    read_flash_devices,
    read_flash_links,
)
from raysim.errors import DataError
from tests.raysim.test_devices_files import written


def test_a_table_of_devices(tmp_path: Path) -> None:
    path = written(tmp_path / "x.csv", "device,ms_per_sample,ram_gb,down_kbps\nA,20,8,1000\nB,50.5,2,0\n")
    table = read_device_table(path)
    assert len(table) == 2
    np.testing.assert_allclose(table.sec_per_sample, [0.02, 0.0505], rtol=1e-15)
    assert table.ram_mb is not None
    assert table.ram_mb.tolist() == [8192, 2048]
    assert table.down_bps is not None
    assert table.down_bps.tolist() == [1e6, 0]
    assert table.up_bps is None
    pq.write_table(pa.table({"ms_per_sample": [20, 30], "up_kbps": [1.5, 2]}), tmp_path / "x.parquet")
    table = read_device_table(tmp_path / "x.parquet")
    assert table.up_bps is not None
    assert table.up_bps.tolist() == [1500, 2000]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ms_per_sampl\n3\n", "has no column 'ms_per_sample'; did you mean 'ms_per_sampl'"),
        ("ms_per_sample\n3\n0\n", "row 2, column 'ms_per_sample' is 0.0; it must be a positive number"),
        ("ms_per_sample\n3\ninf\n", "row 2, column 'ms_per_sample' is inf"),
        ("ms_per_sample,up_kbps\n3,1\n3,-1\n", "row 2, column 'up_kbps' is -1.0; it must be a number from 0"),
        ("ms_per_sample,ram_gb\n3,1\n3,\n", "row 2, column 'ram_gb' is empty"),
    ],
)
def test_wrong_tables_of_devices_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_device_table(written(tmp_path / "x.csv", text))


def test_fedscale_capacities(tmp_path: Path) -> None:
    path = tmp_path / "client_device_capacity"
    path.write_bytes(
        pickle.dumps({1: {"computation": 50.0, "communication": 1017.5}, 2: {"computation": 100, "communication": 0}})
    )
    table = read_fedscale_capacity(path)
    np.testing.assert_allclose(table.sec_per_sample, [0.15, 0.3], rtol=1e-15)
    assert table.down_bps is not None
    assert table.up_bps is not None
    assert table.down_bps.tolist() == table.up_bps.tolist() == [1_017_500, 0]
    assert table.ram_mb is None
    np.testing.assert_allclose(read_fedscale_capacity(path, training_factor=1).sec_per_sample, [0.05, 0.1], rtol=1e-15)


def test_flash_links(tmp_path: Path) -> None:
    path = written(tmp_path / "x.json", {"u": {"down_u": 4000, "down_sigma": 1, "up_u": 3000.5, "up_sigma": 1}})
    for unit, bits in (("kbit/s", 1000), ("kB/s", 8000)):
        table = read_flash_links(path, unit)  # type: ignore[arg-type]
        assert table.down_bps is not None
        assert table.up_bps is not None
        assert (table.down_bps.tolist(), table.up_bps.tolist()) == ([4000 * bits], [3000.5 * bits])
        assert table.sec_per_sample is None
        assert len(table) == 1


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({}, "has no records"),
        ([], "holds a list"),
        ({"u": {"down_u": 1}}, "record 'u': has no 'up_u'; known: down_u"),
        ({"u": {"down_u": 1, "up_u": "fast"}}, "record 'u': up_u is 'fast'; it must be a number from 0"),
        ({"u": {"down_u": -1, "up_u": 2}}, "record 'u': down_u is -1"),
        ({"u": {"down_u": float("inf"), "up_u": 2}}, "record 'u': down_u is inf"),
    ],
)
def test_wrong_links_are_named(tmp_path: Path, tree: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_flash_links(written(tmp_path / "x.json", tree), "kbit/s")


def phone(model: str, score: str, ram: str) -> dict[str, Any]:
    return {"Model": model, "CPU": "c", "RAM": ram, "AI_Score": score}


SLOW, MIDDLE, FAST = (18_820 / 35_407, 16_428 / 35_407, 159 / 35_407)
PHONES = [
    phone("Google Pixel 4", " 33289 1", "6GB"),
    phone("Xiaomi Redmi Note 7 Pro", " 6702 3", "4GB"),
    phone("Google Nexus S", " 383 ", "0.5GB"),
    phone("Twice", " 20001 1,6", " 8.0 GB"),  # nearer to 33289 by 17 points
    phone("Twice", " 19990", "6GB"),
    phone("Old", "3542", "1.5GB"),  # nearer to 383 by 1
]


def test_flash_devices_without_codes_are_of_three_speeds_as_unknown_phones_are(tmp_path: Path) -> None:
    table = read_flash_devices(written(tmp_path / "x.json", PHONES), "femnist")
    assert table.sec_per_sample is not None
    assert table.ram_mb is not None
    np.testing.assert_allclose(table.sec_per_sample, [0.0179, 0.0588, 0.1642, 0.0179, 0.0588, 0.1642], rtol=1e-15)
    assert table.ram_mb.tolist() == [6144, 4096, 512, 8192, 6144, 1536]
    assert table.weights is not None
    np.testing.assert_allclose(table.weights, [FAST / 2, MIDDLE / 2, SLOW / 2] * 2)
    assert table.down_bps is table.up_bps is None


@pytest.mark.parametrize(("workload", "slow_s"), [("celeba", 0.5392), ("reddit", 0.2596), ("shakespeare", 0.28621)])
def test_flash_devices_take_as_long_as_their_workload(tmp_path: Path, workload: Any, slow_s: float) -> None:
    table = read_flash_devices(written(tmp_path / "x.json", PHONES), workload)
    assert table.sec_per_sample is not None
    assert table.sec_per_sample.max() == pytest.approx(slow_s, rel=1e-12)


def test_flash_devices_with_codes_are_as_frequent_as_these(tmp_path: Path) -> None:
    codes = {"a": "Twice", "b": "Twice", "c": "Google Pixel 4", "d": "Old", "e": "unknown", "f": "Not on the list"}
    paths = written(tmp_path / "x.json", PHONES), written(tmp_path / "y.json", codes)
    table = read_flash_devices(paths[0], "femnist", paths[1])
    fast, middle, slow = 2 + 2 * FAST, 1 + 2 * MIDDLE, 1 + 2 * SLOW  # a code of "Twice" counts half for each row
    assert table.weights is not None
    np.testing.assert_allclose(table.weights, [fast / 2, 0, 0, fast / 2, middle, slow])
    assert table.weights.sum() == pytest.approx(len(codes))


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"SM-G960F": "Samsung Galaxy S9"}, "holds a dict where a list of phones should be"),
        ([], "has no records"),
        ([PHONES[0], "Pixel"], "record '1': is a str, not keys and values"),
        ([{"Model": "A", "Ram": "8GB", "AI_Score": "3"}], "record '0': has no 'RAM'; did you mean 'Ram'"),
        ([phone("A", "3", "8")], "record '0': RAM is '8'; it must be text such as '8GB'"),
        ([phone("A", "3", "0GB")], "record '0': RAM is '0GB'"),
        ([phone("A", "fast", "8GB")], "record '0': AI_Score is 'fast'; it must be text such as '33289 1'"),
        ([*PHONES[:3], {"Model": "A", "RAM": "8GB", "AI_Score": 7}], "record '3': AI_Score is 7"),
        (PHONES[1:], "has no phone 'Google Pixel 4'; FLASH measured Google Nexus S, Xiaomi Redmi Note 7 Pro, Google"),
    ],
)
def test_wrong_lists_of_phones_are_named(tmp_path: Path, tree: Any, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        read_flash_devices(written(tmp_path / "x.json", tree), "femnist")
    assert str(tmp_path / "x.json") in str(caught.value)


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ([], "holds a list where records by their ids should be"),
        ({"a": 3}, "record 'a' is 3; it must be the name of a phone, or 'unknown'"),
        ({"a": "unknown", "b": "B"}, r"none of its 2 codes is of a phone in .*x\.json; check the two files"),
    ],
)
def test_wrong_codes_of_phones_are_named(tmp_path: Path, tree: Any, message: str) -> None:
    phones, codes = written(tmp_path / "x.json", PHONES), written(tmp_path / "y.json", tree)
    with pytest.raises(DataError, match=message) as caught:
        read_flash_devices(phones, "femnist", codes)
    assert str(codes) in str(caught.value)


# Real files


@pytest.mark.data
def test_the_tables_of_devices(data_root: Path) -> None:
    table = read_device_table(data_root / "traces/propius_device_specs.csv")
    assert len(table) == 952
    assert table.sec_per_sample is not None
    assert table.ram_mb is not None
    assert float(np.median(table.sec_per_sample)) == 0.063
    assert -0.85 < np.corrcoef(np.log(table.sec_per_sample), np.log(table.ram_mb))[0, 1] < -0.75
    links = read_flash_links(data_root / "traces/flash_link_speed19.json", "kbit/s")
    assert len(links) == 19
    assert links.down_bps is not None
    assert round(float(np.median(links.down_bps)), -3) == 4_318_000


@pytest.mark.data
def test_the_phones_of_flash(data_root: Path) -> None:
    phones, codes = (data_root / f"traces/flash_{name}.json" for name in ("ai_benchmark_devices", "real2benchmark"))
    table = read_flash_devices(phones, "femnist")
    coded = read_flash_devices(phones, "femnist", codes)
    assert len(table) == len(coded) == 333
    assert table.sec_per_sample is not None
    assert table.weights is not None
    assert table.ram_mb is not None
    assert coded.weights is not None
    assert coded.weights.sum() == pytest.approx(772)
    fast, middle, slow = (table.sec_per_sample == s for s in np.unique(table.sec_per_sample))
    assert [round(100 * float(table.weights[kind].sum()), 1) for kind in (slow, middle, fast)] == [53.2, 46.4, 0.4]
    # 610 codes are unknown and 2 name a phone that is not on the list; one of the others is there with two scores, one
    # on either side of the middle between slow and middle.
    for kind, known in ((slow, 79.5), (middle, 70.5), (fast, 10)):
        assert float(coded.weights[kind].sum()) == pytest.approx(known + 612 * float(table.weights[kind].sum()))
    memory = [np.average(table.ram_mb[kind], weights=coded.weights[kind]) for kind in (slow, middle, fast)]
    assert memory == sorted(memory), "fast phones have more memory"
    scores = json.loads((data_root / "traces/flash_ai_benchmark_scores.json").read_text())
    listed = {p["Model"]: float(p["AI_Score"].split()[0]) for p in json.loads(phones.read_text())}
    assert listed == scores, "the third file holds nothing else"
