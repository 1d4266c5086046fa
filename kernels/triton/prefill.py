"""Triton: causal attention of prefill chunks over their prefix in the KV memory and themselves.

A program computes what `kernels.triton.plan` lists for it: a tile of queries with all heads that
share a KV head, over some of the keys that they see.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton.arguments import KvMemory, Rows, Slots, memory_of, rows_of
from kernels.triton.plan import MERGE_FIELDS, PART_FIELDS, ChunkCut, plan_chunks
from kernels.triton.walk import (
    WIDE,
    Tiling,
    first_seen,
    head_options,
    load_queries,
    no_keys,
    store_result,
    walk_keys,
    wide_tiling,
)
from kernels.triton.work import (
    SPLIT,
    add_partials,
    capability,
    new_slots,
    num_processors,
    shared_kib,
    store_partial,
)
from kernels.types import AttentionBatch, Chunk

_PART_FIELDS = tl.constexpr(PART_FIELDS)
_MERGE_FIELDS = tl.constexpr(MERGE_FIELDS)
MERGED_ROWS = 4
"""Of a program that merges: so few that there are many programs."""

_KEPT_PLANS = 8
"""Of a step: one for each kind of layer."""


def tiling(group: int, head_dim: int, dtype: torch.dtype, arch: int, *, plain: bool) -> Tiling:
    """The cut for `group` query heads a KV head on compute capability `arch` (90: sm_90).

    The rows of a program hold whole groups. From sm_90 on a product's 128 rows come from two warp
    groups, and 128 keys at a time keep their reads of shared memory below its speed; `plain`
    attention, of unquantized keys and without softcap or chunks, has the registers for that.
    """
    large = shared_kib(arch) > 164
    if head_dim > WIDE:
        cut = wide_tiling(64, group, dtype, quantized=not plain)
    elif dtype == torch.float32:  # exact fp32 products run on the plain cores and eat registers
        cut = Tiling(rows=32, keys=32, num_warps=4 if head_dim <= 64 else 8, num_stages=1)
    elif not large and (head_dim > 64 or not plain):
        keys = 32 if head_dim > 64 else 64
        cut = Tiling(64, keys, num_warps=4 if head_dim <= 128 and plain else 8, num_stages=3)
    elif head_dim <= 128:
        keys = 128 if plain and large else 64
        cut = Tiling(rows=128, keys=keys, num_warps=8, num_stages=3)
    else:
        cut = Tiling(rows=128 if plain else 64, keys=32, num_warps=8, num_stages=3)
    rows = max(cut.rows, triton.next_power_of_2(group))
    return Tiling(rows, cut.keys, cut.num_warps, cut.num_stages)


def programs_per_processor(cut: Tiling) -> int:
    """How many run at a time: nearly all use 255 registers a thread, and eight warps then all."""
    return 8 // cut.num_warps


def attend_chunks(
    query: Tensor,
    kv: Tensor,
    batch: AttentionBatch,
    chunks: tuple[Chunk, ...],
    scale: float,
    sliding_window: int | None,
    softcap: float | None,
    chunk: int | None,
    sinks: Tensor | None,
    head_dim: int,
    output: Tensor,
) -> None:
    """Fill `output` for the sequences of `chunks`; leave the others' rows alone.

    One launch, and one more if an item is in several parts. `head_dim` is that of values.
    """
    group = query.shape[1] // kv.shape[2]
    plain = kv.dtype == query.dtype and not softcap and not chunk
    cut = tiling(group, head_dim, query.dtype, capability(query.device), plain=plain)
    work = _work(query, kv, batch, sliding_window, chunk, cut)
    for launch in _launches(chunks, work, query.device):
        slots = new_slots(max(1, launch.num_slots), cut.rows, head_dim, query.device)
        attend_chunk[(len(launch.parts),)](
            rows_of(output),
            slots,
            rows_of(query),
            memory_of(kv),
            launch.parts,
            batch.block_tables,
            sinks,
            batch.block_tables.stride(0),
            scale,
            ROWS=cut.rows,
            WINDOW=work.window,
            CHUNK=work.chunk,
            SOFTCAP=softcap or 0.0,
            **head_options(query, kv, head_dim),
            **cut.options(),
        )
        if len(launch.merges):
            merge_chunk[len(launch.merges), cut.rows // MERGED_ROWS](
                rows_of(output),
                slots,
                launch.merges,
                sinks,
                GROUP=group,
                ROWS=cut.rows,
                MERGED_ROWS=MERGED_ROWS,
                HEAD_DIM=head_dim,
            )


def _work(
    query: Tensor,
    kv: Tensor,
    batch: AttentionBatch,
    sliding_window: int | None,
    chunk: int | None,
    cut: Tiling,
) -> ChunkCut:
    num_kv_heads = kv.shape[2]
    return ChunkCut(
        queries=cut.rows // (query.shape[1] // num_kv_heads),
        rows=cut.rows,
        keys=cut.keys,
        num_kv_heads=num_kv_heads,
        window=sliding_window or 0,
        chunk=chunk or 0,
        num_programs=num_processors(query.device) * programs_per_processor(cut),
        fixed_keys=SPLIT if batch.batch_invariant else 0,
    )


def chunks_of(batch: AttentionBatch) -> tuple[Chunk, ...]:
    """The chunks of a batch; if nobody said, read from its tensors, waiting for the device."""
    if batch.max_query_len == 1:
        return ()
    if batch.chunks is not None:
        return batch.chunks
    starts, contexts = batch.query_starts.tolist(), batch.context_lens.tolist()
    counts = np.diff(starts).tolist()
    every = map(Chunk, range(len(counts)), starts, counts, contexts)
    return tuple(chunk for chunk in every if chunk.num_queries > 1)


class _Launch(NamedTuple):
    """A `ChunkPlan` on the device."""

    parts: Tensor
    merges: Tensor
    num_slots: int


@lru_cache(_KEPT_PLANS)
def _launches(chunks: Sequence[Chunk], cut: ChunkCut, device: torch.device) -> list[_Launch]:
    """All layers of a kind ask for the same ones: only the first of them plans and copies."""
    return [
        _Launch(_sent(plan.parts, device), _sent(plan.merges, device), plan.num_slots)
        for plan in plan_chunks(chunks, cut)
    ]


def _sent(array: np.ndarray, device: torch.device) -> Tensor:
    """A copy on the device, which the host does not wait for."""
    tensor = torch.from_numpy(array)
    if device.type != "cuda":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


@triton.jit(do_not_specialize=["table_stride"])
def attend_chunk(
    to: Rows,
    slots: Slots,
    query: Rows,
    kv: KvMemory,
    parts_ptr,
    tables_ptr,
    sinks_ptr,  # None: none
    table_stride,
    scale,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNK: tl.constexpr,
    SOFTCAP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    KEY_REST: tl.constexpr,
    DOT_TYPE: tl.constexpr,
    TILE: tl.constexpr,
):
    """One program: one part of the plan."""
    part = parts_ptr + tl.program_id(0) * _PART_FIELDS
    count = tl.load(part + 2)
    first_position = tl.load(part + 3)
    kv_head = tl.load(part + 4)
    rows = tl.arange(0, ROWS)
    queries = rows // GROUP
    real = queries < count
    heads = kv_head * GROUP + rows % GROUP
    tokens = (tl.load(part + 1) + queries).to(tl.int64)
    seen = walk_causally(
        load_queries(query, tokens, heads, real, HEAD_DIM, KEY_REST, DOT_TYPE),
        first_position,
        first_position + count,
        first_position + queries,
        kv,
        kv_head,
        tables_ptr + tl.load(part).to(tl.int64) * table_stride,
        tl.load(part + 5),
        tl.load(part + 6),
        scale,
        WINDOW,
        CHUNK,
        SOFTCAP,
        BLOCK_SIZE,
        HEAD_DIM,
        KEY_REST,
        DOT_TYPE,
        TILE,
    )
    slot = tl.load(part + 7)
    if slot < 0:
        store_result(to, tokens, heads, seen, sinks_ptr, real, HEAD_DIM)
    else:
        store_partial(slots, slot, seen, real, ROWS, HEAD_DIM)


@triton.jit
def walk_causally(
    query,  # as `load_queries` returns it
    first_position,
    end_position,  # behind the last one
    positions,  # [rows]
    kv: KvMemory,
    kv_head,
    table_ptr,
    begin,
    end,
    scale,
    WINDOW: tl.constexpr,
    CHUNK: tl.constexpr,
    SOFTCAP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    KEY_REST: tl.constexpr,
    DOT_TYPE: tl.constexpr,
    TILE: tl.constexpr,
):
    """What `walk_keys` returns for the keys `begin` up to `end`, masked only where that is needed.

    Whole tiles of keys that all rows see need no mask: those from `visible` to `diagonal`.
    """
    LOCAL: tl.constexpr = WINDOW > 0 or CHUNK > 0
    visible = 0
    if LOCAL:
        visible = tl.cdiv(first_seen(end_position - 1, WINDOW, CHUNK), TILE) * TILE
    diagonal = tl.maximum((first_position + 1) // TILE * TILE, visible)
    seen = no_keys(positions.shape[0], HEAD_DIM)
    for stretch in tl.static_range(0 if LOCAL else 1, 3):
        start = begin
        stop = tl.minimum(visible, end)
        if stretch == 1:
            start = tl.maximum(begin, visible)
            stop = tl.minimum(diagonal, end)
        if stretch == 2:
            start = tl.maximum(begin, diagonal)
            stop = end
        seen = walk_keys(
            query,
            seen,
            positions,
            kv,
            kv_head,
            table_ptr,
            start,
            stop,
            scale,
            stretch != 1,
            WINDOW,
            CHUNK,
            SOFTCAP,
            BLOCK_SIZE,
            HEAD_DIM,
            KEY_REST,
            DOT_TYPE,
            TILE,
        )
    return seen


@triton.jit
def merge_chunk(
    to: Rows,
    slots: Slots,
    merges_ptr,
    sinks_ptr,  # None: none
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    MERGED_ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """One program: some rows of an item in several parts."""
    merge = merges_ptr + tl.program_id(0) * _MERGE_FIELDS
    rows = tl.program_id(1) * MERGED_ROWS + tl.arange(0, MERGED_ROWS)
    real = rows // GROUP < tl.load(merge + 1)
    if tl.program_id(1) * MERGED_ROWS // GROUP < tl.load(merge + 1):
        first, last = tl.load(merge + 3), tl.load(merge + 4)
        none = no_keys(MERGED_ROWS, HEAD_DIM)
        seen = add_partials(none, slots, first, last, rows, real, ROWS, HEAD_DIM)
        tokens = (tl.load(merge) + rows // GROUP).to(tl.int64)
        heads = tl.load(merge + 2) * GROUP + rows % GROUP
        store_result(to, tokens, heads, seen, sinks_ptr, real, HEAD_DIM)
