"""Gumbel noise that depends on a seed, a position and a token, and on nothing else.

The bits are those of SplitMix64 over a mix of the three (Steele, Lea and Flood, "Fast splittable
pseudorandom number generators", 2014), alike on every device. A token's noise needs no other
token's, so that it is computed where the scores are.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_SHIFTS = (30, 27, 31)


def noise_states(seeds: Rows[int], positions: Rows[int]) -> npt.NDArray[np.int64]:
    """What the noise of each (seed, position) starts from: [num_rows], the bits of uint64."""
    golden = np.uint64(_GOLDEN)
    seed = np.array([value & 0xFFFFFFFFFFFFFFFF for value in seeds], dtype=np.uint64)
    counter = np.array(positions, dtype=np.uint64)
    return _mix(_mix(seed + golden) + (counter + np.uint64(1)) * golden).view(np.int64)


def gumbel(states: Tensor, size: int) -> Tensor:
    """Standard Gumbel noise for tokens 0 ... size - 1 behind each state.

    The result is [num_rows, size], float64, where `states` ([num_rows] int64) are.
    """
    # The middle of one of 2**52 cells: never 0 and never 1, so that both logarithms are finite.
    cells = noise_bits(states, size).bitwise_right_shift_(12).bitwise_and_((1 << 52) - 1)
    uniform = cells.double().add_(0.5).mul_(2.0**-52)
    return uniform.log_().neg_().log_().neg_()


def noise_bits(states: Tensor, size: int) -> Tensor:
    """64 random bits for each token: [num_rows, size] int64, to be read as uint64."""
    if states.device.type != "cpu":
        return _bits_in_torch(states, size)
    # numpy has unsigned shifts, and takes two thirds of the time.
    state = states.numpy().view(np.uint64)
    counters = _counters(size, states.device).numpy().view(np.uint64)
    return torch.from_numpy(_mix(state[:, None] + counters).view(np.int64))


def _bits_in_torch(states: Tensor, size: int) -> Tensor:
    value = states[:, None] + _counters(size, states.device)
    for shift, factor in zip(_SHIFTS, _FACTORS, strict=False):
        value = value.bitwise_xor_(_shift(value, shift)).mul_(_signed(factor))
    return value.bitwise_xor_(_shift(value, _SHIFTS[-1]))


@lru_cache(maxsize=4)
def _counters(size: int, device: torch.device) -> Tensor:
    """What the generator has added to its state when it comes to each token."""
    return torch.arange(1, size + 1, dtype=torch.int64, device=device).mul_(_signed(_GOLDEN))


def _shift(value: Tensor, count: int) -> Tensor:
    """To the right as unsigned numbers are; int64 drags its sign along."""
    return value.bitwise_right_shift(count).bitwise_and_((1 << (64 - count)) - 1)


def _signed(value: int) -> int:
    """The int64 of the same bits: products wrap around alike."""
    return value - (1 << 64) if value >> 63 else value


def _mix(value: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    for shift, factor in zip(_SHIFTS, _FACTORS, strict=False):
        value = (value ^ (value >> np.uint64(shift))) * np.uint64(factor)
    mixed: np.ndarray[Any, np.dtype[np.uint64]] = value ^ (value >> np.uint64(_SHIFTS[-1]))
    return mixed
