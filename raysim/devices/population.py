"""What devices are like: speed, memory, link and failure, for the whole population as arrays.

Every property of client k is a function of (seed, property, k); every fluctuation of (seed, kind, round, phase, k).
Nothing is a Python object per client, so a million of them are a few arrays.

Legend: N clients of the population, C clients of a phase. Sources of the numbers: A. Ignatov et al., AI Benchmark, 2019
(phone speeds); F. Lai et al., FedScale, 2022 (links); C. Yang et al., FLASH, 2021 (fluctuation within a user);
K. Bonawitz et al., "Towards federated learning at scale", 2019 (drop-out).
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, field_validator, model_validator
from scipy.special import ndtri

from raysim import draws
from raysim.devices.traces import (
    SECOND_US,
    DeviceTable,
    Workload,
    read_device_table,
    read_fedscale_capacity,
    read_flash_devices,
    read_flash_links,
)
from raysim.errors import ConfigError
from raysim.registry import STRICT

Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]


class ComputeConfig(BaseModel):
    """Section `devices.compute`.

    Attributes:
        median_s_per_sample: seconds for one gradient on one row.
        sigma: of its logarithm over devices.
        jitter_cv: coefficient of variation from task to task, lognormal with mean 1.
    """

    model_config = STRICT

    median_s_per_sample: Positive = 0.06
    sigma: NonNegative = 0.78
    jitter_cv: NonNegative = 0.2


class LinkConfig(BaseModel):
    """Section `devices.link`.

    Attributes:
        median_down_mbps: megabits a second to the device.
        sigma: of its logarithm over devices.
        min_mbps, max_mbps: what it is clipped to.
        up_ratio: up over down; about 0.5 on WiFi, 0.3 on cellular.
        jitter_cv: coefficient of variation from transfer to transfer, lognormal with mean 1 on its duration.
        rtt_s: seconds before the first byte arrives.
    """

    model_config = STRICT

    median_down_mbps: Positive = 6.1
    sigma: NonNegative = 1.1
    min_mbps: NonNegative = 1.0
    max_mbps: Positive = 204.0
    up_ratio: Positive = 0.5
    jitter_cv: NonNegative = 0.4
    rtt_s: NonNegative = 0.04

    @model_validator(mode="after")
    def _ordered(self) -> "LinkConfig":
        if self.min_mbps > self.max_mbps:
            raise ValueError(f"min_mbps {self.min_mbps:g} is above max_mbps {self.max_mbps:g}")
        return self


class MemoryConfig(BaseModel):
    """Section `devices.memory`.

    Attributes:
        required_mb: devices with less memory are never eligible. It needs a table that has memory.
    """

    model_config = STRICT

    required_mb: NonNegative = 0.0


class FailureConfig(BaseModel):
    """Section `devices.failure`: crashes, beside going offline, which is the availability's own business.

    Attributes:
        hazard_per_s: rate of an exponential time to failure; 3.5e-4 loses 5 % of 150 s tasks.
        p_start: probability of failing at once.
        on_offline: whether turning off ends a task (`abort`, as Google's devices do) or it goes on when the device is
            back (`pause`, as in FLASH), up to the deadline.
    """

    model_config = STRICT

    hazard_per_s: NonNegative = 3.5e-4
    p_start: Annotated[float, Field(ge=0, le=1)] = 0.0
    on_offline: Literal["abort", "pause"] = "abort"


class EnergyConfig(BaseModel):
    """Section `devices.energy`: powers in watts, which have no defaults since they differ from phone to phone.

    Attributes:
        compute_w: while computing.
        rx_w, tx_w: while receiving and sending.
    """

    model_config = STRICT

    compute_w: NonNegative
    rx_w: NonNegative
    tx_w: NonNegative


class TableConfig(BaseModel):
    """Section `devices.table`, measured devices; a path alone is one of format `table`.

    Attributes:
        path: of the file.
        format: `table` is CSV or Parquet with columns ms_per_sample, ram_gb, down_kbps, up_kbps, some of them;
            `fedscale` a client_device_capacity file; `flash_links` a speed_distri.json; `flash_devices` FLASH's list of
            phones, raw_ai_benchmark_list.json.
        unit: of flash_links, whose source is ambiguous.
        training_factor: gradient time over inference time, for fedscale.
        workload: whose training times FLASH measured, for flash_devices, which needs it: femnist and celeba are
            convolutional networks on images, reddit and shakespeare recurrent ones on text.
        codes: path of FLASH's real2benchmark.json, for flash_devices: phones are as frequent as there; without it, as
            where FLASH does not know a phone's model.
    """

    model_config = STRICT

    path: str
    format: Literal["table", "fedscale", "flash_links", "flash_devices"] = "table"
    unit: Literal["kbit/s", "kB/s"] | None = None
    training_factor: Positive = 3.0
    workload: Workload | None = None
    codes: str | None = None

    @model_validator(mode="after")
    def _of_format(self) -> "TableConfig":
        if (self.unit is not None) != (self.format == "flash_links"):
            raise ValueError("unit belongs to format: flash_links, which needs it: kbit/s or kB/s")
        if (self.workload is not None) != (self.format == "flash_devices"):
            known = ", ".join(get_args(Workload))
            raise ValueError(f"workload belongs to format: flash_devices, which needs it: one of {known}")
        if self.codes is not None and self.format != "flash_devices":
            raise ValueError("codes belongs to format: flash_devices")
        return self

    def read(self) -> DeviceTable:
        """The devices. Raises DataError."""
        if self.format == "fedscale":
            return read_fedscale_capacity(self.path, self.training_factor)
        if self.unit is not None:
            return read_flash_links(self.path, self.unit)
        if self.workload is not None:
            return read_flash_devices(self.path, self.workload, self.codes)
        return read_device_table(self.path)


class DeviceModel(BaseModel):
    """Everything of section `devices` but availability.

    Attributes:
        seed: of all device chance; separate from the experiment's seed.
        table: measured devices; what it has is drawn row by row, jointly, in place of the distributions.
        energy: powers, with which the ledger books joules.
    """

    model_config = STRICT

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    table: TableConfig | None = None
    compute: ComputeConfig = ComputeConfig()
    memory: MemoryConfig = MemoryConfig()
    link: LinkConfig = LinkConfig()
    failure: FailureConfig = FailureConfig()
    energy: EnergyConfig | None = None

    @field_validator("table", mode="before")
    @classmethod
    def _path_alone(cls, table: Any) -> Any:
        return {"path": table} if isinstance(table, str) else table


@dataclass(frozen=True)
class Tasks:
    """What one phase's tasks would take if nothing went wrong, int64 microseconds, shape (C,).

    Attributes:
        wait_us: before the first byte.
        down_us, compute_us, up_us: the three parts, one after another.
        fail_us: when the device fails, counted from the invitation; huge if never.
    """

    wait_us: NDArray[np.int64]
    down_us: NDArray[np.int64]
    compute_us: NDArray[np.int64]
    up_us: NDArray[np.int64]
    fail_us: NDArray[np.int64]

    @property
    def total_us(self) -> NDArray[np.int64]:
        """From invitation to arrival."""
        return self.wait_us + self.down_us + self.compute_us + self.up_us


@dataclass(frozen=True, eq=False)
class Population:
    """N devices.

    Attributes:
        model: their distributions.
        size: N.

    Raises:
        DataError: the table is missing or wrong.
        ConfigError: memory is required, and there is no table that has it.
    """

    model: DeviceModel
    size: int

    def __post_init__(self) -> None:
        table = self._table  # so that a bad file is met now, not in the middle of a run
        required = self.model.memory.required_mb
        if required > 0 and (table is None or table.ram_mb is None):
            raise ConfigError(
                "devices.memory.required_mb",
                f"is {required:g}, but no memory is known; give a devices.table with memory, such as a column ram_gb",
            )

    @cached_property
    def sec_per_sample_N(self) -> NDArray[np.float64]:
        """Seconds for one gradient on one row."""
        if self._table is not None and self._table.sec_per_sample is not None:
            return self._table.sec_per_sample[self._row_N]
        compute = self.model.compute
        return self._lognormal("speed", compute.median_s_per_sample, compute.sigma)

    @cached_property
    def down_bps_N(self) -> NDArray[np.float64]:
        """Bits a second to the device; 0 is no link."""
        if self._table is not None and self._table.down_bps is not None:
            return self._table.down_bps[self._row_N]
        link = self.model.link
        return 1e6 * np.clip(self._lognormal("link", link.median_down_mbps, link.sigma), link.min_mbps, link.max_mbps)

    @cached_property
    def up_bps_N(self) -> NDArray[np.float64]:
        """Bits a second from the device; 0 is no link."""
        if self._table is not None and self._table.up_bps is not None:
            return self._table.up_bps[self._row_N]
        return self.model.link.up_ratio * self.down_bps_N

    @cached_property
    def has_memory_N(self) -> NDArray[np.bool_]:
        """Whether the device has the required memory."""
        if self._table is None or self._table.ram_mb is None:
            return np.ones(self.size, dtype=bool)
        return self._table.ram_mb[self._row_N] >= self.model.memory.required_mb

    @cached_property
    def has_link_N(self) -> NDArray[np.bool_]:
        """Whether anything can be sent to the device and back."""
        return (self.down_bps_N > 0) & (self.up_bps_N > 0)

    def tasks(
        self,
        clients_C: NDArray[np.int64],
        round: int,
        phase: str,
        samples_C: NDArray[np.int64],
        bytes_down_C: NDArray[np.int64],
        bytes_up: int,
    ) -> Tasks:
        """Durations of one task each.

        Args:
            clients_C: who is invited.
            round, phase: of the task; other fluctuations than any other's.
            samples_C: gradients on one row that each computes.
            bytes_down_C, bytes_up: that each receives and sends.
        """
        seed, where = self.model.seed, (round, draws.code(phase), clients_C)

        def jitter(kind: str, cv: float) -> NDArray[np.float64]:
            sigma = math.sqrt(math.log1p(cv**2))
            return np.exp(sigma * _normal(seed, kind, *where) - sigma**2 / 2)

        link, failure = self.model.link, self.model.failure
        compute_s = (
            samples_C * self.sec_per_sample_N[clients_C] * jitter("jitter compute", self.model.compute.jitter_cv)
        )
        down_s = 8 * bytes_down_C / self.down_bps_N[clients_C] * jitter("jitter down", link.jitter_cv)
        up_s = 8 * bytes_up / self.up_bps_N[clients_C] * jitter("jitter up", link.jitter_cv)
        with np.errstate(divide="ignore"):  # no hazard, no failure
            fail_s = -np.log1p(-_inside(draws.uniform(seed, "failure", *where))) / failure.hazard_per_s
        fail_s[draws.uniform(seed, "start", *where) < failure.p_start] = 0.0
        wait_s = np.full(len(clients_C), link.rtt_s)
        return Tasks(*(_microseconds(s) for s in (wait_s, down_s, compute_s, up_s, fail_s)))

    def _lognormal(self, kind: str, median: float, sigma: float) -> NDArray[np.float64]:
        return median * np.exp(sigma * _normal(self.model.seed, kind, np.arange(self.size)))

    @cached_property
    def _table(self) -> DeviceTable | None:
        return None if self.model.table is None else self.model.table.read()

    @cached_property
    def _row_N(self) -> NDArray[np.int64]:
        """The table's row of each device; all columns of one row go together, since fast phones have more memory."""
        assert self._table is not None
        u = draws.uniform(self.model.seed, "device row", np.arange(self.size))
        if self._table.weights is None:
            row: NDArray[np.int64] = (u * len(self._table)).astype(np.int64)
            return row
        bounds = np.cumsum(self._table.weights)
        return np.searchsorted(bounds[:-1] / bounds[-1], u, side="right")


# Longer than any simulation, and far from the end of int64, so that sums of a few do not overflow.
FOREVER_US = 2**60


def _microseconds(seconds: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.ceil(np.minimum(seconds * SECOND_US, FOREVER_US)).astype(np.int64)


def _normal(seed: int, purpose: str, *counters: draws.Counter) -> NDArray[np.float64]:
    """Standard normal numbers."""
    return ndtri(_inside(draws.uniform(seed, purpose, *counters)))  # type: ignore[no-any-return]


def _inside(u: NDArray[np.float64]) -> NDArray[np.float64]:
    """Uniform numbers on [0, 1) moved off 0, which would give an infinity or a NaN."""
    return np.maximum(u, 2.0**-54)
