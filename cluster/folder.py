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

_PACKAGES = ("raysim", "ray", "torch", "torchvision", "numpy", "pyarrow", "scikit-learn")


def make(parent: str | Path, name: str, resolved: dict[str, Any]) -> Path:
    """A new folder for a run of `name`, holding its configuration and where it came from."""
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    for copy in range(1000):
        folder = Path(parent).expanduser().absolute() / (f"{name}-{stamp}" if not copy else f"{name}-{stamp}-{copy}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            if not folder.is_dir():
                raise ConfigError("output.folder", f"{parent} is not a folder") from None
            continue
        except OSError as error:
            raise ConfigError("output.folder", f"cannot make {folder} ({error.strerror})") from None
        break
    (folder / "config.yaml").write_text(yaml12.dump(resolved))
    (folder / "environment.json").write_text(json.dumps(_environment(), indent=2) + "\n")
    return folder


def _environment() -> dict[str, Any]:
    return {
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "python": platform.python_version(),
        "packages": {package: version(package) for package in _PACKAGES},
        "platform": platform.platform(),
    }


def _commit() -> str | None:
    """The commit of the code that runs, marked where files differ from it; None outside a checkout."""
    here = Path(__file__).parent
    try:
        head, status = (
            subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=True).stdout.strip()
            for words in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{head} (with changes)" if status else head
