"""The slot-mapped KV write on a CPU, compiled by Numba: a copy without torch's index arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

Elements = npt.NDArray[Any]
Strides = tuple[int, ...]

_compiled: Callable[[Callable[..., None]], Callable[..., None]] = njit(nogil=True, cache=True)


@_compiled
def store(
    kv: Elements,
    strides: Strides,
    block_size: int,
    key: Elements,
    key_strides: Strides,
    value: Elements,
    value_strides: Strides,
    slots: npt.NDArray[np.int64],
    num_kv_heads: int,
    head_dim: int,
) -> None:
    """Copy keys and values into their slots; `kv`, `key` and `value` are flat, of one type."""
    stride_block, stride_kv, stride_head, stride_token = strides
    for token in range(slots.shape[0]):
        block = slots[token] // block_size
        start = block * stride_block + (slots[token] - block * block_size) * stride_token
        for head in range(num_kv_heads):
            to = start + head * stride_head
            key_from = token * key_strides[0] + head * key_strides[1]
            value_from = token * value_strides[0] + head * value_strides[1]
            kv[to : to + head_dim] = key[key_from : key_from + head_dim]
            to += stride_kv
            kv[to : to + head_dim] = value[value_from : value_from + head_dim]
