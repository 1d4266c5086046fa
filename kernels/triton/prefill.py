"""Triton: causal attention of prefill chunks over their prefix in the KV memory and themselves."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton.walk import Tiling, dot_type, no_keys, walk_keys
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
        output,
        query,
        kv,
        batch.block_tables,
        batch.query_starts,
        batch.context_lens,
        scale,
        *output.stride()[:2],
        *query.stride()[:2],
        *kv.stride()[:4],
        batch.block_tables.stride(0),
        GROUP=group,
        ROWS=cut.rows,
        WINDOW=sliding_window or 0,
        SOFTCAP=softcap or 0.0,
        BLOCK_SIZE=kv.shape[3],
        HEAD_DIM=head_dim,
        DIM_PAD=triton.next_power_of_2(head_dim),
        DOT_TYPE=dot_type(query.dtype),
        **cut.options(),
    )


@triton.jit(do_not_specialize=["table_stride"])
def attend_chunk(
    output_ptr,
    query_ptr,
    kv_ptr,
    tables_ptr,
    query_starts_ptr,
    context_lens_ptr,
    scale,
    output_token_stride,
    output_head_stride,
    query_token_stride,
    query_head_stride,
    kv_block_stride,
    kv_value_stride,
    kv_head_stride,
    kv_token_stride,
    table_stride,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
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
        dims = tl.arange(0, DIM_PAD)
        real = (rows < QUERIES * GROUP) & (queries < query_len)
        inside = real[:, None] & (dims < HEAD_DIM)[None, :]
        at = query_ptr + tokens * query_token_stride + heads * query_head_stride
        query = tl.load(at[:, None] + dims[None, :], mask=inside, other=0.0).to(DOT_TYPE)

        positions = context_len - query_len + queries
        first_position = context_len - query_len + first_query
        end = tl.minimum(first_position + QUERIES, context_len)
        # Whole tiles that all rows see need no mask: from `visible` up to `diagonal`.
        begin = 0
        visible = 0
        if WINDOW > 0:
            begin = tl.maximum(first_position - WINDOW + 1, 0) // TILE * TILE
            visible = tl.cdiv(tl.maximum(end - WINDOW, 0), TILE) * TILE
        diagonal = tl.maximum((first_position + 1) // TILE * TILE, visible)
        output, top, total = no_keys(ROWS, DIM_PAD)
        for part in tl.static_range(0 if WINDOW > 0 else 1, 3):
            start = begin
            stop = tl.minimum(visible, end)
            if part == 1:
                start = visible
                stop = diagonal
            if part == 2:
                start = diagonal
                stop = end
            output, top, total = walk_keys(
                query,
                output,
                top,
                total,
                positions,
                kv_ptr + kv_head * kv_head_stride,
                tables_ptr + seq.to(tl.int64) * table_stride,
                start,
                stop,
                scale,
                kv_block_stride,
                kv_value_stride,
                kv_token_stride,
                part != 1,
                WINDOW,
                SOFTCAP,
                BLOCK_SIZE,
                HEAD_DIM,
                DOT_TYPE,
                TILE,
            )
        output = output / tl.where(real, total, 1.0)[:, None]
        to = output_ptr + tokens * output_token_stride + heads * output_head_stride
        to = to[:, None] + dims[None, :]
        tl.store(to, output.to(output_ptr.dtype.element_ty), mask=inside)
