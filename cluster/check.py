"""The command `raysim check`: what an experiment would do, before it does it."""

import numpy as np
from rich.console import Console

from cluster import connect, forecast, yaml12
from cluster.experiment import Experiment
from cluster.progress import size


def show(experiment: Experiment, console: Console) -> None:
    """Prints the resolved configuration and the plan. Raises what a run would raise before its first round."""
    shards, config = experiment.shards, experiment.config
    console.print(yaml12.dump(experiment.resolved).rstrip())
    rows = shards.rows_N
    console.print(
        f"\nclients      {shards.n_clients}: {rows.min()} / {int(np.median(rows))} / {rows.max()} rows "
        f"(min / median / max), {int((rows == 0).sum())} empty, {shards.single_class_clients()} with a single class"
    )
    console.print(f"rows         {len(shards.train.labels)} train, {len(shards.test.labels)} test")
    z = experiment.problem.init(config.seed)
    console.print(f"floats       |x| = {z.x.numel():,}, |y| = {z.y.numel():,}")
    traffic = forecast.rehearse(experiment)
    for part in traffic:
        moved = f"{size(part.bytes_down)} down, {size(part.bytes_up)} up"
        console.print(f"phase        {part.phase.name}: {part.clients} clients, {moved}")
    down, up = sum(p.bytes_down for p in traffic), sum(p.bytes_up for p in traffic)
    console.print(f"a round      {size(down)} down, {size(up)} up ({down:,} and {up:,} bytes)")
    console.print(f"{config.rounds:<6} rounds {size(down * config.rounds)} down, {size(up * config.rounds)} up")
    console.print(f"actors       {_placed(experiment)}")


def _placed(experiment: Experiment) -> str:
    config = experiment.config
    if config.clients.fleet == "in_process":
        return "none, all clients in this process"
    if not connect.starts_here(config.ray.address):
        return f"decided by what the cluster at {connect.target(config.ray.address)} has"
    machine = connect.machine()
    placement = forecast.placement(experiment, [machine])
    memory = f"{size(placement.memory_bytes)} of memory wanted, {size(machine.memory_bytes)} available"
    return f"{placement.words}: {memory}"
