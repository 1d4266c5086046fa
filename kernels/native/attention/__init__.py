"""Paged attention by the compiled library: one call for all the sequences of a batch."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from struct import Struct
from typing import Final

import torch
from torch import Tensor

from kernels.kv_format import head_size
from kernels.native import library
from kernels.native.library import TYPES, pointer
from kernels.types import AttentionBatch, AttentionShape, PrefixGroups

_CALL = Struct("=12q19q2d")
"""`pw_attention` of `attention.h`, field by field."""

_WRITE = Struct("=4q4q4q6q")
"""`pw_cache_write` of `layers/cache.h`."""


_BLOCK_SIZE: Final = 16
"""Of keys that come in no blocks."""


def prepare(shape: AttentionShape) -> None:
    """See `kernels.attention.prepare`; everything was compiled with the package."""
    if shape.dtype == torch.bfloat16:
        library.trust_tiles(partial(_example, shape))


def write_kv(key: Tensor, value: Tensor | None, kv: Tensor, slots: Tensor) -> None:
    """See `kernels.attention.write_kv`."""
    assert value is None or key.dtype == value.dtype
    key = _whole_heads(key)
    value = None if value is None else _whole_heads(value)
    _write_kv(
        _WRITE.pack(
            key.data_ptr(),
            pointer(value),
            kv.data_ptr(),
            slots.data_ptr(),
            *_byte_strides(key),
            *_byte_strides(key if value is None else value),
            *(stride * kv.itemsize for stride in kv.stride()[:4]),
            len(slots),
            kv.shape[2],
            kv.shape[3],
            key.shape[2],
            TYPES[key.dtype],
            holds_codes(kv, key.dtype),
        )
    )


def attend(
    query: Tensor,
    kv: Tensor,
    batch: AttentionBatch,
    scale: float,
    sliding_window: int | None,
    softcap: float | None,
    chunk: int | None = None,
    sinks: Tensor | None = None,
    value_dim: int | None = None,
    output: Tensor | None = None,
) -> Tensor:
    """See `kernels.attention.attend`. Raises `MemoryError` without memory for partial results."""
    query = _whole_heads(query)
    if output is None:
        output = torch.empty((*query.shape[:2], value_dim or query.shape[2]), dtype=query.dtype)
    places = (query.data_ptr(), output.data_ptr(), query.stride(0), query.stride(1))
    heads, dtype = query.shape[1], query.dtype
    options = scale, sliding_window, softcap, chunk, sinks, value_dim
    if _attend(pack_call(places, heads, dtype, kv, batch, *options)) != 0:
        raise MemoryError("no memory for the partial results of attention")
    return output


def attend_in_parts(
    query: Tensor, key: Tensor, value: Tensor, most: int, scale: float
) -> Iterator[Tensor]:
    """See `kernels.attention.attend_in_parts`: queries are sequences that share a run of keys."""
    num_keys, num_heads, head_dim = key.shape
    num_blocks = -(-num_keys // _BLOCK_SIZE)
    kv = torch.empty((num_blocks, 2, num_heads, _BLOCK_SIZE, head_dim), dtype=key.dtype)
    write_kv(key, value, kv, torch.arange(num_keys))
    shared = num_keys // _BLOCK_SIZE * _BLOCK_SIZE
    for rows in torch.split(query, most):
        yield attend(
            rows, kv, _side_by_side(len(rows), num_keys, shared, num_blocks), scale, None, None
        )


def _side_by_side(count: int, num_keys: int, shared: int, num_blocks: int) -> AttentionBatch:
    """So many queries that see all keys, of which they share the first ones."""

    def numbers(*values: int) -> Tensor:
        return torch.tensor(values, dtype=torch.int32)

    members = torch.arange(count, dtype=torch.int32)
    starts = torch.full((count,), shared, dtype=torch.int32)
    ends = numbers(0, count)
    groups = PrefixGroups(numbers(0), numbers(shared), ends, members, starts, count)
    return AttentionBatch(
        block_tables=torch.arange(num_blocks, dtype=torch.int32).expand(count, -1),
        query_starts=torch.arange(count + 1, dtype=torch.int32),
        context_lens=torch.full((count,), num_keys, dtype=torch.int32),
        slots=torch.empty(0, dtype=torch.int64),
        max_query_len=1,
        max_context_len=num_keys,
        groups=groups if shared else None,
    )


def pack_call(
    places: tuple[int, int, int, int],
    num_heads: int,
    dtype: torch.dtype,
    kv: Tensor,
    batch: AttentionBatch,
    scale: float,
    sliding_window: int | None,
    softcap: float | None,
    chunk: int | None = None,
    sinks: Tensor | None = None,
    value_dim: int | None = None,
) -> bytes:
    """A `pw_attention`, with pointers to tensors that must outlive it.

    `places` are the addresses of query and output, which are of `dtype`, and the query's strides in
    elements: from token to token and from head to head.
    """
    query, output, query_token, query_head = places
    assert kv.stride(-1) == 1
    groups = batch.groups
    return _CALL.pack(
        query,
        output,
        kv.data_ptr(),
        batch.block_tables.data_ptr(),
        batch.query_starts.data_ptr(),
        batch.context_lens.data_ptr(),
        *map(pointer, (*_tensors(groups), sinks)),
        query_token,
        query_head,
        kv.stride(0),
        kv.stride(1) if value_dim is None else 0,
        *kv.stride()[2:4],
        batch.block_tables.stride(0),
        len(batch.context_lens),
        0 if groups is None else len(groups.begins),
        num_heads,
        kv.shape[2],
        head_size(kv),
        value_dim or head_size(kv),
        kv.shape[3],
        sliding_window or 0,
        chunk or 0,
        TYPES[dtype],
        holds_codes(kv, dtype),
        batch.batch_invariant,
        scale,
        softcap or 0.0,
    )


def holds_codes(kv: Tensor, dtype: torch.dtype) -> bool:
    """Whether KV memory for a model that computes in `dtype` is quantized: in int8, here."""
    assert kv.dtype in (dtype, torch.int8), "fp8 is read by GPUs only"
    return kv.dtype == torch.int8


def _tensors(groups: PrefixGroups | None) -> tuple[Tensor | None, ...]:
    if groups is None:
        return (None,) * 5
    table = (groups.begins, groups.ends, groups.member_starts, groups.members)
    return *table, groups.private_starts


def _example(shape: AttentionShape) -> Tensor:
    """Attention of enough rows for tiles, over more than one split of keys."""
    random = torch.Generator().manual_seed(0)
    query_len, context_len = 24, 300
    blocks, head_dim = -(-context_len // shape.block_size), shape.head_dim
    memory = (blocks, 2, shape.num_kv_heads, shape.block_size, head_dim)
    kv = torch.randn(memory, generator=random).bfloat16()
    query = torch.randn(query_len, shape.num_heads, head_dim, generator=random).bfloat16()
    batch = AttentionBatch.of_one(query_len, context_len, shape.block_size)
    return attend(query, kv, batch, head_dim**-0.5, None, None)


def _byte_strides(heads: Tensor) -> tuple[int, int]:
    return heads.stride(0) * heads.itemsize, heads.stride(1) * heads.itemsize


def _whole_heads(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


_write_kv = library.function("pw_write_kv", library.text)
_attend = library.function("pw_attend", library.text, returns=library.integer)
