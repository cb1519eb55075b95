"""The command `raysim devices`: shows a population of devices and how its rounds would go, without training."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.console import Console

from cluster import forecast, plots
from cluster.experiment import Experiment
from raysim.devices import SECOND_US
from raysim.errors import ConfigError
from server.dispatch import Outcome
from server.fates import FATES

QUARTERS_PER_DAY = 96
ROUNDS = 50


@dataclass(frozen=True)
class Survey:
    """The findings of a survey of devices.

    Attributes:
        on: the share of devices that are on, every quarter of an hour through the first day.
        round_s: the simulated seconds of each played round, waiting included.
        fates: the share of each fate among the invited devices, by name.
        tiers: each speed quarter's share of the accepted devices, the fastest quarter first.
        failed: the number of rounds that failed.
    """

    on: NDArray[np.float64]
    round_s: NDArray[np.float64]
    fates: dict[str, float]
    tiers: NDArray[np.float64]
    failed: int


def survey(experiment: Experiment, rounds: int = ROUNDS) -> Survey:
    """Plays `rounds` rounds of the clock without training. Raises the errors of a run on these devices."""
    if experiment.config.devices is None:
        raise ConfigError("devices", "there are none in this configuration; name a preset, as devices: phones_global")
    everybody = np.arange(experiment.shards.n_clients)
    on = [
        experiment.world.availability.on(everybody, quarter * 900 * SECOND_US, 0).mean()
        for quarter in range(QUARTERS_PER_DAY)
    ]
    dispatcher, exchanges = experiment.world.dispatcher(), forecast.rehearse(experiment)
    clock = dispatcher.start()
    ends, fates, failed = [0.0], dict.fromkeys(FATES, 0), 0
    tier = experiment.world.groupings["tier"]
    tiers = np.zeros(len(tier.names))
    for t in range(rounds):
        before: Outcome | None = None
        for exchange in exchanges:
            before = dispatcher.dispatch(clock, exchange.phase, t, exchange.traffic, before)
            for fate in FATES:
                fates[fate] += int(before.devices[fate])
            if not before.valid:
                failed += 1
                break
            tiers += tier.counts(before.accepted)
        assert before is not None, "a round has a phase"
        dispatcher.round_ended(clock, t, before)
        ends.append(dispatcher.now_s(clock) or 0.0)
    invited = max(1, sum(fates.values()))
    shares = {fate: n / invited for fate, n in fates.items()}
    return Survey(np.array(on), np.diff(ends), shares, tiers / max(1, tiers.sum()), failed)


def show(experiment: Experiment, found: Survey, console: Console) -> None:
    """Prints the population and its rounds."""
    devices, server = experiment.world.population, experiment.config.server
    able = devices.has_memory_N & devices.has_link_N
    speed = np.percentile(devices.sec_per_sample_N * 1000, (10, 50, 90))
    down, up = (np.percentile(bps / 1e6, (10, 50, 90)) for bps in (devices.down_bps_N, devices.up_bps_N))
    seconds = np.percentile(found.round_s, (10, 50, 90))
    console.print(f"devices      {devices.size}, {int((~able).sum())} of them without the memory or a link")
    console.print(
        f"on           {found.on.mean():.1%} of them, {found.on.min():.1%} to {found.on.max():.1%} over a day"
    )
    console.print("             10 % / half / 90 % of devices are below")
    console.print(f"compute      {_three(speed)} ms per gradient on one row")
    console.print(f"down, up     {_three(down)} and {_three(up)} Mbit/s")
    console.print(
        f"a round      {_three(seconds)} simulated seconds (of {len(found.round_s)} played, {found.failed} failed)"
    )
    console.print(
        f"invited      {server.over_select:g} S: "
        + ", ".join(f"{share:.1%} {fate}" for fate, share in found.fates.items() if share)
    )
    console.print(
        "accepted     "
        + " / ".join(f"{share:.1%}" for share in found.tiers)
        + " from the fastest to the slowest quarter"
    )


def draw(experiment: Experiment, found: Survey, out: Path) -> None:
    """Draws availability over a day, speeds, links and round times in one figure."""
    devices = experiment.world.population
    figure = Figure(figsize=(10, 6), layout="constrained")
    (day, speed), (link, rounds) = figure.subplots(2, 2)
    day.plot(np.arange(QUARTERS_PER_DAY) / 4, 100 * found.on)
    day.set(xlabel="hour of the first day (UTC)", ylabel="devices on, %", xlim=(0, 24), xticks=range(0, 25, 6))
    day.set_ylim(bottom=0)
    speed.hist(devices.sec_per_sample_N * 1000, bins=_decades(devices.sec_per_sample_N * 1000))
    speed.set(xscale="log", xlabel="ms per gradient on one row", ylabel="devices")
    for bps, name in ((devices.down_bps_N, "down"), (devices.up_bps_N, "up")):
        link.hist(bps[bps > 0] / 1e6, bins=_decades(bps[bps > 0] / 1e6), histtype="step", linewidth=1.6, label=name)
    link.set(xscale="log", xlabel="Mbit/s", ylabel="devices")
    link.legend(frameon=False)
    rounds.hist(found.round_s, bins=20)
    rounds.set(xlabel="simulated seconds a round", ylabel=f"of {len(found.round_s)} rounds")
    for ax in figure.axes:
        ax.spines[["top", "right"]].set_visible(False)
    plots.save(figure, out)


def _three(values: NDArray[np.float64]) -> str:
    return " / ".join(f"{value:.3g}" for value in values)


def _decades(values: NDArray[np.float64]) -> NDArray[np.float64]:
    low, high = np.log10(values.min()), np.log10(values.max())
    return np.logspace(low - 0.01, high + 0.01, 40)
