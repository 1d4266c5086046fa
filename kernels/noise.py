"""Random bits that depend on a seed, a position and a token, and on nothing else.

They are those of SplitMix64 over a mix of the three (Steele, Lea and Flood, "Fast splittable
pseudorandom number generators", 2014), alike in every room. A token's need no other token's, so
that they are computed where the scores are, and only for tokens that may win.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

GOLDEN = 0x9E3779B97F4A7C15
FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
SHIFTS = (30, 27, 31)
CELL_BITS = 52

Bits = npt.NDArray[np.uint64]


def noise_states(seeds: Sequence[int], positions: Sequence[int]) -> npt.NDArray[np.int64]:
    """What the noise of each (seed, position) starts from: [num_rows], the bits of uint64."""
    golden = np.uint64(GOLDEN)
    seed = np.array([value & 0xFFFFFFFFFFFFFFFF for value in seeds], dtype=np.uint64)
    counter = np.array(positions, dtype=np.uint64)
    return _mix(_mix(seed + golden) + (counter + np.uint64(1)) * golden).view(np.int64)


def noise_bits(state: np.int64, tokens: npt.NDArray[np.int64]) -> Bits:
    """64 random bits for each of `tokens`, behind one state."""
    counters = tokens.view(np.uint64) + np.uint64(1)
    return _mix(np.asarray(state).view(np.uint64) + counters * np.uint64(GOLDEN))


def cells(bits: Bits) -> npt.NDArray[np.int64]:
    """Which of 2**52 cells of the unit interval they stand for."""
    return (bits >> np.uint64(64 - CELL_BITS)).view(np.int64)


def gumbel(cell: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Standard Gumbel noise, from the middle of each cell: never 0 and never 1, so that both
    logarithms are finite.
    """
    noise: npt.NDArray[np.float64] = -np.log(-np.log((cell + 0.5) * 2.0**-CELL_BITS))
    return noise


def _mix(value: Any) -> Bits:
    for shift, factor in zip(SHIFTS, FACTORS, strict=False):
        value = (value ^ (value >> np.uint64(shift))) * np.uint64(factor)
    mixed: Bits = value ^ (value >> np.uint64(SHIFTS[-1]))
    return mixed
