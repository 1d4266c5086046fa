"""Triton: attention of one query a sequence over the keys that are its own.

All query heads of a KV head are one tile, so its keys are read once. Contexts are cut over the
whole device (Flash-Decoding, Dao et al. 2023; see `kernels.triton.work` for the cut), and the
partial results are merged with those of shared prefixes (`kernels.triton.merge`).
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.kv_format import is_quantized
from kernels.triton.arguments import (
    KvMemory,
    Rows,
    Sequences,
    Slots,
    memory_of,
    rows_of,
    sequences_of,
)
from kernels.triton.walk import Tiling, head_options, load_queries, no_keys, walk_keys
from kernels.triton.work import (
    Partials,
    capability,
    padded,
    partials,
    share_of_program,
    shared_kib,
    slots_of,
    store_partial,
)
from kernels.types import AttentionBatch

SPLIT = 512
"""Keys of a unit where results must not depend on batch-mates; a multiple of every tile."""

_FEWEST_ROWS = 16  # of a matrix product


def tiling(group: int, head_dim: int, dtype: torch.dtype) -> Tiling:
    """The cut for `group` query heads a KV head.

    The compiler spends every second stage on the lookup in the block table: of five, two tiles of
    keys are on their way while a third is computed.
    """
    rows = max(_FEWEST_ROWS, triton.next_power_of_2(group))
    if dtype == torch.float32:
        return Tiling(rows, keys=32, num_warps=4, num_stages=1)
    if head_dim <= 128:
        return Tiling(rows, keys=64, num_warps=4, num_stages=5)
    return Tiling(rows, keys=32, num_warps=4, num_stages=5)


def programs_per_processor(storage: torch.dtype, arch: int) -> int:
    """How many programs a processor has the shared memory, and the registers, to run at a time.

    With as many there is no second wave, and so none that is half empty.
    """
    if is_quantized(storage):  # tiles are half as large, and take more registers
        return 2
    return {228: 3, 164: 2, 100: 1}[shared_kib(arch)]


def attend_own_keys(
    query: Tensor,
    kv: Tensor,
    batch: AttentionBatch,
    scale: float,
    sliding_window: int | None,
    softcap: float | None,
) -> Partials:
    """Partial results of every sequence with one query; the items are (sequence, KV head)."""
    _, num_heads, head_dim = query.shape
    num_seqs, num_kv_heads = len(batch.context_lens), kv.shape[2]
    cut = tiling(num_heads // num_kv_heads, head_dim, query.dtype)
    parts = partials(
        num_items=num_seqs * num_kv_heads,
        rows=num_heads // num_kv_heads,
        head_dim=head_dim,
        programs_per_processor=programs_per_processor(kv.dtype, capability(query.device)),
        unit=SPLIT if batch.batch_invariant else cut.keys,
        device=query.device,
        most_units=triton.cdiv(batch.max_context_len, SPLIT) if batch.batch_invariant else 0,
    )
    attend_own[(parts.slots.num_programs,)](
        parts.slots,
        rows_of(query),
        memory_of(kv),
        sequences_of(batch),
        batch.block_tables,
        batch.block_tables.stride(0),
        num_seqs,
        num_kv_heads,
        scale,
        SEQS=padded(num_seqs),
        ROWS=cut.rows,
        UNIT=parts.unit,
        FIXED=parts.fixed,
        WINDOW=sliding_window or 0,
        SOFTCAP=softcap or 0.0,
        **head_options(query, kv),
        **cut.options(),
    )
    return parts


@triton.jit
def own_range(
    seq,  # a row of the batch, or several
    real,
    seqs: Sequences,
    WINDOW: tl.constexpr,
):
    """Where the keys that a sequence attends to alone begin and end; nowhere for chunks."""
    first = tl.load(seqs.query_starts_ptr + seq, mask=real, other=0)
    query_len = tl.load(seqs.query_starts_ptr + seq + 1, mask=real, other=0) - first
    end = tl.load(seqs.context_lens_ptr + seq, mask=real, other=0)
    end = tl.where(query_len == 1, end, 0)
    if WINDOW > 0:
        begin = tl.maximum(end - WINDOW, 0)
    elif seqs.private_starts_ptr is not None:
        begin = tl.minimum(tl.load(seqs.private_starts_ptr + seq, mask=real, other=0), end)
    else:
        begin = end * 0
    return begin, end


@triton.jit(do_not_specialize=["table_stride", "num_seqs"])
def attend_own(
    parts: Slots,
    query: Rows,
    kv: KvMemory,
    seqs: Sequences,
    tables_ptr,
    table_stride,
    num_seqs,
    num_kv_heads,
    scale,
    SEQS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    UNIT: tl.constexpr,
    FIXED: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DOT_TYPE: tl.constexpr,
    TILE: tl.constexpr,
):
    """One program: an equal share of all keys, with all heads that share one KV head."""
    every = tl.arange(0, SEQS)
    begins, ends = own_range(every, every < num_seqs, seqs, WINDOW)
    units = tl.cdiv(ends - begins, UNIT) * num_kv_heads
    units_to = tl.cumsum(units)
    share, unit, last_of_program = share_of_program(tl.sum(units))
    while unit < last_of_program:
        seq = tl.sum((units_to <= unit).to(tl.int32))
        before = tl.sum(tl.where(every < seq, units, 0))
        begin, end = own_range(seq, seq < num_seqs, seqs, WINDOW)
        units_per_head = tl.cdiv(end - begin, UNIT)
        kv_head = (unit - before) // units_per_head
        first = (unit - before) % units_per_head
        count = 1
        if not FIXED:
            count = tl.minimum(units_per_head - first, last_of_program - unit)

        rows = tl.arange(0, ROWS)
        real = rows < GROUP
        token = tl.load(seqs.query_starts_ptr + seq).to(tl.int64)
        seen = walk_keys(
            load_queries(query, token, kv_head * GROUP + rows, real, HEAD_DIM, DOT_TYPE),
            no_keys(ROWS, HEAD_DIM),
            tl.zeros([ROWS], tl.int32) + end,
            kv,
            kv_head,
            tables_ptr + seq.to(tl.int64) * table_stride,
            begin + first * UNIT,
            tl.minimum(begin + (first + count) * UNIT, end),
            scale,
            True,
            0,  # a window's first key is where the walk begins
            SOFTCAP,
            BLOCK_SIZE,
            HEAD_DIM,
            DOT_TYPE,
            TILE,
        )
        slot, _ = slots_of(seq * num_kv_heads + kv_head, unit, 1, share, FIXED)
        store_partial(parts, slot, seen, real, GROUP, HEAD_DIM)
        unit += count
