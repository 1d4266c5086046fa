"""Triton: causal attention of prefill chunks over their prefix in the KV memory and themselves."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention import AttentionBatch
from kernels.triton_walk import Tiling, dot_type, walk_keys


def tiling(group: int, head_dim: int, dtype: torch.dtype) -> Tiling:
    """The cut for `group` query heads a KV head; the rows of a program hold whole groups."""
    if dtype == torch.float32:  # exact fp32 products run on the plain cores and eat registers
        cut = Tiling(rows=32, keys=32, num_warps=4 if head_dim <= 64 else 8, num_stages=1)
    elif head_dim <= 64:
        cut = Tiling(rows=64, keys=64, num_warps=4, num_stages=2)
    else:
        cut = Tiling(rows=64, keys=32, num_warps=4 if head_dim <= 128 else 8, num_stages=2)
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
    cut = tiling(group, head_dim, query.dtype)
    num_tiles = triton.cdiv(batch.max_query_len, cut.rows // group)
    attend_chunk[len(batch.context_lens), num_kv_heads, num_tiles](
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
    seq = tl.program_id(0)
    kv_head = tl.program_id(1)
    first_token = tl.load(query_starts_ptr + seq)
    query_len = tl.load(query_starts_ptr + seq + 1) - first_token
    QUERIES: tl.constexpr = ROWS // GROUP
    first_query = tl.program_id(2) * QUERIES
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

        first_position = context_len - query_len + first_query
        begin = 0
        if WINDOW > 0:
            begin = tl.maximum(first_position - WINDOW + 1, 0) // TILE * TILE
        result, _, total = walk_keys(
            query,
            context_len - query_len + queries,
            kv_ptr + kv_head * kv_head_stride,
            tables_ptr + seq.to(tl.int64) * table_stride,
            begin,
            tl.minimum(first_position + QUERIES, context_len),
            scale,
            kv_block_stride,
            kv_value_stride,
            kv_token_stride,
            WINDOW,
            SOFTCAP,
            BLOCK_SIZE,
            HEAD_DIM,
            DOT_TYPE,
            TILE,
        )
        result = result / tl.where(real, total, 1.0)[:, None]
        to = output_ptr + tokens * output_token_stride + heads * output_head_stride
        to = to[:, None] + dims[None, :]
        tl.store(to, result.to(output_ptr.dtype.element_ty), mask=inside)
