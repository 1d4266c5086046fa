"""Triton: attention of one query a sequence over the keys that are its own.

All query heads of a KV head are one tile, so its keys are read once. Contexts are cut over the
whole device (Flash-Decoding, Dao et al. 2023; see `kernels.triton.work` for the cut). What one
program computes alone goes to the output; other parts are merged, with those of shared prefixes, by
the program that finishes the last of them (`kernels.triton.merge`).
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.kv_format import is_quantized
from kernels.triton.arguments import (
    Groups,
    KvMemory,
    Rows,
    Sequences,
    Slots,
    memory_of,
    rows_of,
    sequences_of,
    table_of,
)
from kernels.triton.grouped import attend_shared_runs
from kernels.triton.merge import is_last, merge_item
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
    Partials,
    arrivals,
    capability,
    padded,
    partials,
    share_of_program,
    shared_kib,
    slots_of,
    store_partial,
)
from kernels.types import AttentionBatch

_FEWEST_ROWS = 16  # of a matrix product
_REGISTERS = 1 << 16  # of a processor
_MOST_REGISTERS = 255  # of a thread


def tiling(
    group: int,
    head_dim: int,
    dtype: torch.dtype,
    programs: int,
    *,
    quantized: bool,
    chunked: bool,
) -> Tiling:
    """The cut for `group` query heads a KV head, and so many programs a processor.

    The compiler spends every second stage on the lookup in the block table: of five, two tiles of
    keys are on their way while a third is computed. The assembler knows nothing of shared memory,
    and may spill to make room for one program more; where it would, it is told how many there are.
    """
    rows = max(_FEWEST_ROWS, triton.next_power_of_2(group))
    if head_dim > WIDE:
        return wide_tiling(rows, group, dtype, quantized=quantized)
    if dtype == torch.float32:
        return Tiling(rows, keys=32, num_warps=4, num_stages=1)
    keys = 64 if head_dim <= 128 else 32
    registers = None
    if programs < 3 or chunked:
        registers = min(_MOST_REGISTERS, _REGISTERS // (programs * 4 * 32) // 8 * 8)
    return Tiling(rows, keys, num_warps=4, num_stages=5, registers=registers)


def programs_per_processor(head_dim: int, *, quantized: bool, arch: int) -> int:
    """How many programs a processor has the shared memory, and the registers, to run at a time.

    With as many there is no second wave, and so none that is half empty.
    """
    if head_dim > WIDE:
        return 1
    if quantized:  # tiles are half as large, and take more registers
        return 2
    by_memory = {228: 3, 164: 2, 100: 1}[shared_kib(arch)]
    return by_memory if head_dim <= 128 else min(2, by_memory)


def attend_decode(
    query: Tensor,
    kv: Tensor,
    batch: AttentionBatch,
    scale: float,
    sliding_window: int | None,
    softcap: float | None,
    chunk: int | None,
    sinks: Tensor | None,
    value_dim: int,
    output: Tensor,
) -> None:
    """Fill `output` for every sequence with one query; leave the others' rows alone.

    One launch, and one more if there are groups.
    """
    num_seqs, num_kv_heads = len(batch.context_lens), kv.shape[2]
    is_local = sliding_window or chunk  # what is seen may begin inside a run
    groups = None if is_local else batch.groups
    shared, counts = None, (0, 0, 0, 0)
    if groups is not None:
        shared = attend_shared_runs(query, kv, batch, groups, scale, softcap, value_dim)
        counts = (shared.num_programs, shared.rows, len(groups.begins), len(groups.members))
    cut, own = _own_partials(query, kv, batch, value_dim, chunked=bool(chunk))
    attend_own[(own.num_programs,)](
        rows_of(output),
        own.slots,
        arrivals(num_seqs * num_kv_heads, query.device),
        None if shared is None else shared.slots,
        None if groups is None else table_of(groups),
        rows_of(query),
        memory_of(kv),
        sequences_of(batch, groups),
        batch.block_tables,
        sinks,
        batch.block_tables.stride(0),
        num_seqs,
        num_kv_heads,
        *counts,
        scale,
        SEQS=padded(num_seqs),
        ROWS=cut.rows,
        UNIT=own.unit,
        FIXED=own.fixed,
        GROUPS=padded(counts[2]),
        SHARED_UNIT=0 if shared is None else shared.unit,
        WINDOW=sliding_window or 0,
        CHUNK=chunk or 0,
        SOFTCAP=softcap or 0.0,
        **head_options(query, kv, value_dim),
        **cut.options(),
    )


def _own_partials(
    query: Tensor, kv: Tensor, batch: AttentionBatch, head_dim: int, *, chunked: bool
) -> tuple[Tiling, Partials]:
    """The cut of what sequences attend to alone, and room for its parts."""
    num_heads, num_kv_heads, device = query.shape[1], kv.shape[2], query.device
    group, fixed = num_heads // num_kv_heads, batch.batch_invariant
    quantized = is_quantized(kv.dtype)
    programs = programs_per_processor(head_dim, quantized=quantized, arch=capability(device))
    cut = tiling(group, head_dim, query.dtype, programs, quantized=quantized, chunked=chunked)
    return cut, partials(
        num_items=len(batch.context_lens) * num_kv_heads,
        rows=group,
        head_dim=head_dim,
        programs_per_processor=programs,
        unit=SPLIT if fixed else cut.keys,
        device=device,
        most_units=triton.cdiv(batch.max_context_len, SPLIT) if fixed else 0,
    )


@triton.jit
def own_range(
    seq,  # a row of the batch, or several
    real,
    seqs: Sequences,
    WINDOW: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Where the keys that a sequence attends to alone begin and end; nowhere for chunks."""
    first = tl.load(seqs.query_starts_ptr + seq, mask=real, other=0)
    query_len = tl.load(seqs.query_starts_ptr + seq + 1, mask=real, other=0) - first
    end = tl.load(seqs.context_lens_ptr + seq, mask=real, other=0)
    end = tl.where(query_len == 1, end, 0)
    if WINDOW > 0 or CHUNK > 0:
        begin = first_seen(end - 1, WINDOW, CHUNK)
    elif seqs.private_starts_ptr is not None:
        begin = tl.minimum(tl.load(seqs.private_starts_ptr + seq, mask=real, other=0), end)
    else:
        begin = end * 0
    return begin, end


@triton.jit
def own_units(begin, end, UNIT: tl.constexpr):
    """How many units those keys are: one at least, since somebody has to merge; none for chunks."""
    return tl.where(end > 0, tl.maximum(tl.cdiv(end - begin, UNIT), 1), 0)


@triton.jit(
    do_not_specialize=[
        "table_stride",
        "num_seqs",
        "num_shared_programs",
        "shared_rows",
        "num_groups",
        "num_memberships",
    ]
)
def attend_own(
    to: Rows,
    own: Slots,
    arrivals_ptr,
    shared: Slots | None,  # None: no groups
    table: Groups | None,
    query: Rows,
    kv: KvMemory,
    seqs: Sequences,
    tables_ptr,
    sinks_ptr,  # None: none
    table_stride,
    num_seqs,
    num_kv_heads,
    num_shared_programs,
    shared_rows,
    num_groups,
    num_memberships,
    scale,
    SEQS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    UNIT: tl.constexpr,
    FIXED: tl.constexpr,
    GROUPS: tl.constexpr,
    SHARED_UNIT: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNK: tl.constexpr,
    SOFTCAP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    KEY_REST: tl.constexpr,
    DOT_TYPE: tl.constexpr,
    TILE: tl.constexpr,
):
    """One program: an equal share of all keys, with all heads that share one KV head."""
    every = tl.arange(0, SEQS)
    begins, ends = own_range(every, every < num_seqs, seqs, WINDOW, CHUNK)
    units = own_units(begins, ends, UNIT) * num_kv_heads
    units_to = tl.cumsum(units)
    share, unit, last_of_program = share_of_program(tl.sum(units))
    while unit < last_of_program:
        seq = tl.sum((units_to <= unit).to(tl.int32))
        begin, end = own_range(seq, seq < num_seqs, seqs, WINDOW, CHUNK)
        units_per_head = own_units(begin, end, UNIT)
        unit_of_seq = unit - tl.sum(tl.where(every < seq, units, 0))
        kv_head = unit_of_seq // units_per_head
        first = unit_of_seq % units_per_head
        count = 1
        if not FIXED:
            count = tl.minimum(units_per_head - first, last_of_program - unit)

        rows = tl.arange(0, ROWS)
        real = rows < GROUP
        heads = kv_head * GROUP + rows
        token = tl.load(seqs.query_starts_ptr + seq).to(tl.int64)
        seen = walk_keys(
            load_queries(query, token, heads, real, HEAD_DIM, KEY_REST, DOT_TYPE),
            no_keys(ROWS, HEAD_DIM),
            tl.zeros([ROWS], tl.int32) + end,
            kv,
            kv_head,
            tables_ptr + seq.to(tl.int64) * table_stride,
            begin + first * UNIT,
            tl.minimum(begin + (first + count) * UNIT, end),
            scale,
            True,
            0,  # what the query sees first is where the walk begins
            0,
            SOFTCAP,
            BLOCK_SIZE,
            HEAD_DIM,
            KEY_REST,
            DOT_TYPE,
            TILE,
        )
        is_whole = count == units_per_head
        if shared is not None:
            is_whole &= tl.load(seqs.private_starts_ptr + seq) == 0
        # Loaded again rather than held in a register throughout.
        token = tl.load(seqs.query_starts_ptr + seq).to(tl.int64)
        if is_whole:
            store_result(to, token, heads, seen, sinks_ptr, real, HEAD_DIM)
        else:
            item = seq * num_kv_heads + kv_head
            slot, _last = slots_of(item, unit, 1, share, FIXED)
            store_partial(own, slot, seen, real, GROUP, HEAD_DIM)
            if is_last(arrivals_ptr, item, count, units_per_head):
                merge_item(
                    to,
                    own,
                    shared,
                    table,
                    sinks_ptr,
                    num_shared_programs,
                    shared_rows,
                    num_groups,
                    num_memberships,
                    seq,
                    token,
                    kv_head,
                    num_kv_heads,
                    unit - first,
                    units_per_head,
                    share,
                    GROUP,
                    FIXED,
                    GROUPS,
                    SHARED_UNIT,
                    HEAD_DIM,
                )
        unit += count
