"""Experiments as jobs of a running Ray cluster: sent, followed, listed and stopped over Ray's job server.

What is sent is this raysim, the configuration and the user's modules that it names; the cluster's nodes must have the
packages that raysim needs.
"""

import asyncio
import contextlib
import glob
import io
import json
import logging
import os
import re
import secrets
import shlex
import shutil
import sys
import sysconfig
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import requests
from ray._private.runtime_env.packaging import GCS_STORAGE_MAX_SIZE
from ray.exceptions import RayError
from ray.job_submission import JobDetails, JobStatus, JobSubmissionClient

from cluster import folder, yaml12
from cluster.config import Config
from cluster.experiment import require_known
from cluster.study import STUDY, Study
from cluster.tree import flat
from raysim.errors import ConfigError, JobError

ADDRESS = "http://127.0.0.1:8265"
ROOMS = ("raysim", "clients", "server", "cluster")
# Files beside the user's modules that are not code. Folders with a name in NO_CODE are not sent unless they hold code.
EXCLUDED = shutil.ignore_patterns(".*", "__pycache__", "*.pyc", "*.arrow", "*.pt", "node_modules")
NO_CODE = ("runs", "data")
# Files that are not sent even where --include names a folder that holds them.
NEVER = shutil.ignore_patterns(".git", ".venv", "__pycache__", "*.pyc")
# How long Ray lets a job that is to stop play its round to the end, before it kills it; its own default is 3 s.
STOP_WAIT_S = 3600
POLL_S = 0.5
# How long a cluster that was only just started may take until it has something to run jobs with.
AGENT_S = 60.0

Say = Callable[[str], object]


@dataclass(frozen=True)
class Parcel:
    """A folder with everything that a job needs.

    Attributes:
        folder: the folder that is sent.
        entrypoint: the command that runs in it.
        name: the experiment's name.
        output: an absolute path on the cluster: where the run folder is made, or the run folder that is resumed.
    """

    folder: Path
    entrypoint: str
    name: str
    output: str

    @property
    def sizes(self) -> tuple[int, int]:
        """Returns the number of files and their compressed bytes. Raises JobError where Ray would refuse them."""
        packed = io.BytesIO()
        files = [path for path in sorted(self.folder.rglob("*")) if path.is_file()]
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in files:
                archive.write(path, path.relative_to(self.folder))
        if (n_bytes := packed.tell()) >= GCS_STORAGE_MAX_SIZE:
            largest = max(files, key=lambda path: path.stat().st_size)
            raise JobError(
                f"{len(files)} files of {n_bytes / 2**20:.0f} MiB would be sent, and Ray takes "
                f"{GCS_STORAGE_MAX_SIZE / 2**20:.0f} MiB; the largest is {largest.relative_to(self.folder)} with "
                f"{largest.stat().st_size / 2**20:.0f} MiB. Put data where the cluster's nodes can read it, and code "
                "into a package of its own"
            )
        return len(files), n_bytes


@contextlib.contextmanager
def parcel(config: Config, storage: str | None, include: Sequence[Path]) -> Iterator[Parcel]:
    """Prepares a configuration for sending, and yields the parcel, which is deleted when the context ends.

    Args:
        config: relative output folders are put under `storage`.
        storage: an absolute folder of the cluster.
        include: files and folders of the working directory that the user's modules need.

    Raises ConfigError where the job could not find what the configuration names.
    """
    require_known(config)
    config = _abroad(config, storage)
    with _packed(_modules(config), include) as into:
        (into / "config.yaml").write_text(yaml12.dump(config.model_dump(mode="json")), encoding="utf-8")
        yield Parcel(into, "python -m cluster run config.yaml", config.name, config.output.folder)


@contextlib.contextmanager
def parcel_of_study(study: Study, storage: str | None, include: Sequence[Path]) -> Iterator[Parcel]:
    """Prepares a study for sending, as `parcel` does a configuration. A relative `folder` is put under `storage`.

    Raises ConfigError where a trial could not find what its configuration names, and where the paths of a trial's
    output.cache or checkpoint.folder are relative.
    """
    for trial in study.trials:
        output = trial.config.output.model_copy(update={"folder": "/"})  # only the study's folder counts
        _abroad(trial.config.model_copy(update={"output": output}), None)
    where = _there("folder", study.config.folder, storage)
    ray = study.config.ray.model_copy(update={"address": None})
    tree = study.config.model_copy(update={"folder": where, "ray": ray}).model_dump(mode="json")
    modules = {path: None for trial in study.trials for path in _modules(trial.config)}
    with _packed(list(modules), include) as into:
        (into / STUDY).write_text(yaml12.dump(tree), encoding="utf-8")
        yield Parcel(into, f"python -m cluster study {STUDY}", study.config.name, where)


@contextlib.contextmanager
def parcel_to_resume(run: str, overrides: Sequence[str], include: Sequence[Path]) -> Iterator[Parcel]:
    """The same, to go on with a run's or a study's folder of the cluster, which has its configuration: modules of the
    user's that it names are sent with `include` only. Raises ConfigError where its path is relative.
    """
    if not Path(run).is_absolute():
        raise ConfigError("--resume", f"{run!r} is relative; give the folder's absolute path on the cluster")
    words = ["python", "-m", "cluster", "run", "--resume", run, *(w for o in overrides for w in ("-o", o))]
    with _packed((), include) as into:
        yield Parcel(into, shlex.join(words), Path(run).name, run)


def submit(parcel: Parcel, address: str | None) -> str:
    """Sends a parcel to a job server and returns the job's id. Raises JobError."""
    job = re.sub(r"-\d{8}-\d{6}(-\d+)?$", "", parcel.name) + f"-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    runtime_env = {
        "working_dir": str(parcel.folder),
        "env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_WAIT_S), "PYTHONUNBUFFERED": "1"},
    }
    latest = time.monotonic() + AGENT_S
    with _answers(address) as client:
        while True:
            try:
                sent: str = client.submit_job(
                    entrypoint=parcel.entrypoint,
                    submission_id=job,
                    runtime_env=runtime_env,
                    metadata={"raysim": parcel.name, "output": parcel.output},
                )
            except RuntimeError as error:
                if "No available agent" not in str(error) or time.monotonic() > latest:
                    raise
                time.sleep(POLL_S)
            else:
                return sent


def follow(job: str, address: str | None, write: Say) -> JobDetails:
    """Prints what a job prints, as it comes, and waits for the job to end. Raises JobError."""

    async def tail(client: JobSubmissionClient) -> None:
        async for text in client.tail_job_logs(job):
            write(text)

    with _answers(address) as client:
        asyncio.run(tail(client))
        return _ended(client, job)


def stop(job: str, address: str | None, wait: bool) -> JobDetails:
    """Asks a job to end after its present round, with a checkpoint. Raises JobError."""
    with _answers(address) as client:
        client.stop_job(job)
        return _ended(client, job) if wait else client.get_job_info(job)


def listed(address: str | None) -> list[JobDetails]:
    """Returns the jobs that `submit` sent, the latest first. Raises JobError."""
    with _answers(address) as client:
        found = [job for job in client.list_jobs() if "raysim" in (job.metadata or {})]
    return sorted(found, key=lambda job: job.start_time or 0, reverse=True)


def line(job: JobDetails) -> str:
    """Returns a line about a job: its id, its status, how long it has run, and where its results lie."""
    seconds = ((job.end_time or time.time() * 1000) - (job.start_time or 0)) / 1000
    took = "not begun" if job.status == JobStatus.PENDING else f"{seconds:.0f} s"
    return f"{job.submission_id}  {job.status.value.lower()}  {took}  {(job.metadata or {}).get('output', '')}"


@contextlib.contextmanager
def _answers(address: str | None) -> Iterator[JobSubmissionClient]:
    at = address or os.environ.get("RAY_API_SERVER_ADDRESS") or ADDRESS
    at = at if "://" in at else f"http://{at}"
    try:
        yield _client(at)
    except BrokenPipeError:  # the reader of our output has gone
        raise
    except (ConnectionError, requests.ConnectionError, aiohttp.ClientConnectionError) as error:
        raise JobError(
            f"no job server answers at {at}; give --address, such as {ADDRESS}, that of the cluster's dashboard "
            f"({_line(error)})"
        ) from None
    except (RayError, RuntimeError, ValueError, aiohttp.ClientError, requests.RequestException) as error:
        raise JobError(f"the job server at {at}: {_line(error)}") from None


def _client(at: str) -> JobSubmissionClient:
    """Returns a client of this server. Environment variables are hidden, since Ray would prefer the one they name."""
    before = {name: os.environ.pop(name, None) for name in ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")}
    try:
        client = JobSubmissionClient(at)
    finally:
        os.environ.update({name: value for name, value in before.items() if value is not None})
    dashboard = "ray.dashboard.modules"
    for talkative in (f"{dashboard}.dashboard_sdk", f"{dashboard}.job.sdk", "ray._private.runtime_env.packaging"):
        logging.getLogger(talkative).setLevel(logging.WARNING)
    return client


def _line(error: BaseException) -> str:
    """Returns a server's error message in one line: the last line, where the message is a traceback."""
    said = str(error).strip().splitlines() or [type(error).__name__]
    return said[-1] if "Traceback" in str(error) else " ".join(said)


def _ended(client: JobSubmissionClient, job: str) -> JobDetails:
    while not (found := client.get_job_info(job)).status.is_terminal():
        time.sleep(POLL_S)
    return found


def _abroad(config: Config, storage: str | None) -> Config:
    """Returns the configuration for a job, whose working folder is another one and is deleted with the job."""
    for key in ("data", "partition", "problem", "model", "algorithm", "devices"):
        section = getattr(config, key)
        for place, value in flat(section.model_dump(mode="json") if section else {}).items():
            is_name = place.rpartition(".")[2] in ("name", "preset")
            if not is_name and isinstance(value, str) and _is_here(value):
                raise ConfigError(
                    f"{key}.{place}", f"{value!r} is a path of this folder; give the absolute one of the cluster"
                )
    places = {"output.folder": config.output.folder, "output.cache": config.output.cache,
              "checkpoint.folder": config.checkpoint.folder}  # fmt: skip
    there = {key: given if given is None else _there(key, given, storage) for key, given in places.items()}
    return config.model_copy(
        update={
            "ray": config.ray.model_copy(update={"address": None}),  # the job joins the cluster that it runs on
            "output": config.output.model_copy(
                update={"folder": there["output.folder"], "cache": there["output.cache"]}
            ),
            "checkpoint": config.checkpoint.model_copy(update={"folder": there["checkpoint.folder"]}),
        }
    )


def _there(key: str, given: str, storage: str | None) -> str:
    """Returns a folder on the cluster. Raises ConfigError where it is relative and no storage is given."""
    if storage is not None and not Path(storage).is_absolute():
        raise ConfigError("--storage", f"{storage!r} is relative; give an absolute folder of the cluster")
    if "://" in given or given.startswith("~") or Path(given).is_absolute():
        return given
    if storage is not None:
        return f"{storage.rstrip('/')}/{given}"
    raise ConfigError(
        key,
        f"{given!r} is relative, and a job's working folder goes when it ends; give an absolute folder of the cluster, "
        "or --storage with one for all of them",
    )


def _is_here(value: str) -> bool:
    return not Path(value).is_absolute() and "://" not in value and any(glob.iglob(value))


def _modules(config: Config) -> list[Path]:
    """Returns the files and folders of the user's modules whose classes a configuration names."""
    names = (value for value in flat(config.model_dump(mode="json")).values() if isinstance(value, str))
    named = {name.split(":")[0].split(".")[0] for name in names if re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", name)}
    found = [sys.modules[name] for name in sorted(named - set(ROOMS)) if name in sys.modules]
    paths = [next(iter(getattr(module, "__path__", ())), None) or getattr(module, "__file__", None) for module in found]
    places = [Path(path) for path in paths if path is not None]
    # The cluster must have the packages that are installed here.
    installed = [sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")]
    return [place for place in places if not any(place.is_relative_to(where) for where in installed)]


@contextlib.contextmanager
def _packed(modules: Sequence[Path], include: Sequence[Path]) -> Iterator[Path]:
    """Yields a folder with raysim's packages, the given modules and files, and a note of where they come from."""
    here = Path(__file__).parent.parent
    with tempfile.TemporaryDirectory(prefix="raysim-job-") as temporary:
        into = Path(temporary)
        for room in ROOMS:
            shutil.copytree(here / room, into / room, ignore=_all_but_python)
        for path in modules:
            _copy(path, into / path.name, _unwanted)
        for path in include:
            if path.is_absolute() or ".." in path.parts or not path.exists():
                raise ConfigError("--include", f"{path} is not a file or folder of the working directory")
            _copy(path, into / path, NEVER)
        (into / folder.ORIGIN).write_text(json.dumps(folder.origin()))
        yield into


def _all_but_python(path: str, names: list[str]) -> set[str]:
    return {name for name in names if not (Path(path, name).is_dir() or name.endswith(".py"))} | _unwanted(path, names)


def _unwanted(path: str, names: list[str]) -> set[str]:
    no_code = {name for name in names if name in NO_CODE and not any(Path(path, name).rglob("*.py"))}
    return EXCLUDED(path, names) | no_code


def _copy(source: Path, to: Path, ignore: Callable[[str, list[str]], set[str]]) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, to, ignore=ignore, dirs_exist_ok=True, ignore_dangling_symlinks=True)
    else:
        shutil.copy(source, to)
