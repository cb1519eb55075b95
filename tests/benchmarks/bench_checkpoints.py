"""What checkpoints cost: the same run with and without them, some rounds of the one and some of the other in turn.

    RAYSIM_DATA_ROOT=data python -m tests.benchmarks.bench_checkpoints CONFIG... [--blocks 6]

Without means one after the last round alone. In one process, one thread; the times of `blocks` times twenty rounds, the
first twenty not counted, all together. `MB` is what the last checkpoint consists of.
"""

import argparse
import contextlib
import itertools
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path

from clients.fleet import InProcessFleet
from cluster.config import load_config
from cluster.experiment import Experiment
from server.job import Progress
from server.rounds import Server

BLOCK = 20


def rounds(config: Path, folder: Path, every: str, blocks: int) -> Generator[Progress, None, None]:
    folder.mkdir()
    n = BLOCK * (blocks + 2)
    # No evaluation but the first and the last, which are not counted.
    sections = [f"rounds={n}", f"evaluate.every={10 * n}", f"checkpoint.every={every}", "clients.fleet=in_process"]
    made = Experiment.build(load_config(config, sections))
    playing = Server(made.job(folder), InProcessFleet(made.engine())).run()
    next(playing)
    return playing


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("configs", nargs="+", type=Path)
    parser.add_argument("--blocks", type=int, default=6)
    given = parser.parse_args()
    for config in given.configs:
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            ways, took = {}, {}
            for name, every in (("with", "auto"), ("without", "1000000")):
                ways[name] = stack.enter_context(
                    contextlib.closing(rounds(config, Path(folder) / name, every, given.blocks))
                )
                took[name] = 0.0
            for block in range(given.blocks + 1):
                for name, playing in ways.items():
                    started = time.perf_counter()
                    list(itertools.islice(playing, BLOCK))
                    took[name] += (time.perf_counter() - started) if block else 0.0
            written = list((Path(folder) / "with" / "checkpoints").iterdir())
            latest = max(path.name[:8] for path in written)
            size = sum(path.stat().st_size for path in written if path.name.startswith(latest)) / 1e6
        a, b = (1000 * took[name] / BLOCK / given.blocks for name in ("with", "without"))
        line = f"{config.stem}: round {b:.1f} ms, with checkpoints {a:.1f} ms ({a / b - 1:+.1%}), {size:.1f} MB"
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
