"""Triton: attention of the sequences that share a run of keys, over that run once.

The queries of a group, all heads of a KV head and all members, are stacked to one tile, so the run
is read once for all of them and attention over it is a product of matrices (Hydragen, Juravsky et
al. 2024; ChunkAttention, Ye et al. 2024). The table of groups is read on the device, so that a
captured graph serves whatever groups a step has.
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
    Slots,
    memory_of,
    rows_of,
    table_of,
)
from kernels.triton.walk import (
    WIDE,
    Tiling,
    head_options,
    load_queries,
    no_keys,
    walk_keys,
    wide_tiling,
)
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
from kernels.types import AttentionBatch, PrefixGroups

_FEWEST_ROWS, _MOST_ROWS = 16, 128
_PROGRAMS_PER_PROCESSOR = 1
"""Fewer and longer ones than in decode: a partial result here is a whole tile of rows."""


def tiling(
    group: int,
    max_members: int,
    head_dim: int,
    dtype: torch.dtype,
    arch: int,
    *,
    quantized: bool,
) -> Tiling:
    """The cut for `group` query heads a KV head and up to `max_members` sequences."""
    most = max(_MOST_ROWS, triton.next_power_of_2(group))
    rows = min(most, max(_FEWEST_ROWS, triton.next_power_of_2(group * max_members)))
    if head_dim > WIDE:
        return wide_tiling(rows, group, dtype, quantized=quantized)
    if dtype == torch.float32:
        return Tiling(min(rows, max(32, triton.next_power_of_2(group))), 32, 8, num_stages=1)
    if head_dim <= 128:
        keys, stages = (64, 5) if shared_kib(arch) > 100 else (32, 3)
    else:
        keys, stages = (32, 5) if shared_kib(arch) > 100 else (16, 3)
    return Tiling(rows, keys, num_warps=8 if rows >= 64 else 4, num_stages=stages)


def attend_shared_runs(
    query: Tensor,
    kv: Tensor,
    batch: AttentionBatch,
    groups: PrefixGroups,
    scale: float,
    softcap: float | None,
    head_dim: int,
) -> Partials:
    """Partial results of every group; the items are (group, KV head, tile of members).

    `head_dim` is that of values.
    """
    num_kv_heads, num_groups = kv.shape[2], len(groups.begins)
    group = query.shape[1] // num_kv_heads
    arch, quantized = capability(query.device), is_quantized(kv.dtype)
    cut = tiling(group, groups.max_members, head_dim, query.dtype, arch, quantized=quantized)
    most_tiles = num_groups + len(groups.members) // (cut.rows // group)
    parts = partials(
        num_items=num_kv_heads * most_tiles,
        rows=cut.rows,
        head_dim=head_dim,
        programs_per_processor=_PROGRAMS_PER_PROCESSOR,
        unit=cut.keys,
        device=query.device,
    )
    attend_shared[(parts.num_programs,)](
        parts.slots,
        rows_of(query),
        memory_of(kv),
        table_of(groups),
        batch.query_starts,
        batch.block_tables,
        batch.block_tables.stride(0),
        num_groups,
        num_kv_heads,
        scale,
        GROUPS=padded(num_groups),
        ROWS=cut.rows,
        SOFTCAP=softcap or 0.0,
        **head_options(query, kv, head_dim),
        **cut.options(),
    )
    return parts


@triton.jit
def shared_shape(
    group,  # a row of the table of groups, or several
    real,
    table: Groups,
    members,  # of a tile
    UNIT: tl.constexpr,
):
    """How many tiles of members a group has, and how many units its run; none for padding."""
    run = tl.load(table.ends_ptr + group, mask=real, other=0)
    run -= tl.load(table.begins_ptr + group, mask=real, other=0)
    count = tl.load(table.member_starts_ptr + group + 1, mask=real, other=0)
    count -= tl.load(table.member_starts_ptr + group, mask=real, other=0)
    return tl.cdiv(count, members), tl.cdiv(run, UNIT)


@triton.jit(do_not_specialize=["table_stride", "num_groups"])
def attend_shared(
    parts: Slots,
    query: Rows,
    kv: KvMemory,
    table: Groups,
    query_starts_ptr,
    tables_ptr,
    table_stride,
    num_groups,
    num_kv_heads,
    scale,
    GROUPS: tl.constexpr,
    GROUP: tl.constexpr,  # query heads a KV head
    ROWS: tl.constexpr,
    SOFTCAP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    KEY_REST: tl.constexpr,
    DOT_TYPE: tl.constexpr,
    TILE: tl.constexpr,
):
    """One program: an equal share of all shared keys, each with a tile of stacked queries."""
    MEMBERS: tl.constexpr = ROWS // GROUP
    groups = tl.arange(0, GROUPS)
    tiles, runs = shared_shape(groups, groups < num_groups, table, MEMBERS, TILE)
    units = tiles * runs * num_kv_heads
    units_to = tl.cumsum(units)
    share, unit, last_of_program = share_of_program(tl.sum(units))
    while unit < last_of_program:
        group = tl.sum((units_to <= unit).to(tl.int32))
        before = tl.sum(tl.where(groups < group, units, 0))
        items_before = tl.sum(tl.where((groups < group) & (runs > 0), tiles, 0)) * num_kv_heads
        num_tiles, run_units = shared_shape(group, group < num_groups, table, MEMBERS, TILE)
        item = (unit - before) // run_units
        first = (unit - before) % run_units
        count = tl.minimum(run_units - first, last_of_program - unit)
        kv_head = item // num_tiles
        begin = tl.load(table.begins_ptr + group)
        end = tl.load(table.ends_ptr + group)
        first_member = tl.load(table.member_starts_ptr + group)
        row_of_table = tl.load(table.members_ptr + first_member).to(tl.int64)

        rows = tl.arange(0, ROWS)
        member = first_member + item % num_tiles * MEMBERS + rows // GROUP
        real = (rows < MEMBERS * GROUP) & (member < tl.load(table.member_starts_ptr + group + 1))
        seq = tl.load(table.members_ptr + member, mask=real, other=0)
        token = tl.load(query_starts_ptr + seq, mask=real, other=0).to(tl.int64)
        head = kv_head * GROUP + rows % GROUP
        seen = walk_keys(
            load_queries(query, token, head, real, HEAD_DIM, KEY_REST, DOT_TYPE),
            no_keys(ROWS, HEAD_DIM),
            tl.zeros([ROWS], tl.int32) + end,
            kv,
            kv_head,
            tables_ptr + row_of_table * table_stride,
            begin + first * TILE,
            tl.minimum(begin + (first + count) * TILE, end),
            scale,
            True,
            0,
            0,
            SOFTCAP,
            BLOCK_SIZE,
            HEAD_DIM,
            KEY_REST,
            DOT_TYPE,
            TILE,
        )
        slot, _ = slots_of(items_before + item, unit, 1, share, False)
        store_partial(parts, slot, seen, real, ROWS, HEAD_DIM)
        unit += count
