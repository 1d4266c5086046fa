"""Triton: the gated delta rule, token by token; a program has some columns of a head's state."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from kernels.triton.arguments import Rows, StatePages
from kernels.triton.recurrent.places import goes_on, page

_NUMBERS = 4096
"""Of a state in a program's registers."""


def value_block(key_dim: int, value_dim: int) -> int:
    """Columns of a program."""
    most = max(1, _NUMBERS // int(triton.next_power_of_2(key_dim)))
    return min(most, int(triton.next_power_of_2(value_dim)))


@triton.jit(do_not_specialize=["heads", "shared"])
def apply_delta(
    output_ptr,
    q: Rows,
    k: Rows,
    v: Rows,
    decay_ptr,
    beta_ptr,
    states: StatePages,
    heads,
    shared,  # value heads of a key head
    scale,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BY_KEY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program: `BLOCK` columns of a head, of a run and those that go on from it."""
    run, head = tl.program_id(0), tl.program_id(1)
    keys = tl.arange(0, triton.next_power_of_2(KEY_DIM))
    values = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    is_key, is_value = keys < KEY_DIM, values < VALUE_DIM
    inside = is_key[:, None] & is_value[None, :]
    column = tl.load(states.columns_ptr + head)
    place = tl.load(states.offsets_ptr + head) + keys[:, None] * VALUE_DIM + values[None, :]
    is_mine = goes_on(states, run, column) == 0
    while is_mine:
        begin, end = tl.load(states.starts_ptr + run), tl.load(states.starts_ptr + run + 1)
        number, source = page(states, states.sources_ptr, run, column)
        state = tl.load(source + place, mask=inside & (number >= 0), other=0.0)
        for token in range(begin, end):
            at = tl.cast(token, tl.int64)
            key_head = (head // shared) * q.head_stride + keys
            query = tl.load(q.ptr + at * q.token_stride + key_head, mask=is_key, other=0.0)
            key_head = (head // shared) * k.head_stride + keys
            key = tl.load(k.ptr + at * k.token_stride + key_head, mask=is_key, other=0.0)
            query, key = normalised(query.to(tl.float32)) * scale, normalised(key.to(tl.float32))
            value_head = head * v.head_stride + values
            value = tl.load(v.ptr + at * v.token_stride + value_head, mask=is_value, other=0.0)
            row = at * heads + head
            if BY_KEY:
                decay = tl.load(decay_ptr + row * KEY_DIM + keys, mask=is_key, other=0.0)
                state *= tl.exp(decay)[:, None]
            else:
                state *= tl.exp(tl.load(decay_ptr + row))
            unknown = value.to(tl.float32) - tl.sum(state * key[:, None], axis=0)
            learnt = unknown * tl.load(beta_ptr + row).to(tl.float32)
            state += key[:, None] * learnt[None, :]
            found = tl.sum(state * query[:, None], axis=0).to(output_ptr.dtype.element_ty)
            tl.store(output_ptr + row * VALUE_DIM + values, found, mask=is_value)
        number, target = page(states, states.targets_ptr, run, column)
        tl.store(target + place, state, mask=inside & (begin < end))
        tl.debug_barrier()  # what other threads have written may be read next
        run += 1
        is_mine = goes_on(states, run, column)


@triton.jit
def normalised(x):
    """A vector of length 1."""
    return x * tl.rsqrt(tl.sum(x * x) + 1e-6)
