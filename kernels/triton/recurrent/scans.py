"""Triton: Mamba-2's state space, token by token; a program has some rows of a head's state."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from kernels.triton.arguments import Rows, StatePages
from kernels.triton.recurrent.places import goes_on, page

_NUMBERS = 4096
"""Of a state in a program's registers."""


def row_block(head_dim: int, state_dim: int) -> int:
    """Rows of a program."""
    most = max(1, _NUMBERS // int(triton.next_power_of_2(state_dim)))
    return min(most, int(triton.next_power_of_2(head_dim)))


@triton.jit(do_not_specialize=["heads", "shared"])
def scan_runs(
    output_ptr,
    x: Rows,
    dt_ptr,
    a_ptr,
    b: Rows,
    c: Rows,
    d_ptr,  # or None
    states: StatePages,
    heads,
    shared,  # heads of a group
    HEAD_DIM: tl.constexpr,
    STATE_DIM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program: `BLOCK` rows of a head, of a run and those that go on from it."""
    run, head = tl.program_id(0), tl.program_id(1)
    rows = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    dims = tl.arange(0, triton.next_power_of_2(STATE_DIM))
    is_row, is_dim = rows < HEAD_DIM, dims < STATE_DIM
    inside = is_row[:, None] & is_dim[None, :]
    column = tl.load(states.columns_ptr + head)
    place = tl.load(states.offsets_ptr + head) + rows[:, None] * STATE_DIM + dims[None, :]
    rate = tl.load(a_ptr + head)
    skip = 0.0
    if d_ptr is not None:
        skip = tl.load(d_ptr + head)
    is_mine = goes_on(states, run, column) == 0
    while is_mine:
        begin, end = tl.load(states.starts_ptr + run), tl.load(states.starts_ptr + run + 1)
        number, source = page(states, states.sources_ptr, run, column)
        state = tl.load(source + place, mask=inside & (number >= 0), other=0.0)
        for token in range(begin, end):
            at = tl.cast(token, tl.int64)
            row = at * heads + head
            of_head = head * x.head_stride + rows
            given = tl.load(x.ptr + at * x.token_stride + of_head, mask=is_row, other=0.0)
            given = given.to(tl.float32)
            of_group = (head // shared) * b.head_stride + dims
            into = tl.load(b.ptr + at * b.token_stride + of_group, mask=is_dim, other=0.0)
            of_group = (head // shared) * c.head_stride + dims
            out = tl.load(c.ptr + at * c.token_stride + of_group, mask=is_dim, other=0.0)
            dt = tl.load(dt_ptr + row)
            state *= tl.exp(dt * rate)
            state += (dt * given)[:, None] * into.to(tl.float32)[None, :]
            found = tl.sum(state * out.to(tl.float32)[None, :], axis=1) + skip * given
            found = found.to(output_ptr.dtype.element_ty)
            tl.store(output_ptr + row * HEAD_DIM + rows, found, mask=is_row)
        number, target = page(states, states.targets_ptr, run, column)
        tl.store(target + place, state, mask=inside & (begin < end))
        tl.debug_barrier()  # what other threads have written may be read next
        run += 1
        is_mine = goes_on(states, run, column)
