"""Tests files of on-times: each format on a small file, and every wrong input as one error that names its place."""

import doctest
import json
import pickle
from collections import OrderedDict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raysim.devices.clock import SECOND_US
from raysim.devices.traces import TRACE_FORMATS, read_intervals
from raysim.errors import DataError
from tests.raysim.test_devices_files import written


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
    assert read_intervals(path, "intervals").in_seconds() == {
        "mixed": ([[0, 9], [20, 41], [50, 60]], 60),
        "never": ([], 10),
        "empty": ([], 10),
        "early": ([[0, 1.5]], 10.25),
    }
    assert read_intervals(path, "intervals", merge_gap_s=9).in_seconds()["mixed"] == ([[0, 9], [20, 60]], 60)
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
    found = read_intervals(written(tmp_path / "x.json", {"devices": tree}), "intervals").in_seconds()
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


# Examples


@pytest.mark.parametrize("name", TRACE_FORMATS.entries)
def test_the_example_in_the_docstring_of_each_format(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"Path": Path, "json": json, "read_intervals": read_intervals}
    (example,) = doctest.DocTestFinder(recurse=False).find(TRACE_FORMATS.entries[name], name, globs=names)
    assert f'"{name}").in_seconds()' in example.examples[-1].source
    report: list[str] = []
    outcome = doctest.DocTestRunner().run(example, out=report.append)
    assert outcome.failed == 0, "".join(report)


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
    assert read_intervals(path, "fedscale").in_seconds() == {"1": ([[10, 20], [90, 100]], 100), "2": ([], 50)}


def test_fedscale_json(tmp_path: Path) -> None:
    path = written(tmp_path / "sample.json", FEDSCALE)
    assert list(read_intervals(path, "fedscale").in_seconds()) == ["1", "2"]


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
    assert read_intervals(written(tmp_path / "x.json", tree), "flash").in_seconds() == {
        "u": ([[90, 100], [110, 120], [130, 140], [150, 160], [170, 180]], 180),
        "v": ([], 90),
        "once": ([], 61),
    }


# flame


@pytest.mark.parametrize("as_text", [False, True])
def test_flame(tmp_path: Path, as_text: bool) -> None:
    events = [(0, "UN_AVL"), (5, "AVL_TRAIN"), (8, "AVL_TRAIN"), (9, "AVL_EVAL"), (20.5, "AVL_TRAIN"), (30, "UN_AVL")]
    tree = {"t1": repr(events) if as_text else events, "t2": [[3, "AVL_TRAIN"], [10, "AVL_TRAIN"]]}
    assert read_intervals(written(tmp_path / "x.json", tree), "flame").in_seconds() == {
        "t1": ([[5, 9], [20.5, 30]], 30),
        "t2": ([[3, 10]], 10),
    }


# A user's own tables


def test_a_csv_of_on_times(tmp_path: Path) -> None:
    text = "note,device,start_s,end_s,horizon_s\na,b,0,10,100\nb,a, 3.5 ,4,50\nc,b,20,30,\nd,NA,,,70\n"
    assert read_intervals(written(tmp_path / "x.csv", text), "table").in_seconds() == {
        "NA": ([], 70),
        "a": ([[3.5, 4]], 50),
        "b": ([[0, 10], [20, 30]], 100),
    }
    shared = written(tmp_path / "y.csv", "device,start_s,end_s\n1,0,10\n2,20,30\n")
    assert read_intervals(shared, "table").in_seconds() == {"1": ([[0, 10]], 30), "2": ([[20, 30]], 30)}


def test_a_parquet_of_on_times(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    columns = {"device": [7, 7, 8], "start_s": [0, 5, None], "end_s": [1.5, 6.0, None], "horizon_s": [9, 9, 4]}
    pq.write_table(pa.table(columns), path)
    assert read_intervals(path, "table").in_seconds() == {"7": ([[0, 1.5], [5, 6]], 9), "8": ([], 4)}


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


def test_a_parquet_column_that_is_no_number_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"device": ["a"], "start_s": [True], "end_s": [1]}), path)
    with pytest.raises(DataError, match="column 'start_s' is bool; it must be numbers"):
        read_intervals(path, "table")


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
