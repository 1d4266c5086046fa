"""Triton: the partial results of decode merged by their log-sum-exp, in one fixed order."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.triton.arguments import (
    Groups,
    Rows,
    Sequences,
    Slots,
    rows_of,
    sequences_of,
    table_of,
)
from kernels.triton.decode import own_range
from kernels.triton.grouped import shared_shape
from kernels.triton.walk import LOWEST
from kernels.triton.work import Partials, add_partials, padded, slots_of
from kernels.types import AttentionBatch

MEMBERS = tl.constexpr(128)
"""Memberships that a program looks through at a time."""


def merge(
    output: Tensor,
    batch: AttentionBatch,
    sliding_window: int | None,
    own: Partials,
    shared: Partials | None,
) -> None:
    """Fill `output` for every sequence with one query; leave the others' rows alone."""
    _, num_heads, head_dim = output.shape
    num_seqs = len(batch.context_lens)
    groups = None if shared is None else batch.groups
    num_groups = 0 if groups is None else len(groups.begins)
    merge_partials[num_seqs, num_heads](
        rows_of(output),
        own.slots,
        None if shared is None else shared.slots,
        sequences_of(batch),
        None if groups is None else table_of(groups),
        num_seqs,
        num_groups,
        0 if groups is None else len(groups.members),
        SEQS=padded(num_seqs),
        GROUPS=padded(num_groups),
        GROUP=own.rows,
        WINDOW=sliding_window or 0,
        UNIT=own.unit,
        FIXED=own.fixed,
        SHARED_ROWS=0 if shared is None else shared.rows,
        SHARED_UNIT=0 if shared is None else shared.unit,
        HEAD_DIM=head_dim,
        num_warps=4,
    )


@triton.jit(do_not_specialize=["num_seqs", "num_groups", "num_memberships"])
def merge_partials(
    to: Rows,
    own: Slots,
    shared: Slots | None,  # None: no groups
    seqs: Sequences,
    table: Groups | None,
    num_seqs,
    num_groups,
    num_memberships,
    SEQS: tl.constexpr,
    GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
    WINDOW: tl.constexpr,
    UNIT: tl.constexpr,
    FIXED: tl.constexpr,
    SHARED_ROWS: tl.constexpr,
    SHARED_UNIT: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """One program: one query head of one sequence."""
    seq = tl.program_id(0)
    head = tl.program_id(1)
    query_len = tl.load(seqs.query_starts_ptr + seq + 1) - tl.load(seqs.query_starts_ptr + seq)
    if query_len == 1:
        dims = tl.arange(0, triton.next_power_of_2(HEAD_DIM))
        none = tl.zeros([triton.next_power_of_2(HEAD_DIM)], tl.float32)
        seen = (none, tl.full([], LOWEST, tl.float32), tl.full([], 0.0, tl.float32))
        if shared is not None:
            seen = add_shared(
                seen,
                shared,
                table,
                num_groups,
                num_memberships,
                seq,
                head,
                GROUPS,
                GROUP,
                SHARED_ROWS,
                SHARED_UNIT,
                HEAD_DIM,
            )
        output, _, total = add_own(
            seen, own, seqs, num_seqs, seq, head, SEQS, GROUP, WINDOW, UNIT, FIXED, HEAD_DIM
        )
        # Loaded again rather than held in a register throughout.
        token = tl.load(seqs.query_starts_ptr + seq).to(tl.int64)
        at = to.ptr + token * to.token_stride + head * to.head_stride + dims
        output = output / tl.where(total > 0.0, total, 1.0)  # a row without any key gets zeros
        tl.store(at, output.to(to.ptr.dtype.element_ty), mask=dims < HEAD_DIM)


@triton.jit
def add_own(
    seen,
    own: Slots,
    seqs: Sequences,
    num_seqs,
    seq,
    head,
    SEQS: tl.constexpr,
    GROUP: tl.constexpr,
    WINDOW: tl.constexpr,
    UNIT: tl.constexpr,
    FIXED: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """Returns `seen` with what the sequence attended to alone merged in."""
    num_kv_heads = tl.num_programs(1) // GROUP
    kv_head = head // GROUP
    every = tl.arange(0, SEQS)
    begins, ends = own_range(every, every < num_seqs, seqs, WINDOW)
    per_head = tl.cdiv(ends - begins, UNIT)
    units = per_head * num_kv_heads
    own_units = tl.sum(tl.where(every == seq, per_head, 0))
    first_unit = tl.sum(tl.where(every < seq, units, 0)) + kv_head * own_units
    output, top, total = seen
    if own_units > 0:
        share = tl.cdiv(tl.sum(units), own.num_programs)
        item = seq * num_kv_heads + kv_head
        first, last = slots_of(item, first_unit, own_units, share, FIXED)
        output, top, total = add_partials(
            (output, top, total), own, first, last, head % GROUP, GROUP, HEAD_DIM
        )
    return output, top, total


@triton.jit
def add_shared(
    seen,
    shared: Slots,
    table: Groups,
    num_groups,
    num_memberships,
    seq,
    head,
    GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    UNIT: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """Returns `seen` with all groups of a sequence merged in."""
    TILE_MEMBERS: tl.constexpr = ROWS // GROUP
    num_kv_heads = tl.num_programs(1) // GROUP
    groups = tl.arange(0, GROUPS)
    real = groups < num_groups
    tiles, runs = shared_shape(groups, real, table, TILE_MEMBERS, UNIT)
    tiles = tl.where(runs > 0, tiles, 0)
    units = tiles * runs * num_kv_heads
    share = tl.cdiv(tl.sum(units), shared.num_programs)
    starts = tl.load(table.member_starts_ptr + groups, mask=real, other=num_memberships)
    stops = tl.load(table.member_starts_ptr + groups + 1, mask=real, other=num_memberships)
    output, top, total = seen
    for start in range(0, num_memberships, MEMBERS):
        memberships = start + tl.arange(0, MEMBERS)
        inside = memberships < num_memberships
        found = tl.load(table.members_ptr + memberships, mask=inside, other=-1) == seq
        left = tl.sum(found.to(tl.int32))
        membership = start - 1
        while left > 0:
            behind = found & (memberships > membership)
            membership = tl.min(tl.where(behind, memberships, num_memberships))
            # Behind the last group's members there may be padding, which is in no group.
            here = (starts <= membership) & (membership < stops)
            run_units = tl.sum(tl.where(here, runs, 0))
            if run_units > 0:
                group = tl.sum(tl.where(here, groups, 0))
                # Loaded again: looked up in `starts`, it costs a register too many on sm_80.
                member = membership - tl.load(table.member_starts_ptr + group)
                num_tiles = tl.sum(tl.where(here, tiles, 0))
                item = head // GROUP * num_tiles + member // TILE_MEMBERS
                first_unit = tl.sum(tl.where(groups < group, units, 0)) + item * run_units
                item += tl.sum(tl.where(groups < group, tiles, 0)) * num_kv_heads
                first, last = slots_of(item, first_unit, run_units, share, False)
                row = member % TILE_MEMBERS * GROUP + head % GROUP
                output, top, total = add_partials(
                    (output, top, total), shared, first, last, row, ROWS, HEAD_DIM
                )
            left -= 1
    return output, top, total
