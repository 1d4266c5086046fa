"""Triton: causal attention of prefill chunks over their prefix in the KV memory and themselves."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton.arguments import KvMemory, Rows, memory_of, rows_of
from kernels.triton.walk import Tiling, head_options, load_queries, no_keys, walk_keys
from kernels.triton.work import capability, shared_kib
from kernels.types import AttentionBatch


def tiling(group: int, head_dim: int, dtype: torch.dtype, arch: int, *, plain: bool) -> Tiling:
    """The cut for `group` query heads a KV head on compute capability `arch` (90: sm_90).

    The rows of a program hold whole groups. From sm_90 on a product's 128 rows come from two warp
    groups, and 128 keys at a time keep their reads of shared memory below its speed; `plain`
    attention, of unquantized keys and without softcap, has the registers for that.
    """
    large = shared_kib(arch) > 164
    if dtype == torch.float32:  # exact fp32 products run on the plain cores and eat registers
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


def attend_chunks(
    query: Tensor,
    kv: Tensor,
    batch: AttentionBatch,
    scale: float,
    sliding_window: int | None,
    softcap: float | None,
    output: Tensor,
) -> None:
    """Fill `output` for every sequence with more than one query; leave the others' rows alone."""
    _, num_heads, head_dim = query.shape
    num_kv_heads = kv.shape[2]
    group = num_heads // num_kv_heads
    plain = kv.dtype == query.dtype and not softcap
    cut = tiling(group, head_dim, query.dtype, capability(query.device), plain=plain)
    num_tiles = triton.cdiv(batch.max_query_len, cut.rows // group)
    attend_chunk[num_kv_heads, len(batch.context_lens), num_tiles](
        rows_of(output),
        rows_of(query),
        memory_of(kv),
        batch.query_starts,
        batch.context_lens,
        batch.block_tables,
        batch.block_tables.stride(0),
        scale,
        ROWS=cut.rows,
        WINDOW=sliding_window or 0,
        SOFTCAP=softcap or 0.0,
        **head_options(query, kv),
        **cut.options(),
    )


@triton.jit(do_not_specialize=["table_stride"])
def attend_chunk(
    to: Rows,
    query: Rows,
    kv: KvMemory,
    query_starts_ptr,
    context_lens_ptr,
    tables_ptr,
    table_stride,
    scale,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DOT_TYPE: tl.constexpr,
    TILE: tl.constexpr,
):
    """One program: some queries of one sequence, with all heads that share one KV head."""
    kv_head = tl.program_id(0)
    seq = tl.program_id(1)
    first_token = tl.load(query_starts_ptr + seq)
    query_len = tl.load(query_starts_ptr + seq + 1) - first_token
    QUERIES: tl.constexpr = ROWS // GROUP
    # The last queries see the most keys, so they start first, and the short ones fill the end.
    first_query = (tl.num_programs(2) - 1 - tl.program_id(2)) * QUERIES
    if (query_len > 1) & (first_query < query_len):
        context_len = tl.load(context_lens_ptr + seq)
        rows = tl.arange(0, ROWS)
        queries = first_query + rows // GROUP
        heads = kv_head * GROUP + rows % GROUP
        tokens = (first_token + queries).to(tl.int64)
        real = (rows < QUERIES * GROUP) & (queries < query_len)
        tile = load_queries(query, tokens, heads, real, HEAD_DIM, DOT_TYPE)

        positions = context_len - query_len + queries
        first_position = context_len - query_len + first_query
        end = tl.minimum(first_position + QUERIES, context_len)
        begin, visible, diagonal = parts_of_keys(first_position, end, WINDOW, TILE)
        seen = no_keys(ROWS, HEAD_DIM)
        for part in tl.static_range(0 if WINDOW > 0 else 1, 3):
            start = begin
            stop = tl.minimum(visible, end)
            if part == 1:
                start = visible
                stop = diagonal
            if part == 2:
                start = diagonal
                stop = end
            seen = walk_keys(
                tile,
                seen,
                positions,
                kv,
                kv_head,
                tables_ptr + seq.to(tl.int64) * table_stride,
                start,
                stop,
                scale,
                part != 1,
                WINDOW,
                SOFTCAP,
                BLOCK_SIZE,
                HEAD_DIM,
                DOT_TYPE,
                TILE,
            )
        output, _, total = seen
        output = output / tl.where(real, total, 1.0)[:, None]
        store_heads(to, tokens, heads, output, real, HEAD_DIM)


@triton.jit
def parts_of_keys(first_position, end, WINDOW: tl.constexpr, TILE: tl.constexpr):
    """Where the keys of rows from `first_position` up to `end` begin, and where masks are needed.

    Whole tiles that all rows see need none: from `visible`, returned second, up to `diagonal`.
    """
    begin = 0
    visible = 0
    if WINDOW > 0:
        begin = tl.maximum(first_position - WINDOW + 1, 0) // TILE * TILE
        visible = tl.cdiv(tl.maximum(end - WINDOW, 0), TILE) * TILE
    return begin, visible, tl.maximum((first_position + 1) // TILE * TILE, visible)


@triton.jit
def store_heads(to: Rows, token, head, values, real, HEAD_DIM: tl.constexpr):
    """Store [rows, dims]; all else is [rows]."""
    dims = tl.arange(0, values.shape[1])
    at = to.ptr + token * to.token_stride + head * to.head_stride
    inside = real[:, None] & (dims < HEAD_DIM)[None, :]
    tl.store(at[:, None] + dims[None, :], values.to(to.ptr.dtype.element_ty), mask=inside)
