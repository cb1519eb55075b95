"""A cluster that has no node for clients until a run asks for them: Ray's autoscaler, with its provider for tests."""

import json
import re
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from ray.util import get_node_ip_address

from cluster import yaml12
from tests.cluster import heads
from tests.contracts.table import settings
from tests.play import QUADRATIC

pytestmark = [pytest.mark.ray, pytest.mark.slow]
ROOT = Path(__file__).parent.parent.parent
# The provider starts nodes on this machine, which look for their head at this port.
PORT = 6379
# The provider's name for the node that is there already; under another one a second head is launched, over and over.
HEAD = "ray.head.default"

CONFIG: dict[str, Any] = {
    "cluster_name": "test",
    "provider": {"type": "fake_multinode", "disable_node_updaters": True},
    "auth": {},
    "max_workers": 2,
    "upscaling_speed": 10,
    "idle_timeout_minutes": 5,
    "head_node_type": HEAD,
    "available_node_types": {
        HEAD: {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
        "worker": {"resources": {"CPU": 1}, "node_config": {}, "min_workers": 0, "max_workers": 2},
    },
    "file_mounts": {},
    "file_mounts_sync_continuously": False,
    "cluster_synced_files": [],
    "initialization_commands": [],
    "setup_commands": [],
    "head_setup_commands": [],
    "worker_setup_commands": [],
    "head_start_ray_commands": [],
    "worker_start_ray_commands": [],
}


def test_nodes_are_asked_for_awaited_and_given_up(tmp_path: Path) -> None:
    ip = get_node_ip_address()
    with socket.socket() as probe:
        if not probe.connect_ex((ip, PORT)):
            pytest.skip(f"port {PORT} is taken")
    (tmp_path / "autoscaling.json").write_text(json.dumps(CONFIG))
    config = tmp_path / "experiment.yaml"
    config.write_text(yaml12.dump(QUADRATIC | {"algorithm": settings("cd_ma"), "output": {"folder": str(tmp_path)}}))
    words = (f"--autoscaling-config={tmp_path}/autoscaling.json",)
    fake = {"RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1"}
    with heads.started(*words, ip=ip, port=PORT, num_cpus=0, **fake) as head:
        heads.until(head.alive)

        def run(actors: int, wait_s: float) -> Any:
            options = [f"clients.actors={actors}", f"ray.wait_s={wait_s}", f"ray.address={ip}:{PORT}"]
            command = [sys.executable, "-m", "cluster", "run", str(config)]
            return head.run(*command, *(word for option in options for word in ("-o", option)), cwd=ROOT)

        at_once = run(2, 0)
        assert at_once.returncode == 2
        assert at_once.stderr == (
            "error: 2 client actors x 1 CPU = 2 CPU, but there are 0: lower clients.num_cpus (at most 0)\n"
        )
        two = run(2, 60)
        assert two.returncode == 0, two.stderr
        awaited = "waiting for nodes, up to 60 s in all (1 there): 2 client actors x 1 CPU = 2 CPU, but there are 0"
        assert awaited in two.stdout.splitlines()[1], two.stdout
        assert "client actors: 2, each for any client, on 2 nodes (2 with 1)" in two.stdout
        three = run(3, 5)
        assert three.returncode == 2, "there are never three"
        assert "3 client actors x 1 CPU = 3 CPU, but there are 2" in three.stdout
        assert re.search(r"but there are 2: .* \(waited \d+ s for nodes, ray.wait_s\)\n$", three.stderr)
