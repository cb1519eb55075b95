"""The configuration of an experiment, read from YAML into typed models. Every key is a field of one of them."""

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
    """Names a thing and gives its settings: `name` is a registered one or ``package.module:Name``."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    name: str

    @property
    def settings(self) -> dict[str, Any]:
        """The settings beside the name."""
        return dict(self.model_extra or {})


class EvaluateConfig(BaseModel):
    """Holds section `evaluate`: how often a run is evaluated, and on which rows.

    Attributes:
        every: rounds between evaluations. A run is also evaluated before its first round and after its last.
        splits: the rows that are evaluated: `train` is the pool of all clients' rows, `test` the held-out rows.
        target: a value of the problem's headline metric on the last of the splits. The summary says when the run
            reached it.
        stop_at_target: end the run at the first evaluation that reaches the target; `rounds` is then the most that a
            run plays.
        pictures: evaluations between pictures, for problems that have some to show. The first and the last evaluation
            have them too.
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
    """Holds section `devices`. Without it every client is there, answers at once and never fails; there is no clock.

    Attributes:
        preset: the name of a population whose values apply to all keys that are not given; `raysim list` shows them.
        availability: the model of when devices are on, by its `name`, and its settings.
        seed: the seed of all chance in devices. Invitations are drawn with the experiment's `seed`.
        compute: how fast devices compute gradients.
        link: how fast devices send and receive.
        memory: how much memory a device needs to take part.
        failure: how often devices fail while they work.
        energy: the power that devices draw. With it the ledger books joules.
        table: measured devices, drawn row by row in place of the distributions; a path alone is a file of format
            `table`.
    """

    preset: str | None = None
    availability: Choice = Choice(name="markov")


class CheckpointConfig(BaseModel):
    """Holds section `checkpoint`: from what a run goes on after it was broken off.

    Attributes:
        every: rounds between checkpoints. There is one after the last round as well, and when a run is stopped. `auto`
            is ten rounds, or as many more as keep the time for writing below 2 % of the run's.
        keep: how many of the latest checkpoints are kept, besides the one with the best headline metric.
        folder: where each run makes a folder for its checkpoints: a path, or a URL that pyarrow or fsspec knows
            (s3://...). Without one, checkpoints lie in the run folder's `checkpoints/`.
    """

    model_config = STRICT

    every: Count | Literal["auto"] = "auto"
    keep: Count = 2
    folder: str | None = None


class RayConfig(BaseModel):
    """Holds section `ray`: the cluster that a run uses.

    Attributes:
        address: the address of a running cluster; `auto` finds the one on this machine. Without an address RAY_ADDRESS
            counts, as under `ray job submit`; without that, Ray is started on this machine for the run.
        wait_s: how many seconds a run waits for nodes that it needs and the cluster does not have yet, which an
            autoscaler is asked for. 0 refuses the run at once. For room on nodes that are there a run waits ten
            minutes, or this long if it is longer.
    """

    model_config = STRICT

    address: str | None = None
    wait_s: Annotated[float, Field(ge=0)] = 0.0


class OutputConfig(BaseModel):
    """Holds section `output`: where results go.

    Attributes:
        folder: the folder in which run folders are made.
        cache: the folder in which shard files are kept, the same path on every node of a cluster. Without one it is
            RAYSIM_CACHE, or else the user's cache folder.
        loggers: programs that are told of every round and evaluation: `tensorboard` writes into the run folder,
            `mlflow` to MLFLOW_TRACKING_URI; each needs a package of its own to be installed. A Logger of your own is
            named ``package.module:Name``.
    """

    model_config = STRICT

    folder: str = "runs"
    cache: str | None = None
    loggers: tuple[str, ...] = ()


class Config(BaseModel):
    """Holds a whole experiment.

    Attributes:
        name: the experiment's name, of letters, digits, and `.`, `_` and `-`. The run folder is
            `<output.folder>/<name>-<time>`.
        seed: the seed of everything: data split, partition, initial point, cohorts and minibatches.
        rounds: T, how many rounds are played.
        precision: the precision of models, gradients and messages.
        data, partition, problem, model, algorithm: what is run: a `name`, which `raysim list` shows, and the settings
            that belong to it.
        devices: who is there and how fast, and with it a simulated clock: a preset's name, or a section.
        server: what the server does about devices that come late or not at all, and about results that cannot be used.
        evaluate: how often the run is evaluated, and on which rows.
        checkpoint: from what the run goes on after it was broken off.
        clients: which processes compute for the clients.
        ray: the cluster that the run uses.
        output: where results go.
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
    """Returns whether one of two dotted keys is the other, or leads to it."""
    return f"{path}.".startswith(f"{key}.") or f"{key}.".startswith(f"{path}.")
