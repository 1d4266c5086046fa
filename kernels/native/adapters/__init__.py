"""What low-rank adapters add to products, by the compiled library: a step's rows in one call."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import accumulate
from struct import Struct
from typing import Final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from kernels.native import library
from kernels.native.library import TYPES
from kernels.types import AdaptedRows, Adapter

_LOW_RANK: Final = Struct("=2q6qd")
"""`pw_low_rank` of `adapters.h`, field by field."""

_CHANGE: Final = Struct("=2q")
"""`pw_change`."""

_ROWS: Final = Struct("=3q")
"""`pw_adapted_rows`."""

_ADAPTATION: Final = Struct("=4q2q4q")
"""`pw_adaptation`."""

MOST_RANKS: Final = 256
"""Of one part of a change."""

_packed: WeakKeyDictionary[Adapter, ctypes.Array[ctypes.c_char]] = WeakKeyDictionary()


def placed(adapted: Sequence[AdaptedRows], device: torch.device) -> tuple[AdaptedRows, ...]:
    """See `kernels.adapters.placed`."""
    assert device.type == "cpu"  # where they are
    return tuple(adapted)


def adapt(x: Tensor, output: Tensor, adapted: Sequence[AdaptedRows], product: int) -> None:
    """See `kernels.adapters.adapt`."""
    assert x.stride(1) == output.stride(1) == 1
    assert x.dtype == output.dtype
    rows = ctypes.create_string_buffer(pack_rows(adapted))
    _adapt(
        _ADAPTATION.pack(
            ctypes.addressof(rows),
            x.data_ptr(),
            output.data_ptr(),
            0,
            len(adapted),
            product,
            x.stride(0),
            output.stride(0),
            TYPES[x.dtype],
            TYPES[x.dtype],
        )
    )


def pack_rows(adapted: Sequence[AdaptedRows]) -> bytes:
    """A `pw_adapted_rows` of each."""
    return b"".join(
        _ROWS.pack(_address(adapter), rows.data_ptr(), len(rows)) for adapter, rows in adapted
    )


def _address(adapter: Adapter) -> int:
    """Of the `pw_change` of each product, with all parts behind them."""
    packed = _packed.get(adapter)
    if packed is None:
        parts = b"".join(
            _LOW_RANK.pack(
                one.down.data_ptr(),
                one.up.data_ptr(),
                *one.down.shape,
                one.up.shape[1],
                one.column,
                *((one.experts.start, len(one.experts)) if one.experts is not None else (0, 0)),
                one.scale,
            )
            for change in adapter.changes
            for one in change
        )
        counts = [len(change) for change in adapter.changes]
        first = _CHANGE.size * len(counts)
        packed = _packed[adapter] = ctypes.create_string_buffer(first + len(parts))
        base = ctypes.addressof(packed) + first
        starts = accumulate(counts, initial=0)
        packed.raw = (
            b"".join(
                _CHANGE.pack(base + start * _LOW_RANK.size, count)
                for start, count in zip(starts, counts, strict=False)
            )
            + parts
        )
    return ctypes.addressof(packed)


_adapt = library.function("pw_adapt", library.text)
