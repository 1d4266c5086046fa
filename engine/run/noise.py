"""Gumbel noise that depends on a seed, a position and a token, and on nothing else.

The bits are those of SplitMix64 over a mix of the three (Steele, Lea and Flood, "Fast splittable
pseudorandom number generators", 2014), alike on every device. A token's noise needs no other
token's, so that it is computed where the scores are.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_SHIFTS = (30, 27, 31)


def noise_states(seeds: Sequence[int], positions: Sequence[int]) -> npt.NDArray[np.int64]:
    """What the noise of each (seed, position) starts from: [num_rows], the bits of uint64."""
    golden = np.uint64(_GOLDEN)
    seed = np.array([value & 0xFFFFFFFFFFFFFFFF for value in seeds], dtype=np.uint64)
    counter = np.array(positions, dtype=np.uint64)
    return _mix(_mix(seed + golden) + (counter + np.uint64(1)) * golden).view(np.int64)


def gumbel(states: Tensor, size: int) -> Tensor:
    """Standard Gumbel noise for tokens 0 ... size - 1 behind each state.

    The result is [num_rows, size], float64, where `states` ([num_rows] int64) are: a CPU or a GPU.
    """
    if states.device.type == "cuda":
        from kernels.triton import noise as triton_noise

        with torch.cuda.device(states.device):
            return triton_noise.gumbel(states, size)
    # The middle of one of 2**52 cells: never 0 and never 1, so that both logarithms are finite.
    cells = torch.from_numpy((noise_bits(states.numpy(), size) >> np.uint64(12)).view(np.int64))
    uniform = cells.double().add_(0.5).mul_(2.0**-52)
    return uniform.log_().neg_().log_().neg_()


def noise_bits(states: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.uint64]:
    """64 random bits for each token: [num_rows, size]."""
    return _mix(states.view(np.uint64)[:, None] + _counters(size))


@lru_cache(maxsize=4)
def _counters(size: int) -> npt.NDArray[np.uint64]:
    """What the generator has added to its state when it comes to each token."""
    return np.arange(1, size + 1, dtype=np.uint64) * np.uint64(_GOLDEN)


def _mix(value: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    for shift, factor in zip(_SHIFTS, _FACTORS, strict=False):
        value = (value ^ (value >> np.uint64(shift))) * np.uint64(factor)
    mixed: npt.NDArray[np.uint64] = value ^ (value >> np.uint64(_SHIFTS[-1]))
    return mixed
