"""A Ray cluster of nodes on this machine, started as an administrator would: `ray start`, dashboard and token."""

import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

BIN = Path(sys.executable).parent
SECONDS = 60.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass
class Head:
    """A cluster.

    Attributes:
        ip: of its head.
        port, dashboard_port, metrics_port: where it listens.
        environment: of a program that talks to it.
        sessions: a folder for what its nodes keep.
        within: the command that runs another where the head is; empty for this machine.
        nodes: the running `ray start --block`, the head's first.
    """

    ip: str
    environment: dict[str, str]
    sessions: str
    within: tuple[str, ...]
    port: int
    dashboard_port: int = field(default_factory=free_port)
    metrics_port: int = field(default_factory=free_port)
    nodes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def dashboard(self) -> str:
        return f"http://{self.ip}:{self.dashboard_port}"

    def join(self, *words: str, within: Sequence[str] = (), **environment: str) -> None:
        """Starts another node."""
        # With a folder of its own: nodes on one machine otherwise unpack a job's files over each other's.
        own = tempfile.mkdtemp(prefix="node-", dir=self.sessions)
        self.add(
            f"--address={self.ip}:{self.port}", f"--temp-dir={own}", *words, within=within, environment=environment
        )

    def add(self, *words: str, within: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> None:
        """Starts a node, the head first."""
        # The port of the process that starts jobs is fixed, unless it is said: two nodes of one machine cannot have it.
        agent = f"--dashboard-agent-listen-port={free_port()}"
        start = [*within, str(BIN / "ray"), "start", "--block", "--disable-usage-stats", agent, *words]
        self.nodes.append(
            subprocess.Popen(
                start,
                env=self.environment | dict(environment or {}),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        )

    def run(self, *words: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs a program that talks to it."""
        return subprocess.run(
            [*self.within, *words], env=self.environment | environment, cwd=cwd, text=True, capture_output=True,
            timeout=240,
        )  # fmt: skip

    def get(self, url: str) -> str:
        """What one of its servers answers."""
        token = {"Authorization": f"Bearer {self.environment['RAY_AUTH_TOKEN']}"}
        with urllib.request.urlopen(urllib.request.Request(url, headers=token), timeout=10) as answer:
            text: str = answer.read().decode()
            return text

    def alive(self) -> list[dict[str, Any]]:
        """Its nodes that are, by its own account."""
        found = json.loads(self.get(f"{self.dashboard}/api/v0/nodes"))["data"]["result"]["result"]
        return [node for node in found if node["state"] == "ALIVE"]


def until(what: Any, seconds: float = SECONDS) -> Any:
    """What `what()` gives once that is true of it; it may fail before."""
    latest = time.monotonic() + seconds
    while True:
        error: Exception | None = None
        try:
            if found := what():
                return found
        except Exception as failed:  # noqa: BLE001 -- a server that is not there yet
            error = failed
        if time.monotonic() > latest:
            raise TimeoutError(f"not in {seconds:g} s") from error
        time.sleep(0.25)


@contextlib.contextmanager
def started(
    *words: str,
    ip: str = "127.0.0.1",
    port: int | None = None,
    within: Sequence[str] = (),
    num_cpus: int = 1,
    **environment: str,
) -> Iterator[Head]:
    """A head, started with these words too. The context manager ends all nodes that were added to it."""
    mine = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    mine |= {
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "OMP_NUM_THREADS": "1",
        "TERM": "dumb",
    } | environment
    # Paths of sockets must be short, which those of the test's own folder are not.
    sessions = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    head = Head(ip, mine, sessions, tuple(within), port or free_port())
    try:
        head.add(
            "--head", f"--node-ip-address={ip}", f"--port={head.port}", f"--num-cpus={num_cpus}",
            f"--temp-dir={sessions}/head",
            f"--dashboard-host={ip}", f"--dashboard-port={head.dashboard_port}",
            f"--metrics-export-port={head.metrics_port}", *words, within=within,
        )  # fmt: skip
        yield head
    finally:
        for node in reversed(head.nodes):
            end(node)
        shutil.rmtree(sessions, ignore_errors=True)


def end(node: "subprocess.Popen[bytes]") -> None:
    """Ends a node with everything that it started."""
    with contextlib.suppress(psutil.NoSuchProcess):
        children = psutil.Process(node.pid).children(recursive=True)
        node.terminate()
        _, left = psutil.wait_procs([psutil.Process(node.pid), *children], timeout=15)
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    node.wait(timeout=15)
