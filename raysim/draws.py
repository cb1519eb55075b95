"""Counter-based randomness: every random number is a pure function of (seed, purpose, counters).

Nothing here has state, so a draw never depends on what was drawn before, on the order of clients, on the number of
workers or on which of them asks. A new purpose never shifts the numbers of another. The bits come from the SplitMix64
finaliser (Steele, Lea, Flood 2014), applied once per counter; whole arrays of counters broadcast.
"""

import hashlib
from functools import cache

import numpy as np
from numpy.typing import NDArray

Counter = int | NDArray[np.int64]
Seed = int | NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


@cache
def code(name: str) -> int:
    """Returns a stable 63-bit number for a name (Python's own hash differs between processes)."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") >> 1


def _mix(h: NDArray[np.uint64]) -> NDArray[np.uint64]:
    h = (h ^ (h >> np.uint64(30))) * _MIX_1
    h = (h ^ (h >> np.uint64(27))) * _MIX_2
    return h ^ (h >> np.uint64(31))


def bits(seed: Seed, purpose: str, *counters: Counter) -> NDArray[np.uint64]:
    """Returns 64 random bits for each element of the broadcast `counters` (round, phase, client, ...) and seeds."""
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64 is meant
        h = np.asarray(seed).astype(np.uint64)
        for counter in (code(purpose), *counters):
            h = _mix(h * _GOLDEN + np.asarray(counter).astype(np.uint64) + _GOLDEN)
    return h


def uniform(seed: Seed, purpose: str, *counters: Counter) -> NDArray[np.float64]:
    """Returns uniform numbers on [0, 1) with 53 random bits, shaped as the broadcast `counters` and seeds."""
    return (bits(seed, purpose, *counters) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def permutation(n: int, seed: int, purpose: str, *counters: Counter) -> NDArray[np.int64]:
    """Returns a uniform permutation of 0..n-1 for each element of the broadcast `counters`, along a last axis."""
    columns = (np.asarray(value)[..., None] for value in counters)
    return np.argsort(bits(seed, purpose, *columns, np.arange(n)), axis=-1, kind="stable")


def sample(population: NDArray[np.int64], size: int, seed: int, purpose: str, *counters: int) -> NDArray[np.int64]:
    """Draws `size` elements of `population`, uniformly without replacement, and returns them in its order.

    The draw takes the first distinct places of a sequence of independent uniform places, so that its cost does not
    grow with the population. A sample of more than a quarter takes the beginning of a permutation instead.
    """
    n = len(population)
    if 4 * size > n:
        return population[np.sort(permutation(n, seed, purpose, *counters)[:size])]
    draws = 2 * size
    while True:
        places = (uniform(seed, purpose, *counters, np.arange(draws)) * n).astype(np.int64)
        _, first = np.unique(places, return_index=True)
        if len(first) >= size:
            return population[np.sort(places[np.sort(first)[:size]])]
        draws *= 2


def generator(seed: int, purpose: str, *counters: int) -> np.random.Generator:
    """Returns a new NumPy generator with a stream of its own, for one-off work such as building a partition."""
    return np.random.Generator(np.random.Philox(key=int(bits(seed, purpose, *counters))))
