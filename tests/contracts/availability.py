"""Tables the availability models: one row buys a model every contract of tests/contracts/test_availability.py."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from raysim import draws
from raysim.devices import AVAILABILITY, Availability

Recording = list[tuple[list[list[int]], int]]  # (on-times, horizon) of each device, in seconds


@dataclass(frozen=True)
class Row:
    """Holds what the contracts must be told of an availability model.

    Attributes:
        model: its registered name, or ``package.module:Name``.
        settings: its section in a configuration, without the name.
        share: the mean over clients and time of the share of on-time; None where on-time is not stationary.
        session_s: the mean length of an on-time in seconds; None where it is unknown or there are no on-times that end.
        has_time: whether the answer at an instant ties the answer at later ones; otherwise nothing turns off or on.
        foresees: whether next_change knows the next change; otherwise it is always None.
        has_chance: whether another seed gives other answers.
        recording: devices for a file of format ``intervals`` that the settings name as their path.
    """

    model: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    share: float | None = None
    session_s: float | None = None
    has_time: bool = True
    foresees: bool = False
    has_chance: bool = True
    recording: Recording | None = None

    def build(self, folder: Path, clients: int, seed: int = 3) -> Availability:
        """Returns the model; client k's label score is the same for any number of clients."""
        settings = dict(self.settings)
        if self.recording is not None:
            path = folder / "recording.json"
            devices = {str(i): {"charging": on, "horizon_s": h} for i, (on, h) in enumerate(self.recording)}
            path.write_text(json.dumps({"devices": devices}))
            settings |= {"path": str(path), "format": "intervals"}
        scores = draws.uniform(0, "scores", np.arange(clients))
        made: Availability = AVAILABILITY.build(self.model, settings, seed=seed, clients=clients, scores=scores)
        return made


def _recording(devices: int, sessions: int) -> Recording:
    """Draws devices with as many on-times each, no two of which touch, within 40,000 s or a little more."""
    rng = np.random.default_rng(0)
    edges = [np.sort(rng.choice(np.arange(1, 40_000), 2 * sessions, replace=False)) for _ in range(devices)]
    return [(e.reshape(sessions, 2).tolist(), 40_000 + 100 * i) for i, e in enumerate(edges)]


PHONES = _recording(devices=40, sessions=5)
PHONES_SHARE = float(np.mean([sum(b - a for a, b in on) / horizon for on, horizon in PHONES]))
PHONES_SESSION_S = float(np.mean([b - a for on, _ in PHONES for a, b in on]))
BETA_MEAN = 1.42 / (1.42 + 5.92)
WORLD = [{"offset_h": 0.0}, {"offset_h": 8.0}]

TABLE = {
    "always": Row("always", share=1.0, has_time=False, has_chance=False),
    "bernoulli": Row("bernoulli", share=BETA_MEAN, has_time=False),
    "bernoulli, labels": Row("bernoulli", {"share": 0.6, "label": {"p_min": 0.2}}, share=0.6 * 0.6, has_time=False),
    "markov": Row("markov", share=BETA_MEAN, session_s=6400.0),
    "markov, short sessions": Row("markov", {"mean_on_s": 600.0}, share=BETA_MEAN, session_s=600.0),
    "markov, one share": Row("markov", {"share": 0.2, "mean_on_s": 600.0}, share=0.2, session_s=600.0),
    "markov, a larger share": Row("markov", {"share": 0.4, "mean_on_s": 600.0}, share=0.4, session_s=600.0),
    "markov, labels": Row("markov", {"share": 0.6, "label": {"p_min": 0.2}}, share=0.6 * 0.6, session_s=6400.0),
    "markov, drawn shares and labels": Row(
        "markov", {"label": {"p_min": 0.1}}, share=BETA_MEAN * 0.55, session_s=6400.0
    ),
    "markov, daily rhythm": Row(
        "markov", {"share": 0.5, "mean_on_s": 600.0, "diurnal": {"amplitude": 0.7}}, share=0.5
    ),
    "markov, weak daily rhythm": Row(
        "markov", {"share": 0.9, "mean_on_s": 600.0, "diurnal": {"amplitude": 0.1}}, share=0.9
    ),
    "markov, cut daily rhythm": Row("markov", {"share": 0.9, "mean_on_s": 600.0, "diurnal": {"amplitude": 0.2}}),
    "markov, shares near 0 and 1 with a daily rhythm": Row(
        "markov", {"share": {"beta": [0.5, 0.5]}, "mean_on_s": 600.0, "diurnal": {"amplitude": 0.7}}
    ),
    "markov, time zones": Row("markov", {"share": {"beta": [0.3, 0.3]}, "diurnal": {"amplitude": 0.9, "zones": WORLD}}),
    "markov, always on but for its rhythm": Row(
        "markov", {"share": 1.0, "mean_on_s": 600.0, "diurnal": {"amplitude": 0.3, "zones": [{"offset_h": 10.0}]}}
    ),
    "cyclic": Row(
        "cyclic", {"groups": 7, "period_s": 1000.5}, share=1 / 7, session_s=1000.5, foresees=True, has_chance=False
    ),
    "cyclic, by rounds": Row("cyclic", {"groups": 7}, share=1 / 7, has_time=False, has_chance=False),
    "trace": Row("trace", share=PHONES_SHARE, session_s=PHONES_SESSION_S, foresees=True, recording=PHONES),
    "trace, shifted": Row(
        "trace", {"shift": True}, share=PHONES_SHARE, session_s=PHONES_SESSION_S, foresees=True, recording=PHONES
    ),
    "trace, held": Row("trace", {"end": "hold", "shift": True}, foresees=True, recording=PHONES),
}  # fmt: skip
