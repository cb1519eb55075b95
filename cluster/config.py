"""The configuration of an experiment: one YAML file, read into typed models. Every key is a field of one of them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from clients.placement import ClientsConfig, Count
from cluster import presets, variants
from cluster.tree import override, parted
from raysim.devices import DeviceModel
from raysim.errors import ConfigError
from raysim.registry import STRICT, plain, validated
from server.policy import PolicyConfig


class Choice(BaseModel):
    """A named thing and its settings: `name` is a registered one or ``package.module:Name``."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    name: str

    @property
    def settings(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class EvaluateConfig(BaseModel):
    """Section `evaluate`.

    Attributes:
        every: rounds between evaluations; there is one before the first round and one after the last as well.
        splits: `train` is the pool of all clients' rows, `test` the held-out rows.
        target: of the problem's headline metric on the last of the splits; the summary says when it was reached.
        stop_at_target: whether the run is over then; `rounds` is when it is in any case.
        pictures: evaluations between pictures, for problems that have some to show; the first and the last has them.
    """

    model_config = STRICT

    every: Count = 10
    splits: Annotated[tuple[Literal["train", "test"], ...], Field(min_length=1)] = ("train", "test")
    target: float | None = None
    stop_at_target: bool = False
    pictures: Count = 5

    @model_validator(mode="after")
    def _can_be(self) -> "EvaluateConfig":
        if self.stop_at_target and self.target is None:
            raise ValueError("stop_at_target needs a target")
        return self


class DevicesConfig(DeviceModel):
    """Section `devices`: without it every client is there, answers at once and never fails, and there is no clock.

    Attributes:
        preset: a population by name, laid under the keys given here; `raysim list` shows them.
        availability: when devices are on.
    """

    preset: str | None = None
    availability: Choice = Choice(name="markov")


class CheckpointConfig(BaseModel):
    """Section `checkpoint`: what a run goes on from if it is broken off.

    Attributes:
        every: rounds between checkpoints; there is one after the last round, and when a run is stopped, as well. `auto`
            is ten, or as many more as it takes for writing them to be a fiftieth of the time.
        keep: how many of the latest are kept, besides the one with the best headline metric.
        folder: where; None is the run folder's checkpoints/. A path, or a URL that pyarrow or fsspec knows (s3://...).
    """

    model_config = STRICT

    every: Count | Literal["auto"] = "auto"
    keep: Count = 2
    folder: str | None = None


class RayConfig(BaseModel):
    """Section `ray`.

    Attributes:
        address: of a running cluster ("auto" finds the one on this machine). Without it RAY_ADDRESS counts, as under
            `ray job submit`; without that, Ray is started here for this run.
        wait_s: how long a run waits for nodes that it needs and the cluster does not have yet; an autoscaler is asked
            for them. 0 refuses at once. For room on nodes that are there it waits ten minutes, or this if it is longer.
    """

    model_config = STRICT

    address: str | None = None
    wait_s: Annotated[float, Field(ge=0)] = 0.0


class OutputConfig(BaseModel):
    """Section `output`.

    Attributes:
        folder: where run folders are made.
        cache: where shard files are kept, on every node of a cluster the same path; None is the user's cache folder, or
            RAYSIM_CACHE.
        loggers: who else is told of every round and evaluation: `tensorboard` writes into the run folder, `mlflow` to
            MLFLOW_TRACKING_URI. Each has a package of its own to be installed.
    """

    model_config = STRICT

    folder: str = "runs"
    cache: str | None = None
    loggers: tuple[Literal["tensorboard", "mlflow"], ...] = ()


class Config(BaseModel):
    """A whole experiment.

    Attributes:
        name: of the run folder.
        seed: of everything: data split, partition, initial point, cohorts, minibatches.
        rounds: T.
        precision: of models, gradients and messages.
        data, partition, problem, model, algorithm: what is run; `raysim list` shows the names.
        devices: who is there and how fast, and with it a simulated clock.
        server: what is done about devices that come late or not at all.
    """

    model_config = STRICT

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    rounds: Count
    precision: Literal["float32", "float64"] = "float32"
    data: Choice
    partition: Choice
    problem: Choice
    model: Choice | None = None
    algorithm: Choice
    devices: DevicesConfig | None = None
    server: PolicyConfig = PolicyConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    clients: ClientsConfig = ClientsConfig()
    ray: RayConfig = RayConfig()
    output: OutputConfig = OutputConfig()


def load_config(source: str | Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> Config:
    """Reads a configuration.

    Args:
        source: the path of a YAML file, the name of a variant in an experiments file (see `cluster.variants`), or a
            configuration made in Python, which is left as it is.
        overrides: each ``key.sub=value``, the value in YAML; a mapping replaces a whole section.

    Raises:
        ConfigError: naming the key, and the nearest known one where it is unknown.
    """
    tree = plain(source) if isinstance(source, Mapping) else variants.read(Path(source))
    for given in overrides:
        override(tree, given)
    try:
        config: Config = validated(Config, presets.expand(tree), key="", owner="every configuration")
    except ConfigError as error:
        found = None if isinstance(source, Mapping) else variants.find(Path(source))
        if found is None or any(_touches(parted(given)[0], error.key) for given in overrides):
            raise
        raise ConfigError(error.key, f"{error.message} ({found})") from None
    return config


def _touches(path: str, key: str) -> bool:
    """Whether one of two dotted keys is the other, or leads to it."""
    return f"{path}.".startswith(f"{key}.") or f"{key}.".startswith(f"{path}.")
