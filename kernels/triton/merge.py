"""Triton: the partial results of decode merged by their log-sum-exp, in one fixed order."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.triton.decode import own_range
from kernels.triton.grouped import shared_shape
from kernels.triton.walk import LOWEST
from kernels.triton.work import Partials, add_partials, padded, slots_of
from kernels.types import AttentionBatch

SLOTS = 8
"""Partial results that a program reads at a time."""
MEMBERS = 128
"""Memberships that it looks through at a time."""


def merge(
    output: Tensor,
    batch: AttentionBatch,
    sliding_window: int | None,
    own: Partials,
    shared: Partials | None,
) -> None:
    """Fill `output` for every sequence with one query; leave the others' rows alone."""
    _, num_heads, head_dim = output.shape
    groups = batch.groups if shared is not None else None
    table = (
        (None,) * 5
        if groups is None
        else (
            groups.private_starts,
            groups.begins,
            groups.ends,
            groups.member_starts,
            groups.members,
        )
    )
    num_groups = 0 if groups is None else len(groups.begins)
    merge_partials[len(batch.context_lens), num_heads](
        output,
        *own.arguments(),
        *((None, None) if shared is None else shared.arguments()),
        batch.query_starts,
        batch.context_lens,
        *table,
        len(batch.context_lens),
        num_groups,
        0 if groups is None else len(groups.members),
        own.num_programs,
        0 if shared is None else shared.num_programs,
        *output.stride()[:2],
        SEQS=padded(len(batch.context_lens)),
        GROUPS=padded(num_groups),
        GROUP=own.rows,
        WINDOW=sliding_window or 0,
        UNIT=own.unit,
        FIXED=own.fixed,
        SHARED_ROWS=0 if shared is None else shared.rows,
        SHARED_UNIT=0 if shared is None else shared.unit,
        HEAD_DIM=head_dim,
        DIM_PAD=triton.next_power_of_2(head_dim),
        MEMBERS=MEMBERS,
        SLOTS=SLOTS,
        num_warps=4,
    )


@triton.jit(do_not_specialize=["num_seqs", "num_groups", "num_memberships"])
def merge_partials(
    output_ptr,
    own_outputs_ptr,
    own_sums_ptr,
    shared_outputs_ptr,
    shared_sums_ptr,
    query_starts_ptr,
    context_lens_ptr,
    private_starts_ptr,
    begins_ptr,
    ends_ptr,
    member_starts_ptr,
    members_ptr,
    num_seqs,
    num_groups,
    num_memberships,
    own_programs,
    shared_programs,
    output_token_stride,
    output_head_stride,
    SEQS: tl.constexpr,
    GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
    WINDOW: tl.constexpr,
    UNIT: tl.constexpr,
    FIXED: tl.constexpr,
    SHARED_ROWS: tl.constexpr,  # 0: no groups
    SHARED_UNIT: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    MEMBERS: tl.constexpr,
    SLOTS: tl.constexpr,
):
    """One program: one query head of one sequence."""
    seq = tl.program_id(0)
    head = tl.program_id(1)
    num_kv_heads = tl.num_programs(1) // GROUP
    query_len = tl.load(query_starts_ptr + seq + 1) - tl.load(query_starts_ptr + seq)
    if query_len == 1:
        output = tl.zeros([DIM_PAD], tl.float32)
        top = LOWEST
        total = 0.0
        if SHARED_ROWS > 0:
            output, top, total = add_shared(
                output,
                top,
                total,
                shared_outputs_ptr,
                shared_sums_ptr,
                begins_ptr,
                ends_ptr,
                member_starts_ptr,
                members_ptr,
                num_groups,
                num_memberships,
                shared_programs,
                seq,
                head,
                num_kv_heads,
                GROUPS,
                GROUP,
                SHARED_ROWS,
                SHARED_UNIT,
                HEAD_DIM,
                MEMBERS,
                SLOTS,
            )

        seqs = tl.arange(0, SEQS)
        begins, ends = own_range(
            seqs, seqs < num_seqs, query_starts_ptr, context_lens_ptr, private_starts_ptr, WINDOW
        )
        per_head = tl.cdiv(ends - begins, UNIT)
        units = per_head * num_kv_heads
        own_units = tl.sum(tl.where(seqs == seq, per_head, 0))
        kv_head = head // GROUP
        first_unit = tl.sum(tl.where(seqs < seq, units, 0)) + kv_head * own_units
        if own_units > 0:
            share = tl.cdiv(tl.sum(units), own_programs)
            first, last = slots_of(
                seq * num_kv_heads + kv_head, first_unit, own_units, share, FIXED
            )
            output, top, total = add_partials(
                output,
                top,
                total,
                own_outputs_ptr,
                own_sums_ptr,
                first,
                last,
                head % GROUP,
                GROUP,
                HEAD_DIM,
                SLOTS,
            )
        dims = tl.arange(0, DIM_PAD)
        # Loaded again rather than held in a register throughout.
        token = tl.load(query_starts_ptr + seq).to(tl.int64)
        to = output_ptr + token * output_token_stride + head * output_head_stride + dims
        output = output / tl.where(total > 0.0, total, 1.0)  # a row without any key gets zeros
        tl.store(to, output.to(output_ptr.dtype.element_ty), mask=dims < HEAD_DIM)


@triton.jit
def add_shared(
    output,
    top,
    total,
    outputs_ptr,
    sums_ptr,
    begins_ptr,
    ends_ptr,
    member_starts_ptr,
    members_ptr,
    num_groups,
    num_memberships,
    num_programs,
    seq,
    head,
    num_kv_heads,
    GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    UNIT: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    MEMBERS: tl.constexpr,
    SLOTS: tl.constexpr,
):
    """Returns output, top and total, with all groups of a sequence merged in."""
    TILE_MEMBERS: tl.constexpr = ROWS // GROUP
    groups = tl.arange(0, GROUPS)
    real = groups < num_groups
    tiles, runs = shared_shape(
        groups, real, begins_ptr, ends_ptr, member_starts_ptr, TILE_MEMBERS, UNIT
    )
    tiles = tl.where(runs > 0, tiles, 0)
    units = tiles * runs * num_kv_heads
    share = tl.cdiv(tl.sum(units), num_programs)
    starts = tl.load(member_starts_ptr + groups, mask=real, other=num_memberships)
    stops = tl.load(member_starts_ptr + groups + 1, mask=real, other=num_memberships)
    for start in range(0, num_memberships, MEMBERS):
        memberships = start + tl.arange(0, MEMBERS)
        inside = memberships < num_memberships
        found = tl.load(members_ptr + memberships, mask=inside, other=-1) == seq
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
                member = membership - tl.load(member_starts_ptr + group)
                num_tiles = tl.sum(tl.where(here, tiles, 0))
                item = head // GROUP * num_tiles + member // TILE_MEMBERS
                first_unit = tl.sum(tl.where(groups < group, units, 0)) + item * run_units
                item += tl.sum(tl.where(groups < group, tiles, 0)) * num_kv_heads
                first, last = slots_of(item, first_unit, run_units, share, False)
                output, top, total = add_partials(
                    output,
                    top,
                    total,
                    outputs_ptr,
                    sums_ptr,
                    first,
                    last,
                    member % TILE_MEMBERS * GROUP + head % GROUP,
                    ROWS,
                    HEAD_DIM,
                    SLOTS,
                )
            left -= 1
    return output, top, total
