"""The files that start clusters: through Ray's own readers and raysim's command line, and the scripts with stubs.

No cloud, Kubernetes, SLURM or Docker is there: what is checked is that those who read these files would take them, and
that they agree with each other and with the checkout.
"""

import copy
import os
import re
import shlex
import signal
import subprocess
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from click import Context
from jsonschema import ValidationError
from packaging.requirements import Requirement
from ray.autoscaler._private.kuberay import autoscaling_config
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.scripts.scripts import start
from ray.scripts.symmetric_run import curate_and_validate_ray_start_args

from cluster import load_config
from cluster.cli import app

ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT / "cluster"
LAUNCHERS = ("on_premise.yaml", "aws.yaml", "gcp.yaml")
KUBERAY = ("kuberay_cluster.yaml", "kuberay_job.yaml")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WHEEL = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
INSTALLED = ("pyproject.toml", "README.md", "LICENSE", *WHEEL["packages"])


def read(name: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((FILES / name).read_text())
    return document


def dockerfile() -> list[list[str]]:
    """Its instructions, in words."""
    text = re.sub(r"^#.*\n", "", (FILES / "Dockerfile").read_text(), flags=re.M).replace("\\\n", " ")
    return [shlex.split(line) for line in text.splitlines() if line]


def shell(*words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", *words], text=True, capture_output=True, timeout=30, **more)


def test_all_files_pin_one_ray_that_raysim_admits() -> None:
    pins = {}
    for name in (*LAUNCHERS, *KUBERAY, "Dockerfile", "README.md"):
        pin = r"""(?:ray\[default,tune\]==|rayproject/ray:|rayVersion: ")([0-9][0-9.]*[0-9])"""
        pins[name] = set(re.findall(pin, (FILES / name).read_text()))
    assert len(set.union(*pins.values())) == 1, pins
    assert all(pins.values()), pins
    (version,) = pins["Dockerfile"]
    (ray,) = [need for need in map(Requirement, PROJECT["project"]["dependencies"]) if need.name == "ray"]
    assert ray.specifier.contains(version)


# Ray's cluster launcher


def prepared(name: str) -> dict[str, Any]:
    """The file as `ray up` has it before it asks the cloud: with Ray's defaults, and taken by Ray's schema."""
    config: dict[str, Any] = prepare_config(read(name))
    validate_config(config)
    return config


def started(command: str) -> Context:
    """What a command of the launcher would have `ray start` do, by Ray's own command line."""
    words = shlex.split(command)
    return start.make_context("start", words[words.index("start") + 1 :])


@pytest.mark.parametrize("name", LAUNCHERS)
def test_the_launcher_takes_it_and_would_not_take_a_slip(name: str) -> None:
    prepared(name)
    slip = {**read(name), "worker_setup_comands": []}
    with pytest.raises(ValidationError, match="worker_setup_comands"):
        validate_config(prepare_config(slip))


@pytest.mark.parametrize("name", LAUNCHERS)
def test_its_commands_are_shell(name: str) -> None:
    config = prepared(name)
    commands = [command for key in config if key.endswith("_commands") for command in config[key]]
    assert len(commands) >= 8
    for command in commands:
        assert shell("-n", "-c", command).returncode == 0, command


@pytest.mark.parametrize("name", LAUNCHERS)
def test_its_ray_listens_to_its_own_machine_and_asks_for_the_token(name: str, tmp_path: Path) -> None:
    config = prepared(name)
    head = started(config["head_start_ray_commands"][-1]).params
    assert head["head"]
    assert head["dashboard_host"] == "127.0.0.1"
    assert head["disable_usage_stats"]
    assert started(config["worker_start_ray_commands"][-1]).params["address"] == f"$RAY_HEAD_IP:{head['port']}"

    assert config["file_mounts"]["~/.ray/auth_token"] == "~/.ray/auth_token"
    (line,) = [command for command in config["initialization_commands"] if ".bashrc" in command]
    for _ in range(2):  # `ray up` runs them again
        assert shell("-c", line, env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]}).returncode == 0
    (written,) = (tmp_path / ".bashrc").read_text().splitlines()
    assert written.startswith("export ")
    env = shell("-c", f"{written}; env", env={"HOME": "/home/me", "PATH": "/bin"}).stdout.splitlines()
    assert {"RAY_AUTH_MODE=token", "PATH=/home/me/raysim-venv/bin:/bin"} <= {*env}


@pytest.mark.parametrize("name", LAUNCHERS)
def test_it_carries_what_it_installs_and_no_more(name: str) -> None:
    config = prepared(name)
    mounts = {there: here for there, here in config["file_mounts"].items() if there.startswith("~/raysim/")}
    assert {here: f"~/raysim/{here}" for here in (*INSTALLED, "configs")} == {h: t for t, h in mounts.items()}
    assert all((ROOT / here).exists() for here in mounts.values())
    (pip,) = [shlex.split(line) for line in config["setup_commands"] if "pip install" in line]
    assert pip[0] == "~/raysim-venv/bin/pip"
    assert pip[-1] == "~/raysim"


def test_on_premise_has_all_of_its_workers() -> None:
    config = prepared("on_premise.yaml")
    workers = len(config["provider"]["worker_ips"])
    (kind,) = config["available_node_types"].values()
    assert kind["min_workers"] == kind["max_workers"] == config["max_workers"] == workers > 0
    # With the autoscaler that `ray up` turns on no worker is started; what a command sets itself comes after that.
    assert "RAY_enable_autoscaler_v2=0 ray start " in config["head_start_ray_commands"][-1]


@pytest.mark.parametrize("name", ["aws.yaml", "gcp.yaml"])
def test_a_cloud_s_nodes_have_the_processors_that_ray_is_told(name: str) -> None:
    config = prepared(name)
    kinds = config["available_node_types"]
    assert kinds[config["head_node_type"]]["max_workers"] == 0
    for kind in kinds.values():
        of = kind["node_config"]
        # EC2 names sizes in multiples of an xlarge's 4, Google says how many.
        size = of["InstanceType"].split(".")[1] if name == "aws.yaml" else of["machineType"].split("-")[-1]
        cpus = 4 * int(size.removesuffix("xlarge") or 1) if name == "aws.yaml" else int(size)
        assert kind["resources"] == {"CPU": cpus}
    worker = kinds["worker"]
    assert 0 < worker["min_workers"] < worker["max_workers"] <= config["max_workers"]


# KubeRay


def cluster_of(name: str) -> dict[str, Any]:
    """The RayCluster that the file makes, with the names that Kubernetes would give it."""
    document = read(name)
    assert document["apiVersion"] == "ray.io/v1"
    spec = document["spec"]["rayClusterSpec"] if document["kind"] == "RayJob" else document["spec"]
    return {"metadata": {"name": document["metadata"]["name"], "namespace": "default"}, "spec": spec}


def pods(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [group["template"]["spec"] for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"])]


@pytest.mark.parametrize(("name", "most"), [("kuberay_cluster.yaml", 8), ("kuberay_job.yaml", 2)])
def test_ray_s_autoscaler_reads_the_pods_resources(name: str, most: int) -> None:
    cluster = cluster_of(name)
    config = autoscaling_config._derive_autoscaling_config_from_ray_cr(cluster)  # validates it, too
    kinds = config["available_node_types"]
    assert {*kinds} == {"headgroup", "workers"}
    for kind in kinds.values():
        assert kind["resources"] == {"CPU": 4, "memory": 8 * 2**30}
    assert (kinds["workers"]["min_workers"], kinds["workers"]["max_workers"]) == (2, most)
    assert cluster["spec"].get("enableInTreeAutoscaling", False) == (most > 2)

    del cluster["spec"]["workerGroupSpecs"][0]["maxReplicas"]
    with pytest.raises(KeyError, match="maxReplicas"):
        autoscaling_config._derive_autoscaling_config_from_ray_cr(copy.deepcopy(cluster))


@pytest.mark.parametrize("name", KUBERAY)
def test_its_pods_run_the_dockerfile_s_image_and_share_the_volume(name: str) -> None:
    spec = cluster_of(name)["spec"]
    assert spec["authOptions"] == {"mode": "token"}
    base = dockerfile()[0][1]
    assert base == f"rayproject/ray:{spec['rayVersion']}-py311"
    built = re.findall(r"docker build -f cluster/Dockerfile -t (\S+) \.", (FILES / "Dockerfile").read_text())
    assert built == [f"registry.example.com/raysim:{PROJECT['project']['version']}"]
    claim = read("kuberay_storage.yaml")
    assert claim["kind"] == "PersistentVolumeClaim"
    for pod in pods(spec):
        (container,) = pod["containers"]
        assert container["image"] == built[0]
        (mount,) = container["volumeMounts"]
        assert mount["mountPath"] == "/results"
        (volume,) = pod["volumes"]
        assert volume["name"] == mount["name"]
        assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
        assert {"name": "RAYSIM_CACHE", "value": "/results/cache"} in container["env"]
        assert pod["securityContext"]["runAsUser"] == 1000  # the image's; Kubernetes takes no name for runAsNonRoot


def test_a_standing_cluster_s_dashboard_is_not_on_the_network() -> None:
    spec = cluster_of("kuberay_cluster.yaml")["spec"]
    assert spec["headGroupSpec"]["rayStartParams"]["dashboard-host"] == "127.0.0.1"
    assert "serviceType" not in spec["headGroupSpec"]


def parsed(words: list[str]) -> dict[str, Any]:
    """The parameters of `raysim run`, as its own command line reads them."""
    group: Any = typer.main.get_command(app)
    params: dict[str, Any] = group.commands["run"].make_context("run", words).params
    return params


def test_the_job_s_command_is_one_of_raysim_s_on_a_configuration_of_the_image() -> None:
    script, command, *words = shlex.split(read("kuberay_job.yaml")["spec"]["entrypoint"])
    assert (script, command) == ("raysim", "run")
    params = parsed(words)
    (workdir,) = [words[1] for words in dockerfile() if words[0] == "WORKDIR"]
    config = ROOT / params["config"].relative_to(workdir)
    assert load_config(config, params["override"]).output.folder.startswith("/results/")
    with pytest.raises(Exception, match="No such option: --overide"):  # of typer's or click's, by typer's version
        parsed([*words, "--overide", "rounds=1"])


# The image


def test_the_image_gets_what_it_installs_and_no_more() -> None:
    copies = [[word for word in words[1:] if not word.startswith("--")] for words in dockerfile() if words[0] == "COPY"]
    sources = [source for *some, _ in copies for source in some]
    assert sorted(sources) == sorted([*INSTALLED, "configs"])
    assert all((ROOT / source).exists() for source in sources)
    for *some, target in copies:  # Docker copies what is in a folder, not the folder
        assert target == (f"./{some[0]}" if (ROOT / some[0]).is_dir() else "./")
    (ignored,) = [line for line in (FILES / "Dockerfile.dockerignore").read_text().splitlines() if line[0] != "#"]
    assert ignored == "**/__pycache__"
    assert "USER" not in {words[0] for words in dockerfile()}  # the base's is not root
    (installs,) = [words for words in dockerfile() if words[:3] == ["RUN", "pip", "install"]]
    assert installs[-1] == "."


# SLURM

STUBS = {
    "scontrol": 'echo "$@" > scontrol; echo node-1; sleep 0.1; echo node-2',
    "srun": 'while [[ $1 == -* ]]; do echo "$1"; shift; done > srun; "$@"',
    "ray": """
        env | grep ^RAY_ > ray-env
        printf '%s\\0' "$@" > "$1"
        [ "$1" = symmetric-run ] || exit 0
        until [ "$1" = -- ]; do shift; done
        "${@:2}" """,
    "raysim": """
        trap 'echo told; exit 143' TERM
        printf '%s\\0' "$RAY_ADDRESS" "$@" > raysim
        touch begun
        [ -e goes-on ] || exit 7
        for _ in {1..300}; do sleep 0.05; done""",
}


def sbatch(folder: Path, *words: str, **more: str) -> subprocess.Popen[str]:
    """The script as SLURM would run it on two nodes of eight processors, with stubs that write into `folder`."""
    (folder / "tmp").mkdir()
    (folder / "bin").mkdir()
    for name, text in STUBS.items():
        (folder / "bin" / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (folder / "bin" / name).chmod(0o755)
    job = {"SLURM_JOB_NODELIST": "node-[1-2]", "SLURM_JOB_NUM_NODES": "2", "SLURM_CPUS_ON_NODE": "8"}
    env = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "TMPDIR": str(folder / "tmp"), **job, **more}
    return subprocess.Popen(
        ["bash", str(FILES / "slurm.sh"), *words], cwd=folder, env=env, text=True, stdout=subprocess.PIPE
    )


def words_in(path: Path) -> list[str]:
    return path.read_text().split("\0")[:-1]


def test_slurm_s_script_is_shell_that_asks_for_whole_nodes_and_a_signal_in_time() -> None:
    assert shell("-n", str(FILES / "slurm.sh")).returncode == 0
    asks = dict(re.findall(r"^#SBATCH --([a-z-]+)=?(.*)$", (FILES / "slurm.sh").read_text(), flags=re.M))
    assert asks["ntasks-per-node"] == "1"
    assert "exclusive" in asks
    assert asks["signal"] == "B:TERM@300"


def test_slurm_s_script_hands_its_words_on(tmp_path: Path) -> None:
    words = ["my runs/a b.yaml", "-o", "output.folder=out dir", "-o", "data={name: digits}"]
    with sbatch(tmp_path, *words, SLURM_GPUS_ON_NODE="2") as job:
        job.communicate(timeout=30)
    assert job.returncode == 7  # raysim's
    assert words_in(tmp_path / "get-auth-token") == ["get-auth-token", "--generate"]
    assert (tmp_path / "scontrol").read_text() == "show hostnames node-[1-2]\n"
    asked = (tmp_path / "srun").read_text().split()
    assert asked == ["--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--cpus-per-task=8"]
    env = dict(line.split("=", 1) for line in (tmp_path / "ray-env").read_text().splitlines())
    assert env["RAY_AUTH_MODE"] == "token"
    assert "RAY_ADDRESS" not in env

    given = words_in(tmp_path / "symmetric-run")
    assert given[:5] == ["symmetric-run", "--address", "node-1:6379", "--min-nodes", "2"]
    assert given[-len(words) :] == words
    taken = curate_and_validate_ray_start_args(given[1 : given.index("--")])
    assert taken == ["--num-cpus=8", "--num-gpus=2"]
    assert start.make_context("start", ["--head", *taken]).params["num_cpus"] == 8

    address, *driven = words_in(tmp_path / "raysim")
    assert (address, driven) == ("node-1:6379", ["run", *words])
    params = parsed(driven[1:])
    assert (str(params["config"]), params["override"]) == (words[0], [words[2], words[4]])
    assert not [*(tmp_path / "tmp").iterdir()]


def test_slurm_s_script_takes_the_processors_asked_for_and_goes_on_with_a_run(tmp_path: Path) -> None:
    with sbatch(tmp_path, "--resume", "runs/a b", SLURM_CPUS_PER_TASK="3") as job:
        job.communicate(timeout=30)
    assert "--cpus-per-task=3" in (tmp_path / "srun").read_text().split()
    assert {"--num-cpus=3", "--num-gpus=0"} <= {*words_in(tmp_path / "symmetric-run")}
    assert parsed(words_in(tmp_path / "raysim")[2:])["resume"] == Path("runs/a b")


def test_slurm_s_script_tells_the_driver_alone_of_the_limit_and_waits_for_it(tmp_path: Path) -> None:
    (tmp_path / "goes-on").touch()
    with sbatch(tmp_path, "a.yaml") as job:
        for _ in range(200):
            if (tmp_path / "begun").exists():
                break
            time.sleep(0.05)
        job.send_signal(signal.SIGTERM)  # as `--signal=B:` does: to the script's own process
        out, _ = job.communicate(timeout=30)
    assert out == "told\n"
    assert job.returncode == 143
    assert not [*(tmp_path / "tmp").iterdir()]


def test_slurm_s_script_says_how_it_is_used(tmp_path: Path) -> None:
    with sbatch(tmp_path) as job:
        job.communicate(timeout=30)
    assert job.returncode == 2
    assert not (tmp_path / "srun").exists()
