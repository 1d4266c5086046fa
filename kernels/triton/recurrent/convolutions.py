"""Triton: causal convolutions of channels, several tokens at once; a program has some channels."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from kernels.triton.arguments import StatePages
from kernels.triton.recurrent.places import goes_on

BLOCK = 128
"""Channels of a program."""
TOKENS = 4
"""Of a run at once."""


@triton.jit(do_not_specialize=["channels"])
def convolve_runs(
    output_ptr,
    x_ptr,
    weight_ptr,  # [channels, WIDTH]
    bias_ptr,  # or None
    x_stride,
    channels,
    states: StatePages,
    WIDTH: tl.constexpr,
    ACTIVATED: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program: `BLOCK` channels, of a run and those that go on from it.

    Neighbours may lie in different pages, so each channel has its own, and a sequence's channels
    go on from the run before all together.
    """
    run = tl.program_id(0)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < channels
    column = tl.load(states.columns_ptr + channel, mask=inside, other=0)
    offset = tl.load(states.offsets_ptr + channel, mask=inside, other=0)
    first_column = tl.load(states.columns_ptr + tl.program_id(1) * BLOCK)
    is_mine = goes_on(states, run, first_column) == 0
    while is_mine:
        begin, end = tl.load(states.starts_ptr + run), tl.load(states.starts_ptr + run + 1)
        numbers = tl.load(states.sources_ptr + run * states.num_columns + column)
        source = states.ptr + numbers.to(tl.int64) * states.page_stride + offset
        known = inside & (numbers >= 0)
        for start in range(begin, end, TOKENS):
            token = start + tl.arange(0, TOKENS)
            there = (token < end)[:, None] & inside[None, :]
            made = tl.zeros([TOKENS, BLOCK], tl.float32)
            if bias_ptr is not None:
                bias = tl.load(bias_ptr + channel, mask=inside, other=0.0)
                made += bias.to(tl.float32)[None, :]
            for tap in tl.static_range(WIDTH):
                place = token - begin + tap - (WIDTH - 1)  # of the input among the run's
                row = (begin + place).to(tl.int64) * x_stride
                is_new = there & (place >= 0)[:, None]
                new = tl.load(x_ptr + row[:, None] + channel[None, :], mask=is_new, other=0.0)
                is_old = there & (place < 0)[:, None] & known[None, :]
                at = source[None, :] + (WIDTH + place)[:, None]
                old = tl.load(at, mask=is_old, other=0.0)
                weight = tl.load(weight_ptr + channel * WIDTH + tap, mask=inside, other=0.0)
                made += (new.to(tl.float32) + old.to(tl.float32)) * weight.to(tl.float32)[None, :]
            if ACTIVATED:
                made = made / (1.0 + tl.exp(-made))
            to = output_ptr + token.to(tl.int64)[:, None] * channels + channel[None, :]
            tl.store(to, made.to(output_ptr.dtype.element_ty), mask=there)
        tl.debug_barrier()  # all have read the state that is overwritten
        numbers = tl.load(states.targets_ptr + run * states.num_columns + column)
        target = states.ptr + numbers.to(tl.int64) * states.page_stride + offset
        for tap in tl.static_range(WIDTH):  # each is read before it is overwritten: it moves left
            place = end - begin - WIDTH + tap
            row = (begin + place).to(tl.int64) * x_stride
            new = tl.load(x_ptr + row + channel, mask=inside & (place >= 0), other=0.0)
            old = tl.load(source + WIDTH + place, mask=known & (place < 0), other=0.0)
            last = tl.where(place >= 0, new, old)
            tl.store(target + tap, last, mask=inside & (begin < end))
        tl.debug_barrier()  # what other threads have written may be read next
        run += 1
        is_mine = goes_on(states, run, first_column)
