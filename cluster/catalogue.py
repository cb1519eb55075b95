"""The catalogue of `raysim list`: the names that a configuration can use, and the experiments that come with raysim."""

import textwrap
from pathlib import Path

from rich.console import Console

from cluster import variants
from cluster.loggers import LOGGERS
from cluster.presets import PRESETS
from raysim.algorithms import ALGORITHMS
from raysim.data import PARTITIONERS, SOURCES
from raysim.devices import AVAILABILITY
from raysim.devices.traces import TRACE_FORMATS
from raysim.models import MODELS
from raysim.problems import PROBLEMS

REGISTRIES = (ALGORITHMS, PROBLEMS, MODELS, SOURCES, PARTITIONERS, AVAILABILITY, TRACE_FORMATS, LOGGERS)


def show(console: Console) -> None:
    """Prints each registry's names with a line each, then the shipped experiments by file."""
    tables = {registry.kind: registry.lines() for registry in REGISTRIES}
    tables["devices.preset"] = [(name, line) for name, (line, _) in PRESETS.items()]
    for kind, lines in tables.items():
        console.print(kind)
        width = max(len(name) for name, _ in lines)
        for name, line in lines:
            console.print(f"  {name:<{width}}  {line}")
    console.print("One of your own is named package.module:Class.")
    if not variants.SHIPPED.is_dir():
        return
    console.print("experiments, each run by its whole name: raysim run configs/cd_mage/auc_mnist_cd_mage.yaml")
    for file, experiments in variants.listed(variants.SHIPPED):
        place = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
        console.print(f"  {place}  {experiments.description}")
        names = ", ".join(experiments.variants)
        console.print(textwrap.indent(textwrap.fill(names, 112, break_on_hyphens=False), " " * 6))
