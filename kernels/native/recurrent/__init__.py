"""Recurrent layers by the compiled library: one call each for all runs of a step."""

from __future__ import annotations

import ctypes
from functools import cache
from struct import Struct
from typing import Final

import torch
from torch import Tensor

from kernels.native import library
from kernels.native.library import TYPES, pointer
from kernels.types import StatePlace, StateRuns

_STATES: Final = Struct("=5q7q")
"""`pw_states` of `recurrent.h`, field by field; it stands before the rest of each call."""

_CONVOLUTION: Final = Struct("=4q5q")
"""`pw_convolution`."""

_DELTA: Final = Struct("=6q9q")
"""`pw_delta`."""

_SCAN: Final = Struct("=7q8q")
"""`pw_scan`."""

_SEGMENT: Final = Struct("=4q")


def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str | None,
    runs: StateRuns,
    memory: Tensor,
    place: StatePlace,
) -> Tensor:
    """See `kernels.recurrent.convolve`."""
    assert x.stride(1) == 1
    assert weight.is_contiguous()
    assert x.dtype == weight.dtype == place.dtype
    channels, width = weight.shape
    output = x.new_empty(x.shape)
    tensors = map(pointer, (x, weight, bias, output))
    numbers = (x.stride(0), channels, width, activation is not None, TYPES[x.dtype])
    _convolve(_states(runs, memory, place) + _CONVOLUTION.pack(*tensors, *numbers))
    return output


def gated_delta(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    beta: Tensor,
    runs: StateRuns,
    memory: Tensor,
    place: StatePlace,
) -> Tensor:
    """See `kernels.recurrent.gated_delta`."""
    assert q.dtype == k.dtype == v.dtype
    assert (decay.dtype, place.dtype) == (torch.float32, torch.float32)
    decay, beta = decay.contiguous(), beta.float().contiguous()
    output = v.new_empty(v.shape)
    tensors = map(pointer, (q, k, v, decay, beta, output))
    heads = (*q.shape[1:], *v.shape[1:])
    numbers = (*map(_token_stride, (q, k, v)), *heads, decay.dim() == 3, TYPES[v.dtype])
    _gated_delta(_states(runs, memory, place) + _DELTA.pack(*tensors, *numbers))
    return output


def selective_scan(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor | None,
    runs: StateRuns,
    memory: Tensor,
    place: StatePlace,
) -> Tensor:
    """See `kernels.recurrent.selective_scan`."""
    assert x.dtype == b.dtype == c.dtype
    assert dt.dtype == a.dtype == place.dtype == torch.float32
    assert d is None or d.dtype == torch.float32
    dt = dt.contiguous()
    output = x.new_empty(x.shape)
    tensors = map(pointer, (x, b, c, dt, a, d, output))
    numbers = (*map(_token_stride, (x, b, c)), *x.shape[1:], *b.shape[1:], TYPES[x.dtype])
    _selective_scan(_states(runs, memory, place) + _SCAN.pack(*tensors, *numbers))
    return output


def _token_stride(x: Tensor) -> int:
    """Of heads that are in one piece, as a part of a wider row has them."""
    assert x.stride(2) == 1
    assert x.shape[1] == 1 or x.stride(1) == x.shape[2]
    return x.stride(0)


def _states(runs: StateRuns, memory: Tensor, place: StatePlace) -> bytes:
    """A `pw_states`, with pointers to what must outlive it."""
    assert memory.is_contiguous()
    assert runs.sources.is_contiguous()
    assert runs.targets.is_contiguous()
    units, *rest = place.shape
    unit_bytes = place.dtype.itemsize
    for size in rest:
        unit_bytes *= size
    return _STATES.pack(
        *map(pointer, (memory, runs.starts, runs.sources, runs.targets)),
        ctypes.addressof(_segments(place)),
        memory.shape[1],
        *runs.sources.shape,
        len(place.segments),
        units,
        unit_bytes,
        runs.batch_invariant,
    )


@cache
def _segments(place: StatePlace) -> ctypes.Array[ctypes.c_char]:
    """Its `pw_segment`s."""
    assert place.segments == tuple(sorted(place.segments))
    return ctypes.create_string_buffer(b"".join(_SEGMENT.pack(*part) for part in place.segments))


_convolve = library.function("pw_convolve", library.text)
_gated_delta = library.function("pw_gated_delta", library.text)
_selective_scan = library.function("pw_selective_scan", library.text)
