"""Defines the units and the limits of simulated time, which is counted in int64 microseconds."""

import numpy as np

SECOND_US = 1_000_000
DAY_S = 86_400
DAY_US = DAY_S * SECOND_US

# The instant of an event that does not happen.
NEVER = int(np.iinfo(np.int64).max)

# Longer than any simulation, and far from the end of int64, so that sums of a few do not overflow.
FOREVER_US = 2**60
