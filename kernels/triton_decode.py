"""Triton: attention of one query a sequence over its blocks, the context cut into splits.

All query heads of a KV head are one tile, so its keys are read once. A long context is cut into
splits of fixed length that run side by side and are merged in order (Flash-Decoding, Dao et al.
2023). The length is fixed, so a sequence's result does not depend on its batch-mates.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention import AttentionBatch
from kernels.triton_walk import Tiling, dot_type, walk_keys

SPLIT = 512
"""Keys of a split; a multiple of every tile."""

_FEWEST_ROWS = 16  # of a matrix product


def tiling(group: int, head_dim: int, dtype: torch.dtype) -> Tiling:
    """The cut for `group` query heads a KV head."""
    rows = max(_FEWEST_ROWS, triton.next_power_of_2(group))
    if dtype == torch.float32:
        return Tiling(rows, keys=32, num_warps=4, num_stages=1)
    if head_dim <= 128:
        return Tiling(rows, keys=64, num_warps=4, num_stages=3)
    return Tiling(rows, keys=32, num_warps=4, num_stages=3)


def attend_last_tokens(
    query: Tensor,
    kv: Tensor,
    batch: AttentionBatch,
    scale: float,
    sliding_window: int | None,
    softcap: float | None,
    output: Tensor,
) -> None:
    """Fill `output` for every sequence with one query; leave the others' rows alone."""
    _, num_heads, head_dim = query.shape
    num_seqs, num_kv_heads = len(batch.context_lens), kv.shape[2]
    cut = tiling(num_heads // num_kv_heads, head_dim, query.dtype)
    num_splits = triton.cdiv(batch.max_context_len, SPLIT)
    # What a split hands to the merge: outputs, and beside them its highest score and its sum.
    partial = query.new_empty(
        (num_seqs, num_heads, num_splits if num_splits > 1 else 0, head_dim + 2),
        dtype=torch.float32,
    )
    shape = {
        "WINDOW": sliding_window or 0,
        "HEAD_DIM": head_dim,
        "DIM_PAD": triton.next_power_of_2(head_dim),
        "SPLIT": SPLIT,
    }
    attend_split[num_seqs, num_kv_heads, num_splits](
        output,
        partial,
        query,
        kv,
        batch.block_tables,
        batch.query_starts,
        batch.context_lens,
        scale,
        *output.stride()[:2],
        *partial.stride()[:3],
        *query.stride()[:2],
        *kv.stride()[:4],
        batch.block_tables.stride(0),
        GROUP=num_heads // num_kv_heads,
        ROWS=cut.rows,
        SOFTCAP=softcap or 0.0,
        BLOCK_SIZE=kv.shape[3],
        DOT_TYPE=dot_type(query.dtype),
        WHOLE=num_splits == 1,
        **shape,
        **cut.options(),
    )
    if num_splits > 1:
        merge_splits[num_seqs, num_heads](
            output,
            partial,
            batch.query_starts,
            batch.context_lens,
            *output.stride()[:2],
            *partial.stride()[:3],
            **shape,
        )


@triton.jit(do_not_specialize=["table_stride"])
def attend_split(
    output_ptr,
    partial_ptr,
    query_ptr,
    kv_ptr,
    tables_ptr,
    query_starts_ptr,
    context_lens_ptr,
    scale,
    output_token_stride,
    output_head_stride,
    partial_seq_stride,
    partial_head_stride,
    partial_split_stride,
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
    SPLIT: tl.constexpr,
    WHOLE: tl.constexpr,  # every context fits one split: write the output itself
    TILE: tl.constexpr,
):
    """One program: one split of one sequence, with all heads that share one KV head."""
    seq = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    token = tl.load(query_starts_ptr + seq).to(tl.int64)
    query_len = tl.load(query_starts_ptr + seq + 1) - token
    context_len = tl.load(context_lens_ptr + seq)
    begin = split * SPLIT
    end = tl.minimum(begin + SPLIT, context_len)
    if WINDOW > 0:
        begin = tl.maximum(begin, tl.maximum(context_len - WINDOW, 0) // TILE * TILE)
    if (query_len == 1) & (begin < end):
        rows = tl.arange(0, ROWS)
        heads = kv_head * GROUP + rows
        dims = tl.arange(0, DIM_PAD)
        inside = (rows < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
        at = query_ptr + token * query_token_stride + heads * query_head_stride
        query = tl.load(at[:, None] + dims[None, :], mask=inside, other=0.0).to(DOT_TYPE)
        result, top, total = walk_keys(
            query,
            tl.zeros([ROWS], tl.int32) + context_len - 1,
            kv_ptr + kv_head * kv_head_stride,
            tables_ptr + seq * table_stride,
            begin,
            end,
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
        if WHOLE:
            to = output_ptr + token * output_token_stride + heads * output_head_stride
            result = result / total[:, None]
            to = to[:, None] + dims[None, :]
            tl.store(to, result.to(output_ptr.dtype.element_ty), mask=inside)
        else:
            to = partial_ptr + seq * partial_seq_stride + split * partial_split_stride
            to += heads * partial_head_stride
            tl.store(to[:, None] + dims[None, :], result, mask=inside)
            tl.store(to + HEAD_DIM, top, mask=rows < GROUP)
            tl.store(to + HEAD_DIM + 1, total, mask=rows < GROUP)


@triton.jit
def merge_splits(
    output_ptr,
    partial_ptr,
    query_starts_ptr,
    context_lens_ptr,
    output_token_stride,
    output_head_stride,
    partial_seq_stride,
    partial_head_stride,
    partial_split_stride,
    WINDOW: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """One program: one query head of one sequence."""
    seq = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    token = tl.load(query_starts_ptr + seq).to(tl.int64)
    query_len = tl.load(query_starts_ptr + seq + 1) - token
    context_len = tl.load(context_lens_ptr + seq)
    if query_len == 1:
        first = 0
        if WINDOW > 0:
            first = tl.maximum(context_len - WINDOW, 0) // SPLIT
        dims = tl.arange(0, DIM_PAD)
        result = tl.zeros([DIM_PAD], tl.float32)
        at = partial_ptr + seq * partial_seq_stride + head * partial_head_stride
        top = tl.load(at + first * partial_split_stride + HEAD_DIM)
        total = 0.0
        for split in range(first, tl.cdiv(context_len, SPLIT)):
            part = at + split * partial_split_stride
            split_top = tl.load(part + HEAD_DIM)
            new_top = tl.maximum(top, split_top)
            shrink = tl.exp2(top - new_top)
            weight = tl.exp2(split_top - new_top)
            partial = tl.load(part + dims, mask=dims < HEAD_DIM, other=0.0)
            result = result * shrink + partial * weight
            total = total * shrink + tl.load(part + HEAD_DIM + 1) * weight
            top = new_top
        to = output_ptr + token * output_token_stride + head * output_head_stride + dims
        result = result / total
        tl.store(to, result.to(output_ptr.dtype.element_ty), mask=dims < HEAD_DIM)
