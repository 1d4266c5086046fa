"""Triton: the partial results of decode merged by their log-sum-exp, in one fixed order.

Whoever brings the last part of an item merges it (as CUTLASS' Stream-K fixes tiles up): nothing is
launched for that. Programs count units as they arrive; each has stored its part before it counts,
and reads the others' parts after. The order of merging is that of the parts, whoever does it.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from kernels.triton.arguments import Groups, Rows, Slots
from kernels.triton.grouped import shared_shape
from kernels.triton.walk import no_keys, store_result
from kernels.triton.work import add_partials, slots_of

MEMBERS = tl.constexpr(128)
"""Memberships that a program looks through at a time."""
_MERGED = tl.constexpr(8192)
"""Numbers of a result that a program has registers for, and for as many that it adds."""


@triton.jit
def is_last(arrivals_ptr, item, count, all_units):
    """Whether all units of an item have arrived with these `count`, whose part is stored.

    The last one finds every part stored, and leaves the count at zero.
    """
    tl.debug_barrier()  # all threads of the program have stored before one of them counts
    arrived = tl.atomic_add(arrivals_ptr + item, count, sem="acq_rel", scope="gpu") + count
    tl.debug_barrier()
    if arrived == all_units:
        tl.store(arrivals_ptr + item, 0)
    return arrived == all_units


@triton.jit
def add_shared(
    seen,  # of the query heads of one KV head, as in `kernels.triton.walk`
    shared: Slots,
    table: Groups,
    num_programs,  # that computed the shared parts
    slot_rows,  # of such a part
    num_groups,
    num_memberships,
    seq,
    kv_head,
    num_kv_heads,
    heads,  # [rows], of the KV head
    real,  # [rows]
    GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
    UNIT: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """Returns `seen` with all groups of a sequence merged in."""
    tile_members = slot_rows // GROUP
    groups = tl.arange(0, GROUPS)
    exists = groups < num_groups
    tiles, runs = shared_shape(groups, exists, table, tile_members, UNIT)
    tiles = tl.where(runs > 0, tiles, 0)
    units = tiles * runs * num_kv_heads
    share = tl.cdiv(tl.sum(units), num_programs)
    starts = tl.load(table.member_starts_ptr + groups, mask=exists, other=num_memberships)
    stops = tl.load(table.member_starts_ptr + groups + 1, mask=exists, other=num_memberships)
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
                item = kv_head * num_tiles + member // tile_members
                first_unit = tl.sum(tl.where(groups < group, units, 0)) + item * run_units
                item += tl.sum(tl.where(groups < group, tiles, 0)) * num_kv_heads
                rows = member % tile_members * GROUP + heads
                first, last = slots_of(item, first_unit, run_units, share, False)
                output, top, total = add_partials(
                    (output, top, total), shared, first, last, rows, real, slot_rows, HEAD_DIM
                )
            left -= 1
    return output, top, total


@triton.jit
def merge_item(
    to: Rows,
    own: Slots,
    shared: Slots | None,
    table: Groups | None,
    sinks_ptr,
    num_shared_programs,
    shared_rows,
    num_groups,
    num_memberships,
    seq,
    token,
    kv_head,
    num_kv_heads,
    first_unit,
    num_units,
    share,
    GROUP: tl.constexpr,
    FIXED: tl.constexpr,
    GROUPS: tl.constexpr,
    SHARED_UNIT: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """Merge all parts of what the heads of one KV head attend to, and store the result."""
    ROWS: tl.constexpr = triton.next_power_of_2(GROUP)
    MOST: tl.constexpr = _MERGED // triton.next_power_of_2(HEAD_DIM)
    AT_ONCE: tl.constexpr = ROWS if ROWS < MOST else MOST
    item = seq * num_kv_heads + kv_head
    first, last = slots_of(item, first_unit, num_units, share, FIXED)
    for start in range(0, ROWS, AT_ONCE):
        heads = start + tl.arange(0, AT_ONCE)
        real = heads < GROUP
        seen = no_keys(AT_ONCE, HEAD_DIM)
        if shared is not None:
            seen = add_shared(
                seen,
                shared,
                table,
                num_shared_programs,
                shared_rows,
                num_groups,
                num_memberships,
                seq,
                kv_head,
                num_kv_heads,
                heads,
                real,
                GROUPS,
                GROUP,
                SHARED_UNIT,
                HEAD_DIM,
            )
        seen = add_partials(seen, own, first, last, heads, real, GROUP, HEAD_DIM)
        store_result(to, token, kv_head * GROUP + heads, seen, sinks_ptr, real, HEAD_DIM)
