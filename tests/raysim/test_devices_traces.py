"""Files of devices: each format on a small file, and every wrong input as one error that names its place."""

import json
import os
import pickle
from collections import OrderedDict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raysim.devices.clock import SECOND_US
from raysim.devices.tables import (
    read_device_table,
    read_fedscale_capacity,
    read_flash_devices,
    read_flash_links,
)
from raysim.devices.traces import Intervals, read_intervals
from raysim.errors import DataError


def written(path: Path, tree: object) -> Path:
    path.write_text(tree if isinstance(tree, str) else json.dumps(tree))
    return path


def seconds(read: Intervals) -> dict[str, tuple[list[list[float]], float]]:
    """{id: (on-times, horizon)} in seconds."""
    pairs = np.stack([read.starts, read.ends], axis=1) / SECOND_US
    return {
        id: (pairs[a:b].tolist(), horizon / SECOND_US)
        for id, a, b, horizon in zip(read.ids, read.offsets[:-1], read.offsets[1:], read.horizons, strict=True)
    }


def devices(*pairs: list[Any], horizon: Any = 100) -> dict[str, Any]:
    return {"devices": {"d": {"charging": list(pairs), "horizon_s": horizon}}}


# Intervals


def test_intervals_are_sorted_merged_and_never_empty(tmp_path: Path) -> None:
    tree = {
        "devices": {
            "mixed": {"charging": [[50, 60], [0, 5], [5, 9], [20, 40], [22, 25], [39, 41], [7, 7]], "horizon_s": 60},
            "never": {"charging": [], "horizon_s": 10},
            "empty": {"charging": [[3, 3]], "horizon_s": 10},
            "early": {"charging": [[0, 1.5]], "horizon_s": 10.25},
        }
    }
    path = written(tmp_path / "x.json", tree)
    assert seconds(read_intervals(path, "intervals")) == {
        "mixed": ([[0, 9], [20, 41], [50, 60]], 60),
        "never": ([], 10),
        "empty": ([], 10),
        "early": ([[0, 1.5]], 10.25),
    }
    assert seconds(read_intervals(path, "intervals", merge_gap_s=9))["mixed"] == ([[0, 9], [20, 60]], 60)
    assert len(read_intervals(path, "intervals")) == 4


def test_records_do_not_run_into_one_another(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tree = {}
    for i in range(200):
        horizon = int(rng.integers(1, 60))
        tree[str(i)] = {
            "charging": np.sort(rng.integers(0, horizon + 1, (rng.integers(0, 6), 2)), axis=1).tolist(),
            "horizon_s": horizon,
        }
    found = seconds(read_intervals(written(tmp_path / "x.json", {"devices": tree}), "intervals"))
    for id, record in tree.items():
        covered = {t for a, b in record["charging"] for t in range(a, b)}
        pairs, horizon = found[id]
        assert {t for a, b in pairs for t in range(int(a), int(b))} == covered
        assert all(a < b for a, b in pairs)
        assert all(one[1] < other[0] for one, other in pairwise(pairs))
        assert horizon == record["horizon_s"]


def test_a_file_is_found_under_the_data_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "phones.json", devices([1, 2]))
    monkeypatch.setenv("RAYSIM_DATA_ROOT", str(tmp_path))
    assert len(read_intervals("phones.json", "intervals")) == 1


# FedScale

FEDSCALE = {
    1: {"duration": 50, "active": [10, 40, 90], "inactive": [20, 40, 130], "finish_time": 100, "model": "A"},
    2: {"duration": 0, "active": [], "inactive": [], "finish_time": 50, "model": "B"},
}


@pytest.mark.parametrize("form", [dict, OrderedDict])
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_fedscale_pickles(tmp_path: Path, form: type[dict], protocol: int) -> None:
    path = tmp_path / "client_behave_trace"
    path.write_bytes(pickle.dumps(form(FEDSCALE), protocol=protocol))
    assert seconds(read_intervals(path, "fedscale")) == {"1": ([[10, 20], [90, 100]], 100), "2": ([], 50)}


def test_fedscale_json(tmp_path: Path) -> None:
    path = written(tmp_path / "sample.json", FEDSCALE)
    assert list(seconds(read_intervals(path, "fedscale"))) == ["1", "2"]


class Evil:
    """Creates a file when it is unpickled without care."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("read", [lambda p: read_intervals(p, "fedscale"), read_fedscale_capacity])
def test_a_malicious_pickle_is_refused_and_does_nothing(tmp_path: Path, read: Callable[[Path], object]) -> None:
    path, victim = tmp_path / "trace", tmp_path / "made by the pickle"
    path.write_bytes(pickle.dumps({1: Evil(victim)}))
    with pytest.raises(DataError, match=r"trace: tries to load \w+\.mkdir, .* malicious"):
        read(path)
    assert not victim.exists()
    pickle.loads(path.read_bytes())  # the test's own check: without care it does
    assert victim.exists()


@pytest.mark.parametrize("payload", [np.float64(1), len, Path("x"), {1: np.arange(3)}])
def test_a_pickle_of_more_than_plain_data_is_refused(tmp_path: Path, payload: object) -> None:
    path = tmp_path / "trace"
    path.write_bytes(pickle.dumps(payload))
    with pytest.raises(DataError, match="tries to load"):
        read_intervals(path, "fedscale")


# FLASH


def flash(*lines: str, uid: str = "u") -> dict[str, Any]:
    stamped = [line if "-" in line or not line.strip() else f"2020-02-01 {line[:8]}\t{line[9:]}" for line in lines]
    return {uid: {"guid": "g", "model": "m", "messages": "\n".join(stamped)}}


def test_a_flash_phone_is_ready_when_locked_on_wifi_and_charging(tmp_path: Path) -> None:
    tree = flash(
        "00:00:00 50%",
        "00:00:10 screen_lock",
        "00:00:20 WIFI",
        "00:00:30 Battery_Charged_On",  # ready
        "00:00:35 screen_off",
        "00:00:40 4G",
        "00:00:50 wifi",  # ready
        "00:00:50 battery_low",
        "",
        "00:01:00 screen_unlock",
        "00:01:10 screen_lock",  # ready
        "00:01:20 battery_charged_off",
        "00:01:30 battery_charged_on",  # ready
        "00:01:40 unknown",
        "00:01:50 wifi",  # ready, to the last event
        "00:02:00 51%",
    )
    tree |= flash("2020-01-31 23:59:00\tphone_on", "00:00:30 screen_on", uid="v")  # the earliest event is time 0
    tree |= flash("00:00:01 screen_lock", uid="once")
    assert seconds(read_intervals(written(tmp_path / "x.json", tree), "flash")) == {
        "u": ([[90, 100], [110, 120], [130, 140], [150, 160], [170, 180]], 180),
        "v": ([], 90),
        "once": ([], 61),
    }


# flame


@pytest.mark.parametrize("as_text", [False, True])
def test_flame(tmp_path: Path, as_text: bool) -> None:
    events = [(0, "UN_AVL"), (5, "AVL_TRAIN"), (8, "AVL_TRAIN"), (9, "AVL_EVAL"), (20.5, "AVL_TRAIN"), (30, "UN_AVL")]
    tree = {"t1": repr(events) if as_text else events, "t2": [[3, "AVL_TRAIN"], [10, "AVL_TRAIN"]]}
    assert seconds(read_intervals(written(tmp_path / "x.json", tree), "flame")) == {
        "t1": ([[5, 9], [20.5, 30]], 30),
        "t2": ([[3, 10]], 10),
    }


# A user's own tables


def test_a_csv_of_on_times(tmp_path: Path) -> None:
    text = "note,device,start_s,end_s,horizon_s\na,b,0,10,100\nb,a, 3.5 ,4,50\nc,b,20,30,\nd,NA,,,70\n"
    assert seconds(read_intervals(written(tmp_path / "x.csv", text), "table")) == {
        "NA": ([], 70),
        "a": ([[3.5, 4]], 50),
        "b": ([[0, 10], [20, 30]], 100),
    }
    shared = written(tmp_path / "y.csv", "device,start_s,end_s\n1,0,10\n2,20,30\n")
    assert seconds(read_intervals(shared, "table")) == {"1": ([[0, 10]], 30), "2": ([[20, 30]], 30)}


def test_a_parquet_of_on_times(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    columns = {"device": [7, 7, 8], "start_s": [0, 5, None], "end_s": [1.5, 6.0, None], "horizon_s": [9, 9, 4]}
    pq.write_table(pa.table(columns), path)
    assert seconds(read_intervals(path, "table")) == {"7": ([[0, 1.5], [5, 6]], 9), "8": ([], 4)}


# Wrong files of on-times


@pytest.mark.parametrize(
    ("format", "name", "content", "message"),
    [
        ("intervals", "x.json", "", "is no JSON or is damaged"),
        ("intervals", "x.json", '{"devices": {', "is no JSON or is damaged"),
        ("intervals", "x.json", "\x00\xff", "is no JSON or is damaged"),
        ("intervals", "x.json", [], "is a list, not keys and values"),
        ("intervals", "x.json", {"device": {}}, "has no 'devices'; did you mean 'device'"),
        ("intervals", "x.json", {"devices": {}}, "has no records"),
        ("intervals", "x.json", {"devices": []}, "holds a list where records by their ids should be"),
        ("intervals", "x.json", {"devices": {"d": 3}}, "record 'd': is a int, not keys and values"),
        ("intervals", "x.json", {"devices": {"d": {"charging": []}}}, "record 'd': has no 'horizon_s'"),
        ("intervals", "x.json", {"devices": {"d": {"charging": 3, "horizon_s": 1}}}, "charging is 3, not a list"),
        ("intervals", "x.json", devices([1, 2], [3]), r"record 'd': interval 1 is \[3\]"),
        ("intervals", "x.json", devices([1, "2"]), "record 'd': end 0 is '2'; give seconds"),
        ("intervals", "x.json", devices([True, 2]), "record 'd': start 0 is True"),
        ("intervals", "x.json", devices([1, 2], [-1, 2]), "record 'd': start 1 is -1"),
        ("intervals", "x.json", devices([1, float("nan")]), "record 'd': end 0 is nan"),
        ("intervals", "x.json", devices([1, 1_580_000_000]), "end 0 is 1580000000; give seconds since the start"),
        ("intervals", "x.json", devices([1, 2], horizon=None), "record 'd': the horizon is None"),
        ("intervals", "x.json", devices([3, 2]), "interval 0 ends at 2 s, before its start at 3 s"),
        ("intervals", "x.json", devices([3, 200]), "interval 0 ends at 200 s, after the horizon of 100 s"),
        ("fedscale", "x", "", "is no pickle or is damaged"),
        ("fedscale", "x", "garbage", "is no pickle or is damaged"),
        ("fedscale", "x.json", {}, "has no records"),
        ("fedscale", "x.json", {"1": {"active": [1], "inactive": []}}, "'1' has 1 active times, but 0 inactive ones"),
        ("fedscale", "x.json", {"1": {"active": [], "inactive": []}}, "record '1': has no 'finish_time'"),
        ("fedscale", "x.json", {"1": {"active": [1, "x"], "inactive": [2, 3], "finish_time": 4}}, "start 1 is 'x'"),
        ("flash", "x.json", {"u": {"guid": "g"}}, "record 'u': has no 'messages'"),
        ("flash", "x.json", {"u": {"messages": 3}}, "record 'u': messages are int"),
        ("flash", "x.json", flash("  "), "record 'u' has no events"),
        ("flash", "x.json", flash("00:00:00 wifi", "00:00:01 bluetooth"), "record 'u', line 2: .*bluetooth"),
        ("flash", "x.json", flash("2020-02-01 00:00:00 wifi"), "record 'u', line 1: .* is not a time, a tab"),
        ("flash", "x.json", flash("2020-02-30 00:00:00\twifi"), "line 1: there is no time '2020-02-30 00:00:00'"),
        (
            "flash",
            "x.json",
            flash("00:00:00 wifi") | flash("1970-01-01 00:00:00\twifi", uid="v"),
            "the first of them in record 'v'; a phone's clock was wrong",
        ),
        ("flame", "x.json", {"t": "[(1, "}, r"record 't' is no list of \(seconds, state\)"),
        ("flame", "x.json", {"t": "__import__('os').getcwd()"}, r"record 't' is no list of \(seconds, state\)"),
        ("flame", "x.json", {"t": []}, "record 't' is not a list of one or more"),
        ("flame", "x.json", {"t": [[1, "AVL_TRAIN"], [2]]}, r"record 't', event 1: \[2\] is not"),
        ("flame", "x.json", {"t": [[1, "ON"]]}, "event 0: state 'ON' is none of AVL_TRAIN"),
        ("flame", "x.json", {"t": [["1", "UN_AVL"]]}, "event 0: the time is '1'"),
        ("flame", "x.json", {"t": [[5, "UN_AVL"], [4, "AVL_TRAIN"]]}, "event 1: is before the event above it"),
        ("table", "x.txt", "device,start_s,end_s\na,0,1\n", "has no known suffix; name it .csv or .parquet"),
        ("table", "x.csv", "", "is no csv file or is damaged"),
        ("table", "x.csv", "device,start_s,end_s\n", "has no rows"),
        ("table", "x.csv", "device,start,end_s\na,0,1\n", "has no column 'start_s'; did you mean 'start'"),
        ("table", "x.csv", "device,start_s,end_s,end_s\na,0,1,1\n", "has two columns 'end_s'"),
        ("table", "x.csv", "device,start_s,end_s\na,0,1\nb,0\n", "is no csv file or is damaged"),
        ("table", "x.csv", "device,start_s,end_s\na,0,1\nb,x,1\n", "row 2, column 'start_s' is 'x'; it must be a num"),
        ("table", "x.csv", "device,start_s,end_s\na,0,1\nb,nan,1\n", "row 2, column 'start_s' is nan"),
        ("table", "x.csv", "device,start_s,end_s\na,0,1\nb,,1\n", "row 2 has only one of start_s and end_s"),
        ("table", "x.csv", "device,start_s,end_s\na,0,1\n,0,1\n", "row 2, column 'device' is empty"),
        ("table", "x.csv", "device,start_s,end_s\na,2,1\n", "record 'a': interval 0 ends at 1.0 s, before"),
        (
            "table",
            "x.csv",
            "device,start_s,end_s,horizon_s\na,0,1,\n",
            "device 'a' must have one horizon_s and has none",
        ),
        ("table", "x.csv", "device,start_s,end_s,horizon_s\na,0,1,2\na,1,2,3\n", "has 2.0 and 3.0"),
        ("table", "x.csv", "device,start_s,end_s,horizon_s\na,0,5,2\n", "after the horizon of 2.0 s"),
        ("table", "x.parquet", "PAR1", "is no parquet file or is damaged"),
    ],
)
def test_wrong_files_are_named(tmp_path: Path, format: Any, name: str, content: Any, message: str) -> None:
    path = written(tmp_path / name, content)
    with pytest.raises(DataError, match=message) as caught:
        read_intervals(path, format)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "read",
    [
        lambda p: read_intervals(p, "table"),
        read_device_table,
        read_fedscale_capacity,
        lambda p: read_flash_links(p, "kB/s"),
        lambda p: read_flash_devices(p, "celeba"),
    ],
)
def test_a_missing_file_is_named(tmp_path: Path, read: Callable[[Path], object]) -> None:
    with pytest.raises(DataError, match=r"there is no file .*nothing\.csv"):
        read(tmp_path / "nothing.csv")


def test_a_parquet_column_that_is_no_number_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"device": ["a"], "start_s": [True], "end_s": [1]}), path)
    with pytest.raises(DataError, match="column 'start_s' is bool; it must be numbers"):
        read_intervals(path, "table")


# Devices


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
def test_the_flash_sample(data_root: Path) -> None:
    read = read_intervals(data_root / "traces/flash300_availability.json", "intervals")
    assert len(read) == 300
    owner = np.repeat(np.arange(300), np.diff(read.offsets))
    on_us = np.bincount(owner, read.ends - read.starts, minlength=300)
    observed = read.horizons >= 86_400 * SECOND_US
    assert observed.sum() == 291
    shares = (on_us / read.horizons)[observed]
    assert round(shares.mean(), 3) == 0.193
    assert round(float(np.median(shares)), 3) == 0.163
    lengths_s = (read.ends - read.starts) / SECOND_US
    assert round(lengths_s.mean()) == 3802
    merged = read_intervals(data_root / "traces/flash300_availability.json", "intervals", merge_gap_s=60)
    assert round((merged.ends - merged.starts).mean() / SECOND_US) == 6427


@pytest.mark.data
def test_the_fedscale_sample(data_root: Path) -> None:
    read = read_intervals(data_root / "traces/fedscale_behave_sample10.json", "fedscale")
    tree = json.loads((data_root / "traces/fedscale_behave_sample10.json").read_text())
    for i, record in enumerate(tree.values()):
        inside = slice(read.offsets[i], read.offsets[i + 1])
        assert (read.ends[inside] - read.starts[inside]).sum() == record["duration"] * SECOND_US
        assert read.horizons[i] == record["finish_time"] * SECOND_US
    assert read.ids.tolist() == list(tree)


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
