"""Holds measured devices."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class DeviceTable:
    """Holds measured devices, one a row; what was not measured is None.

    Rows are to be drawn whole, since their columns correlate.

    Attributes:
        sec_per_sample: (rows,) seconds to train on one sample.
        ram_mb: (rows,) memory, in units of 2^20 bytes.
        down_bps, up_bps: (rows,) bits per second to and from the device; 0 is a device without a link.
        weights: (rows,) how often each row is to be drawn, in proportion; None draws all rows equally often.
    """

    sec_per_sample: NDArray[np.float64] | None = None
    ram_mb: NDArray[np.float64] | None = None
    down_bps: NDArray[np.float64] | None = None
    up_bps: NDArray[np.float64] | None = None
    weights: NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return next(
            (len(c) for c in (self.sec_per_sample, self.ram_mb, self.down_bps, self.up_bps) if c is not None), 0
        )
