"""Time and memory to plan one phase: who is on, who is invited, what becomes of them, and the bookings.

    python -m tests.benchmarks.bench_dispatch

Each line is a process of its own. `first` includes drawing every device's properties and reading the trace, `next` is
the median of later phases; `peak` is the most memory the process had, of which Python with its libraries is the `base`.
Targets: a phase of 1,000,000 devices in 1 s and 2 GB, one of 500 in 5 ms, on two cores.
"""

import json
import multiprocessing
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from raysim.algorithms.cd_mage import Collect
from raysim.devices import AVAILABILITY, Availability, DeviceModel, Population
from raysim.phase import Uniform, WholeShard
from raysim.wire import Traffic
from server.dispatch import Devices
from server.plan import Planner
from server.policy import PolicyConfig

SIZES = (1_000_000, 500)
NAMES = ("always", "markov", "markov, daily rhythm", "trace")
RECORDS, SESSIONS, DAY_S = 10_000, 20, 86_400


def main() -> None:
    out = sys.stdout.write
    out(f"{'devices':>9}  {'availability':<22}{'first':>10}{'next':>12}{'base':>10}{'peak':>10}\n")
    with tempfile.TemporaryDirectory() as folder:
        trace = write_trace(Path(folder))
        for size in SIZES:
            for name in NAMES:
                with multiprocessing.get_context("spawn").Pool(1) as pool:
                    first_s, next_s, base, peak = pool.apply(measure, (size, name, trace))
                out(f"{size:>9,}  {name:<22}{first_s:>8.3f} s{1e3 * next_s:>9.2f} ms{base:>7.0f} MB{peak:>7.0f} MB\n")


def measure(size: int, name: str, trace: str) -> tuple[float, float, float, float]:
    """Seconds for the first and for later phases, and megabytes before and at most."""
    base = peak_mb()
    began = time.perf_counter()
    devices = Devices(
        Planner(np.full(size, 100), 0), Population(DeviceModel(), size), availability(name, size, trace),
        PolicyConfig(max_failed_rounds=1000),
    )  # fmt: skip
    clock = devices.start()
    S = min(100, size // 25)  # so many that in a small population, mostly off, the server need not wait
    taken_s = []
    for t in range(8 if size > 10_000 else 50):
        devices.dispatch(clock, Collect(Uniform(S), WholeShard()), t, Traffic(5_600_000, 0, 5_600_000), None)
        taken_s.append(time.perf_counter() - began)
        began = time.perf_counter()
    return taken_s[0], statistics.median(taken_s[1:]), base, peak_mb()


def availability(name: str, size: int, trace: str) -> Availability:
    name, _, rhythm = name.partition(", ")
    settings: dict[str, object] = {}
    if rhythm:
        settings["diurnal"] = {"amplitude": 0.64, "zones": [{"offset_h": h} for h in (-6.0, 1.0, 5.5, 8.0)]}
    if name == "trace":
        settings |= {"path": trace, "format": "intervals", "shift": True}
    made: Availability = AVAILABILITY.build(name, settings, seed=0, clients=size, scores=None)
    return made


def write_trace(folder: Path) -> str:
    """A made-up trace of the size of FLASH's sample or FedScale's file: 10,000 records of 20 sessions in 4 days."""
    rng = np.random.default_rng(0)
    edges = np.sort(rng.integers(0, 4 * DAY_S, (RECORDS, SESSIONS, 2)).reshape(RECORDS, -1), axis=1)
    devices = {
        str(i): {"charging": edges[i].reshape(SESSIONS, 2).tolist(), "horizon_s": 4 * DAY_S} for i in range(RECORDS)
    }
    path = folder / "trace.json"
    path.write_text(json.dumps({"devices": devices}))
    return str(path)


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
