"""Attention of a few queries over the blocks of their sequence, compiled for the CPU by Numba.

The kernel walks the block table and reads every key and value once, where it lies. The context is
cut into splits of a fixed length, each with its own softmax, and the partial results are merged in
order (Flash-Decoding, Dao et al. 2023). So all cores share a long context, and a sequence's result
depends neither on its batch-mates nor on the number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from numba import njit, prange

from kernels.cpu_vector import KEYS, add_scores, add_values, power_of_two

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[Any]
KV = npt.NDArray[Any]

SPLIT = 256
"""Keys in a split: a multiple of `KEYS`, and never chosen by the batch."""

_WIDE, _NARROW, _SINGLE = 64, 16, 1  # lanes of a pass over part of the head

_ZERO, _HALF, _ONE = np.float32(0), np.float32(0.5), np.float32(1)
_LOWEST = np.float32(-87)
_LOG2_E = np.float32(1.44269504)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
_TAYLOR = tuple(np.float32(1 / math.factorial(order)) for order in range(8))

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _compiled(**options: Any) -> Callable[[_Function], _Function]:
    decorate: Callable[[_Function], _Function] = njit(nogil=True, cache=True, **options)
    return decorate


@_compiled(fastmath={"contract", "nnan", "nsz"})
def _exp(x: Any) -> Any:
    """e ** x for x <= 0 to one or two units in the last place, in a form that vectorises."""
    x = max(x, _LOWEST)
    power = math.floor(x * _LOG2_E + _HALF)
    rest = x - power * _LN2_HIGH
    rest = rest - power * _LN2_LOW
    series = _TAYLOR[7]
    series = series * rest + _TAYLOR[6]
    series = series * rest + _TAYLOR[5]
    series = series * rest + _TAYLOR[4]
    series = series * rest + _TAYLOR[3]
    series = series * rest + _TAYLOR[2]
    return (series * rest * rest + rest + _ONE) * power_of_two(power)


@_compiled(fastmath={"contract", "reassoc", "nnan", "nsz"})
def _softmax(scores: Floats, first: int, end: int, scale: Any, softcap: Any) -> tuple[Any, Any]:
    """Turn `scores[first:end]` into unnormalised weights; returns their maximum and their sum."""
    highest = scores[first] * scale
    for key in range(first, end):
        scores[key] *= scale
        highest = max(highest, scores[key])
    if softcap > _ZERO:
        for key in range(first, end):
            scores[key] = softcap * np.float32(math.tanh(scores[key] / softcap))
        highest = softcap * np.float32(math.tanh(highest / softcap))
    total = _ZERO
    for key in range(first, end):
        weight = _exp(scores[key] - highest)
        scores[key] = weight
        total += weight
    return highest, total


@_compiled()
def _attend_split(
    query: Floats,  # [rows, head_dim]; row r is query r // group of the sequence
    kv: KV,
    value_shift: int,
    offsets: Integers,  # [keys padded to a multiple of KEYS]
    num_keys: int,
    visible: Integers,  # [rows, 2] first and end
    scale: Any,
    softcap: Any,
    output: Floats,  # [rows, head_dim], unnormalised
    statistics: Floats,  # [rows, 2] maximum and sum
) -> None:
    """One split of one KV head: scores, softmax, weighted values."""
    num_rows, head_dim = query.shape
    scores = np.zeros((num_rows, SPLIT), np.float32)
    dim = 0
    while dim < head_dim:
        if dim + _WIDE <= head_dim:
            for key in range(0, num_keys, KEYS):
                add_scores(query, num_rows, dim, head_dim, kv, offsets, key, scores, SPLIT, _WIDE)
            dim += _WIDE
        elif dim + _NARROW <= head_dim:
            for key in range(0, num_keys, KEYS):
                add_scores(query, num_rows, dim, head_dim, kv, offsets, key, scores, SPLIT, _NARROW)
            dim += _NARROW
        else:
            for key in range(0, num_keys, KEYS):
                add_scores(query, num_rows, dim, head_dim, kv, offsets, key, scores, SPLIT, _SINGLE)
            dim += _SINGLE
    for row in range(num_rows):
        first, end = visible[row]
        statistics[row, 0], statistics[row, 1] = np.float32(-np.inf), _ZERO
        if first < end:
            statistics[row, 0], statistics[row, 1] = _softmax(
                scores[row], first, end, scale, softcap
            )
        scores[row, :first] = _ZERO
        scores[row, max(first, end) :] = _ZERO
    output[:] = _ZERO
    offsets += value_shift
    dim = 0
    while dim < head_dim:
        if dim + _WIDE <= head_dim:
            for key in range(0, num_keys, KEYS):
                add_values(scores, num_rows, SPLIT, dim, head_dim, kv, offsets, key, output, _WIDE)
            dim += _WIDE
        elif dim + _NARROW <= head_dim:
            for key in range(0, num_keys, KEYS):
                add_values(
                    scores, num_rows, SPLIT, dim, head_dim, kv, offsets, key, output, _NARROW
                )
            dim += _NARROW
        else:
            for key in range(0, num_keys, KEYS):
                add_values(
                    scores, num_rows, SPLIT, dim, head_dim, kv, offsets, key, output, _SINGLE
                )
            dim += _SINGLE


@_compiled()
def _key_offsets(
    table: Integers, first: int, end: int, block_size: int, strides: Any, head: int
) -> Integers:
    """Where keys `first` to `end` of a sequence lie; the last is repeated to fill up `KEYS`."""
    stride_block, _, stride_head, stride_token = strides
    count = end - first
    padded = (count + KEYS - 1) // KEYS * KEYS
    offsets = np.empty(padded, np.int64)
    for index in range(padded):
        position = first + min(index, count - 1)
        block = position // block_size
        offsets[index] = (
            table[block] * stride_block
            + (position - block * block_size) * stride_token
            + head * stride_head
        )
    return offsets


@_compiled()
def _plan(
    query_starts: Integers,
    context_lens: Integers,
    longest: int,
    num_kv_heads: int,
    group: int,
    window: int,
) -> tuple[Integers, Integers, Integers, Integers]:
    """Cut the batch into (sequence, split, KV head) items.

    Returns per sequence its first split, its first item and its first row of partial results (the
    latter two with a final total), and per item its sequence.
    """
    num_seqs = context_lens.shape[0]
    first_split = np.zeros(num_seqs, np.int64)
    first_item = np.zeros(num_seqs + 1, np.int64)
    first_row = np.zeros(num_seqs + 1, np.int64)
    for seq in range(num_seqs):
        query_len = query_starts[seq + 1] - query_starts[seq]
        items = 0
        if 0 < query_len <= longest:
            if window > 0:
                oldest = context_lens[seq] - query_len - window + 1
                first_split[seq] = max(oldest, 0) // SPLIT
            items = ((context_lens[seq] + SPLIT - 1) // SPLIT - first_split[seq]) * num_kv_heads
        first_item[seq + 1] = first_item[seq] + items
        first_row[seq + 1] = first_row[seq] + items * query_len * group
    owner = np.empty(first_item[num_seqs], np.int64)
    for seq in range(num_seqs):
        owner[first_item[seq] : first_item[seq + 1]] = seq
    return first_split, first_item, first_row, owner


@_compiled()
def _run_item(
    query: Floats,
    kv: KV,
    strides: Any,
    block_size: int,
    table: Integers,
    context_len: int,
    head: int,
    group: int,
    split: int,
    window: int,
    scale: Any,
    softcap: Any,
    output: Floats,
    statistics: Floats,
) -> None:
    """Attend the queries of one sequence to one split of one KV head."""
    query_len, _, head_dim = query.shape
    begin = split * SPLIT
    if window > 0:
        begin = max(begin, context_len - query_len - window + 1)
    end = min(context_len, (split + 1) * SPLIT)
    rows = np.empty((query_len * group, head_dim), np.float32)
    visible = np.empty((query_len * group, 2), np.int64)
    for row in range(query_len * group):
        rows[row] = query[row // group, head * group + row % group]
        position = context_len - query_len + row // group
        first = max(begin, position - window + 1) if window > 0 else begin
        visible[row, 0] = min(first, end) - begin
        visible[row, 1] = min(position + 1, end) - begin
    offsets = _key_offsets(table, begin, end, block_size, strides, head)
    _attend_split(
        rows, kv, strides[1], offsets, offsets.shape[0], visible, scale, softcap, output, statistics
    )


@_compiled()
def _merge(
    output: Floats, partial: Floats, statistics: Floats, row: int, stride: int, splits: int
) -> None:
    """Weigh the partial results `row`, `row + stride`, ... of one query row into `output`."""
    highest = np.float32(-np.inf)
    for split in range(splits):
        highest = max(highest, statistics[row + split * stride, 0])
    output[:] = _ZERO
    total = _ZERO
    for split in range(splits):
        index = row + split * stride
        weight = np.float32(math.exp(statistics[index, 0] - highest))
        total += weight * statistics[index, 1]
        for dim in range(output.shape[0]):
            output[dim] += weight * partial[index, dim]
    for dim in range(output.shape[0]):
        output[dim] /= total


@_compiled(parallel=True)
def attend_short(
    query: Floats,
    kv: KV,
    strides: Any,
    block_size: int,
    num_kv_heads: int,
    tables: Integers,
    query_starts: Integers,
    context_lens: Integers,
    longest: int,
    scale: Any,
    window: int,
    softcap: Any,
    output: Floats,
) -> None:
    """Attend every sequence of at most `longest` queries; other rows of `output` stay untouched.

    `query` and `output` are [num_tokens, num_heads, head_dim], `kv` is flat (see `cpu_vector`) with
    `strides` of (block, key to value, head, token) in elements. `window` and `softcap` are 0 for none.
    """
    _, num_heads, head_dim = query.shape
    group = num_heads // num_kv_heads
    first_split, first_item, first_row, owner = _plan(
        query_starts, context_lens, longest, num_kv_heads, group, window
    )
    num_seqs = context_lens.shape[0]
    partial = np.empty((first_row[num_seqs], head_dim), np.float32)
    statistics = np.empty((first_row[num_seqs], 2), np.float32)
    for item in prange(owner.shape[0]):
        seq = owner[item]
        local = item - first_item[seq]
        start, end = query_starts[seq], query_starts[seq + 1]
        num_rows = (end - start) * group
        row = first_row[seq] + local * num_rows
        _run_item(
            query[start:end],
            kv,
            strides,
            block_size,
            tables[seq],
            context_lens[seq],
            local % num_kv_heads,
            group,
            first_split[seq] + local // num_kv_heads,
            window,
            scale,
            softcap,
            partial[row : row + num_rows],
            statistics[row : row + num_rows],
        )
    for seq in prange(num_seqs):
        start, end = query_starts[seq], query_starts[seq + 1]
        num_rows = (end - start) * group
        splits = (first_item[seq + 1] - first_item[seq]) // num_kv_heads
        if splits > 0:
            for head in range(num_heads):
                for token in range(end - start):
                    row = head // group * num_rows + token * group + head % group
                    _merge(
                        output[start + token, head],
                        partial,
                        statistics,
                        first_row[seq] + row,
                        num_kv_heads * num_rows,
                        splits,
                    )


@_compiled()
def store(
    kv: KV,
    strides: Any,
    block_size: int,
    key: KV,
    key_strides: Any,
    value: KV,
    value_strides: Any,
    slots: Integers,
    num_kv_heads: int,
    head_dim: int,
) -> None:
    """Copy keys and values into their slots. All arrays but `slots` are flat, of one element type."""
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
