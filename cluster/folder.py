"""The run folder: config.yaml, environment.json, the ledger's tables, model.pt and plots/."""

import datetime
import json
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

from cluster import yaml12
from raysim.errors import ConfigError
from raysim.output import write_whole

# Beside the packages of a raysim that was sent as a job: what it was.
ORIGIN = "origin.json"

_PACKAGES = ("ray", "torch", "torchvision", "numpy", "pyarrow", "scikit-learn")


def fresh(parent: str | Path, name: str) -> Path:
    """A new folder, called by `name` and the time."""
    stem = f"{name}-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    copies = 0
    while True:
        folder = Path(parent).expanduser().absolute() / (f"{stem}-{copies}" if copies else stem)
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            copies += 1  # another run began in the same second
        except OSError as error:
            raise ConfigError("output.folder", f"cannot make {folder} ({error.strerror})") from None
        else:
            return folder


def describe(folder: Path, resolved: dict[str, Any]) -> None:
    """Puts into a run's folder its configuration and where it came from."""
    write_config(folder, resolved)
    write_whole(folder / "environment.json", (json.dumps(_environment(), indent=2) + "\n").encode())


def write_config(folder: Path, resolved: dict[str, Any]) -> None:
    """Writes config.yaml, whole or not at all."""
    write_whole(folder / "config.yaml", yaml12.dump(resolved).encode(), durable=True)


def origin() -> dict[str, str | None]:
    """The version of the raysim that runs, and its commit as in environment.json; of one sent as a job, what it was."""
    noted = Path(__file__).parent.parent / ORIGIN
    if noted.is_file():
        found: dict[str, str | None] = json.loads(noted.read_text())
        return found
    return {"raysim": version("raysim"), "commit": _commit()}


def _environment() -> dict[str, Any]:
    raysim = origin()
    return {
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": raysim["commit"],
        "python": platform.python_version(),
        "packages": {"raysim": raysim["raysim"]} | {package: version(package) for package in _PACKAGES},
        "platform": platform.platform(),
    }


def _commit() -> str | None:
    """The commit of the code that runs, marked where files differ from it; None outside a checkout."""
    here = Path(__file__)

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=here.parent, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", here.name)  # installed inside a checkout of something else it is not tracked
        head, changes = git("rev-parse", "HEAD"), git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{head} (with changes)" if changes else head
