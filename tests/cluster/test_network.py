"""Two nodes with a network between them, in namespaces of their own, and what becomes of a run when it is cut."""

import contextlib
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cluster import load_config, run, yaml12
from tests.cluster import heads
from tests.contracts.table import settings
from tests.same import differences, log

pytestmark = [pytest.mark.ray, pytest.mark.slow]
ROOT = Path(__file__).parent.parent.parent

BASE: dict[str, Any] = {
    "name": "experiment",
    "precision": "float64",
    "rounds": 40,
    "data": {"name": "digits"},
    "partition": {"name": "by_label", "clients": 20},
    "problem": {"name": "auc"},
    "model": {"name": "mlp", "hidden": [1000]},
    "algorithm": settings("codasca", S=10),
    "evaluate": {"every": 10},
    "checkpoint": {"every": 1000},  # so that what clients keep is lost with their node, and all is played again
}


@dataclass(frozen=True)
class Network:
    """Hosts on a bridge, each in a network namespace.

    Attributes:
        name: unique, of the bridge and the start of all other names.
        subnet: the first three numbers of all addresses.
    """

    name: str
    subnet: str

    def ip(self, host: int) -> str:
        return f"{self.subnet}.{host}"

    def within(self, host: int) -> list[str]:
        """The command that runs another on a host."""
        return ["ip", "netns", "exec", f"{self.name}{host}"]

    def cut(self, host: int) -> None:
        """Nothing reaches the host or comes from it any more; nobody is told."""
        _ip("link", "set", f"{self.name}v{host}", "down")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def network() -> Iterator[Network]:
    """Two hosts, which the machine must allow."""
    unique = uuid.uuid4()
    made = Network(f"r{unique.hex[:6]}", f"10.{unique.bytes[0]}.{unique.bytes[1]}")
    if os.geteuid() or not shutil.which("ip") or not shutil.which("unshare"):
        pytest.skip("network namespaces need root, ip and unshare")
    with contextlib.ExitStack() as undo:
        try:
            _ip("link", "add", made.name, "type", "bridge")
            undo.callback(_ip, "link", "del", made.name)
            _ip("addr", "add", f"{made.ip(254)}/24", "dev", made.name)
            _ip("link", "set", made.name, "up")
            for host in (1, 2):
                space, outer, inner = f"{made.name}{host}", f"{made.name}v{host}", f"{made.name}e{host}"
                _ip("netns", "add", space)
                undo.callback(_ip, "netns", "del", space)
                _ip("link", "add", outer, "type", "veth", "peer", "name", inner)
                _ip("link", "set", inner, "netns", space)
                _ip("link", "set", outer, "master", made.name, "up")
                _ip("-n", space, "addr", "add", f"{made.ip(host)}/24", "dev", inner)
                _ip("-n", space, "link", "set", inner, "up")
                _ip("-n", space, "link", "set", "lo", "up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"the machine does not allow network namespaces: {error.stderr.decode().strip()}")
        yield made


def test_a_node_that_is_cut_off_in_a_round_changes_nothing(network: Network, tmp_path: Path) -> None:
    cache, runs = tmp_path / "cache", tmp_path / "runs"
    cache.mkdir()
    health = {
        "RAY_health_check_initial_delay_ms": "1000",
        "RAY_health_check_period_ms": "1000",
        "RAY_health_check_timeout_ms": "1000",
        "RAY_health_check_failure_threshold": "3",
    }
    with heads.started(ip=network.ip(1), within=network.within(1), **health) as head:
        heads.until(head.alive)
        # The other node sees nothing of the cache: as on a machine of its own, its folder is empty.
        alone = ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs none {cache} && exec "$@"', "sh"]
        head.join(
            f"--node-ip-address={network.ip(2)}", "--num-cpus=1", within=[*network.within(2), *alone], **health
        )  # fmt: skip
        heads.until(lambda: len(head.alive()) == 2)
        config = tmp_path / "experiment.yaml"
        # Two actors, one on either node, and room for both on the first.
        clients = {"actors": 2, "num_cpus": 0.5}
        output = {"folder": str(runs), "cache": str(cache)}
        config.write_text(yaml12.dump(BASE | {"clients": clients, "output": output}))
        words = [*head.within, sys.executable, "-m", "cluster", "run", str(config)]
        environment = head.environment | {"RAY_ADDRESS": f"{head.ip}:{head.port}"}
        with subprocess.Popen(
            words, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as program:
            (folder,) = heads.until(lambda: list(runs.iterdir()))
            heads.until(lambda: rounds(folder) >= 10)
            (shards,) = (path.name for path in cache.iterdir() if path.is_dir())
            there = Path(f"/proc/{head.nodes[1].pid}/root{cache}")
            assert {path.name for path in (there / shards).iterdir()} == {"train.arrow", "test.arrow", "offsets.arrow"}
            network.cut(2)
            assert rounds(folder) < 40
            printed, errors = program.communicate(timeout=200)
        assert program.returncode == 0, printed + errors
        assert "on 2 nodes (2 with 1)" in printed
        assert rounds(folder) == 40
        assert [node["node_ip"] for node in head.alive()] == [network.ip(1)]
    undisturbed = run(load_config(BASE | {"clients": {"fleet": "in_process"}, "output": {"folder": str(tmp_path)}}))
    assert not differences(folder, undisturbed.folder)


def rounds(folder: Path) -> int:
    """How many the run has told of so far."""
    return max((event["round"] for event in log(folder) if event["event"] == "round"), default=0)
