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

# The name of the file, beside the packages of a job, that says which version and commit was sent.
ORIGIN = "origin.json"

_PACKAGES = ("ray", "torch", "torchvision", "numpy", "pyarrow", "scikit-learn")


def fresh(parent: str | Path, name: str) -> Path:
    """Makes a new folder, named after `name` and the time, and returns it."""
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
    """Writes a run's configuration, version and commit into its folder."""
    write_config(folder, resolved)
    write_whole(folder / "environment.json", (json.dumps(_environment(), indent=2) + "\n").encode())


def write_config(folder: Path, resolved: dict[str, Any]) -> None:
    """Writes config.yaml atomically."""
    write_whole(folder / "config.yaml", yaml12.dump(resolved).encode(), durable=True)


def origin() -> dict[str, str | None]:
    """Returns the version and commit of this raysim; in a job, those of the checkout that was sent."""
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
    """Returns the commit of this code, marked where files differ from it; None outside a checkout."""
    here = Path(__file__)

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=here.parent, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", here.name)  # fails inside a checkout of another project
        head, changes = git("rev-parse", "HEAD"), git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{head} (with changes)" if changes else head
