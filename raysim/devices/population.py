"""Models what devices are like: speed, memory, link and failure, for the whole population as arrays.

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
from raysim.devices.clock import FOREVER_US, SECOND_US
from raysim.devices.tables import (
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
    """Holds section `devices.compute`.

    Attributes:
        median_s_per_sample: the median over devices of the seconds for one gradient on one row, which is lognormal.
        sigma: the standard deviation of its logarithm over devices.
        jitter_cv: the coefficient of variation from task to task, lognormal with mean 1.
    """

    model_config = STRICT

    median_s_per_sample: Positive = 0.06
    sigma: NonNegative = 0.78
    jitter_cv: NonNegative = 0.2


class LinkConfig(BaseModel):
    """Holds section `devices.link`.

    Attributes:
        median_down_mbps: the median over devices of the megabits a second to the device, which is lognormal.
        sigma: the standard deviation of its logarithm over devices.
        min_mbps, max_mbps: the range that it is clipped to.
        up_ratio: the speed up over the speed down; about 0.5 on WiFi, 0.3 on cellular.
        jitter_cv: the coefficient of variation of a duration from transfer to transfer, lognormal with mean 1.
        rtt_s: the seconds before the first byte arrives.
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
    """Holds section `devices.memory`.

    Attributes:
        required_mb: devices with less memory are never eligible. The key needs a table that has memory.
    """

    model_config = STRICT

    required_mb: NonNegative = 0.0


class FailureConfig(BaseModel):
    """Holds section `devices.failure`: how devices crash, and what becomes of the task of one that turns off.

    Attributes:
        hazard_per_s: the rate of an exponential time to failure; 3.5e-4 loses 5 % of 150 s tasks.
        p_start: the probability of failing at once.
        on_offline: `abort` ends a task when its device turns off, as Google's devices do; `pause` lets it go on when
            the device is back, up to the deadline, as in FLASH.
    """

    model_config = STRICT

    hazard_per_s: NonNegative = 3.5e-4
    p_start: Annotated[float, Field(ge=0, le=1)] = 0.0
    on_offline: Literal["abort", "pause"] = "abort"


class EnergyConfig(BaseModel):
    """Holds section `devices.energy`: powers in watts, which have no defaults since they differ from phone to phone.

    Attributes:
        compute_w: the power while computing.
        rx_w, tx_w: the power while receiving and while sending.
    """

    model_config = STRICT

    compute_w: NonNegative
    rx_w: NonNegative
    tx_w: NonNegative


class TableConfig(BaseModel):
    """Holds section `devices.table`, measured devices; a path alone is a file of format `table`.

    Attributes:
        path: the file.
        format: `table` is CSV or Parquet with columns ms_per_sample, ram_gb, down_kbps, up_kbps, some of them;
            `fedscale` a client_device_capacity file; `flash_links` a speed_distri.json; `flash_devices` FLASH's list of
            phones, raw_ai_benchmark_list.json.
        unit: the unit of the numbers in flash_links, whose source is ambiguous.
        training_factor: the time of a gradient over that of inference, for fedscale.
        workload: the task whose training times FLASH measured, for flash_devices, which needs it: femnist and celeba
            are convolutional networks on images, reddit and shakespeare recurrent ones on text.
        codes: the path of FLASH's real2benchmark.json, for flash_devices: phones are as frequent as there; without it,
            as where FLASH does not know a phone's model.
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
        """Returns the devices. Raises DataError if the file is missing or wrong."""
        if self.format == "fedscale":
            return read_fedscale_capacity(self.path, self.training_factor)
        if self.unit is not None:
            return read_flash_links(self.path, self.unit)
        if self.workload is not None:
            return read_flash_devices(self.path, self.workload, self.codes)
        return read_device_table(self.path)


class DeviceModel(BaseModel):
    """Holds section `devices` without availability.

    Attributes:
        seed: the seed of all the devices' chance, separate from the experiment's seed.
        table: measured devices. Rows of it are drawn whole, and what they have replaces the distributions.
        compute, memory, link, failure: the sections of these names.
        energy: the powers by which the ledger books joules; None books none.
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
    """Holds what one phase's tasks would take if nothing went wrong, int64 microseconds, shape (C,).

    Attributes:
        wait_us: the time before the first byte.
        down_us, compute_us, up_us: the times of download, computation and upload, one after another.
        fail_us: the time from the invitation to the device's failure; FOREVER_US if it never fails.
    """

    wait_us: NDArray[np.int64]
    down_us: NDArray[np.int64]
    compute_us: NDArray[np.int64]
    up_us: NDArray[np.int64]
    fail_us: NDArray[np.int64]

    @property
    def total_us(self) -> NDArray[np.int64]:
        """Gives (C,) the time from invitation to arrival."""
        return self.wait_us + self.down_us + self.compute_us + self.up_us


@dataclass(frozen=True, eq=False)
class Population:
    """Holds the properties of N devices.

    Attributes:
        model: the distributions or the table that the properties are drawn from.
        size: the number N of devices.

    Raises:
        DataError: The table is missing or wrong.
        ConfigError: Memory is required, and there is no table that has it.
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
        """Holds (N,) the seconds for one gradient on one row."""
        if self._table is not None and self._table.sec_per_sample is not None:
            return self._table.sec_per_sample[self._row_N]
        compute = self.model.compute
        return self._lognormal("speed", compute.median_s_per_sample, compute.sigma)

    @cached_property
    def down_bps_N(self) -> NDArray[np.float64]:
        """Holds (N,) the bits a second to the device; 0 is no link."""
        if self._table is not None and self._table.down_bps is not None:
            return self._table.down_bps[self._row_N]
        link = self.model.link
        return 1e6 * np.clip(self._lognormal("link", link.median_down_mbps, link.sigma), link.min_mbps, link.max_mbps)

    @cached_property
    def up_bps_N(self) -> NDArray[np.float64]:
        """Holds (N,) the bits a second from the device; 0 is no link."""
        if self._table is not None and self._table.up_bps is not None:
            return self._table.up_bps[self._row_N]
        return self.model.link.up_ratio * self.down_bps_N

    @cached_property
    def has_memory_N(self) -> NDArray[np.bool_]:
        """Tells (N,) whether the device has the required memory."""
        if self._table is None or self._table.ram_mb is None:
            return np.ones(self.size, dtype=bool)
        return self._table.ram_mb[self._row_N] >= self.model.memory.required_mb

    @cached_property
    def has_link_N(self) -> NDArray[np.bool_]:
        """Tells (N,) whether anything can be sent to the device and back."""
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
        """Returns how long one task of each client takes.

        Args:
            clients_C: (C,) the invited clients.
            round, phase: the round and the phase of the tasks, each of which has fluctuations of its own.
            samples_C: (C,) how many gradients on one row each client computes.
            bytes_down_C: (C,) the bytes that each client receives.
            bytes_up: the bytes that each client sends.
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
        """Draws (N,) lognormal numbers with this median, whose logarithms have the standard deviation sigma."""
        return median * np.exp(sigma * _normal(self.model.seed, kind, np.arange(self.size)))

    @cached_property
    def _table(self) -> DeviceTable | None:
        return None if self.model.table is None else self.model.table.read()

    @cached_property
    def _row_N(self) -> NDArray[np.int64]:
        """Holds (N,) the table's row of each device, one for all columns, since fast phones have more memory."""
        assert self._table is not None
        u = draws.uniform(self.model.seed, "device row", np.arange(self.size))
        if self._table.weights is None:
            row: NDArray[np.int64] = (u * len(self._table)).astype(np.int64)
            return row
        bounds = np.cumsum(self._table.weights)
        return np.searchsorted(bounds[:-1] / bounds[-1], u, side="right")


def _microseconds(seconds: NDArray[np.float64]) -> NDArray[np.int64]:
    """Rounds seconds up to whole microseconds, and what is longer than any simulation to FOREVER_US."""
    return np.ceil(np.minimum(seconds * SECOND_US, FOREVER_US)).astype(np.int64)


def _normal(seed: int, purpose: str, *counters: draws.Counter) -> NDArray[np.float64]:
    """Draws standard normal numbers, shaped as the counters."""
    return ndtri(_inside(draws.uniform(seed, purpose, *counters)))  # type: ignore[no-any-return]


def _inside(u: NDArray[np.float64]) -> NDArray[np.float64]:
    """Moves uniform numbers on [0, 1) off 0, which would give an infinity or a NaN."""
    return np.maximum(u, 2.0**-54)
