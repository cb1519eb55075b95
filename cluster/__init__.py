"""Starts experiments: from Python here, from a shell with the console script `raysim`.

from cluster import load_config, run

result = run(load_config("configs/quickstart.yaml", ["rounds=20"]))
print(result.folder, result.final("auc"))
"""

from cluster.config import Config, load_config
from cluster.run import Result, resume, run

__all__ = ["Config", "Result", "load_config", "resume", "run"]
