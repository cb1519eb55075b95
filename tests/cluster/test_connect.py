"""A Ray that is started for a run: what it offers to others on the machine and the network."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cluster import load_config, run
from raysim.errors import Stopped
from tests.contracts.table import settings
from tests.play import QUADRATIC
from tests.same import log

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.xdist_group("connect")]

STARTS = """
import sys
from cluster import connect
with connect.session(None):
    import ray
    print(ray.get_runtime_context().gcs_address, flush=True)
    sys.stdin.readline()
"""
HEARS = """
import signal
from cluster import connect
signal.signal(signal.SIGTERM, lambda *_: print("heard", flush=True))
with connect.session(None):
    signal.raise_signal(signal.SIGTERM)
"""
JOINS = """
import sys, ray
ray.init(address=sys.argv[1], log_to_driver=False)
print("joined")
"""


@pytest.fixture(scope="module")
def started() -> Iterator[tuple[str, psutil.Process]]:
    """A program that has started a Ray as a run does: Ray's address, and the program."""
    pipe = subprocess.PIPE
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    with subprocess.Popen([sys.executable, "-c", STARTS], stdin=pipe, stdout=pipe, text=True, env=environment) as run:
        assert run.stdout is not None
        yield run.stdout.readline().strip(), psutil.Process(run.pid)
        run.communicate("\n", timeout=60)


def test_there_is_no_client_server_and_of_the_dashboard_no_page(started: tuple[str, psutil.Process]) -> None:
    _, program = started
    commands = [" ".join(process.cmdline()) for process in program.children(recursive=True)]
    assert any("gcs_server" in command for command in commands)
    assert not [command for command in commands if "util.client.server" in command]
    for command in commands:  # its process reports usage statistics, where they are wanted
        if "dashboard/dashboard.py" in command:
            assert {"--host=127.0.0.1", "--disable-frontend", "--modules-to-load=UsageStatsHead"} <= {*command.split()}
    ports = {
        connection.laddr.port
        for process in (program, *program.children(recursive=True))
        for connection in process.net_connections()
        if connection.status == psutil.CONN_LISTEN
    }
    assert ports
    assert not ports & {8265, 10001}


@pytest.mark.parametrize(("token", "joins"), [(None, True), ("0" * 64, False)])
def test_who_does_not_have_its_token_cannot_join_it(
    token: str | None, joins: bool, started: tuple[str, psutil.Process]
) -> None:
    address, _ = started
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    environment |= {"RAY_AUTH_MODE": "token"} | ({"RAY_AUTH_TOKEN": token} if token else {})
    words = [sys.executable, "-c", JOINS, address]
    done = subprocess.run(words, text=True, capture_output=True, timeout=120, env=environment)
    assert (done.returncode == 0) == joins
    assert ("joined" in done.stdout) == joins
    assert joins or "uthentication" in done.stderr


def test_it_leaves_what_the_program_does_about_sigterm() -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    done = subprocess.run([sys.executable, "-c", HEARS], text=True, capture_output=True, timeout=120, env=environment)
    assert (done.returncode, done.stdout) == (0, "heard\n")


def test_nodes_are_awaited_no_longer_once_the_run_is_to_stop(ray_cluster: None, tmp_path: Path) -> None:
    stop, told = threading.Event(), []

    def notice(line: str) -> None:
        told.append(line)
        stop.set()

    tree = QUADRATIC | {"algorithm": settings("cd_ma"), "output": {"folder": str(tmp_path)}}
    with pytest.raises(Stopped):
        run(load_config(tree | {"clients": {"actors": 1000}, "ray": {"wait_s": 1e6}}), notice=notice, stop=stop)
    assert told[0].startswith(
        "waiting for nodes, up to 1000000 s in all (1 there): 1000 client actors x 1 CPU = 1000 CPU, "
    )
    (folder,) = tmp_path.iterdir()
    assert log(folder)[-1]["outcome"] == "stopped"
