"""Triton: draw tokens without sorting; one program takes a row.

A cut (top_k, top_p) is looked for by threshold, over the bits of gaps, which are ordered like them
(as FlashInfer does by pivots: Ye et al., "Sorting-free GPU kernels for LLM sampling", 2025): each
pass over the row leaves a quarter of what was possible, and tiles that hold nothing of it are read
and passed over. See `kernels.sampling`, and `kernels.reference.sampling` for what the numbers are.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.types import Masks

BLOCK = 2048
NUM_WARPS = 16
MASKING_BLOCK = 2048
MASKING_OPTIONS = {"num_warps": 4}

_INFINITE = tl.constexpr(0x7F800000)
"""The bits of infinity."""
_ROUNDING = tl.constexpr(1.5 * 2.0**52)
"""Adding it to a float64 rounds that to a whole number, which lies in the low bits."""
_LOG2_E = tl.constexpr(float.fromhex("0x1.7154765p0"))
_CELLS = tl.constexpr(2.0**52)


def draw(scores: Tensor, states: Tensor, numbers: Tensor, masks: Masks | None = None) -> Tensor:
    """See `kernels.sampling.draw`."""
    if masks is not None:
        scores = masked(scores, masks)
    num_rows, size = scores.shape
    tokens = torch.empty(num_rows, dtype=torch.int64, device=scores.device)
    draw_rows[(num_rows,)](
        tokens,
        scores,
        states,
        numbers,
        scores.stride(0),
        num_rows,
        size,
        BLOCK=BLOCK,
        num_warps=NUM_WARPS,
    )
    return tokens


def masked(scores: Tensor, masks: Masks) -> Tensor:
    """A copy with -inf where tokens may not be drawn, in one pass over the scores."""
    num_rows, size = scores.shape
    output = torch.empty(scores.shape, dtype=scores.dtype, device=scores.device)
    mask_rows[num_rows, triton.cdiv(size, BLOCK)](
        output,
        scores,
        masks.words,
        masks.places,
        scores.stride(0),
        masks.words.shape[1],
        size,
        BLOCK=MASKING_BLOCK,
        **MASKING_OPTIONS,
    )
    return output


@triton.jit
def load_scores(row_ptr, tokens, size):
    """Scores of some tokens, in float32; -inf where there are none."""
    scores = tl.load(row_ptr + tokens, mask=tokens < size, other=float("-inf")).to(tl.float32)
    return tl.where(scores == scores, scores, float("-inf"))


@triton.jit
def weigh(gaps):
    """Whole numbers, in float64: `kernels.reference.sampling.weights`."""
    power = tl.minimum(gaps.to(tl.float64) * _LOG2_E, 64.0)
    shifted = power + _ROUNDING
    rest = rounded(power - (shifted - _ROUNDING))
    series = rounded(rest * 0.00015461444854736328 - 0.0013390779495239258)
    series = rounded(series * rest + 0.009618056938052177)
    series = rounded(series * rest - 0.05550356954336166)
    series = rounded(series * rest + 0.24022650718688965)
    series = rounded(series * rest - 0.6931471824645996)
    series = rounded(series * rest + 1.0)
    exponent = (1023 + 34) - shifted.to(tl.int64, bitcast=True)
    scale = (exponent << 52).to(tl.float64, bitcast=True)
    return (series * scale + _CELLS) - _CELLS


@triton.jit
def rounded(values):
    """Multiples of 2**-25."""
    magic = 1.5 * 2.0**27
    return (values + magic) - magic


@triton.jit
def amount(gaps, BY_MASS: tl.constexpr):
    """What a token counts in a search: 1, or its mass."""
    if BY_MASS:
        return weigh(gaps)
    return (gaps >= 0).to(tl.float64)


@triton.jit
def is_kept(keys, tokens, cut_key, cut_last):
    """Whether tokens with such keys come no later than the cut."""
    return (keys < cut_key) | ((keys == cut_key) & (tokens <= cut_last))


@triton.jit
def total(row_ptr, size, highest, inverse, cut_key, cut_last, BLOCK: tl.constexpr):
    """The mass of what the cut keeps."""
    sums = tl.zeros([BLOCK], tl.float64)
    for start in range(0, size, BLOCK):
        tokens = start + tl.arange(0, BLOCK)
        gaps = (highest - load_scores(row_ptr, tokens, size)) * inverse
        kept = is_kept(gaps.to(tl.int32, bitcast=True), tokens, cut_key, cut_last)
        sums += tl.where(kept, weigh(gaps), 0.0)
    return tl.sum(sums, 0)


@triton.jit
def find_cut(
    row_ptr,
    size,
    highest,
    inverse,
    cut_key,
    cut_last,
    needed,
    BY_MASS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Where the first `needed` tokens, or so much mass, of what a cut keeps end: a cut again."""
    low = tl.zeros([], tl.int32)
    high = cut_key
    while low < high:
        step = (high - low) // 4
        first, second, third = low + step, low + 2 * step, low + 3 * step
        firsts = tl.zeros([BLOCK], tl.float64)
        seconds = tl.zeros([BLOCK], tl.float64)
        thirds = tl.zeros([BLOCK], tl.float64)
        for start in range(0, size, BLOCK):
            tokens = start + tl.arange(0, BLOCK)
            gaps = (highest - load_scores(row_ptr, tokens, size)) * inverse
            keys = gaps.to(tl.int32, bitcast=True)
            near = (keys >= low) & (keys <= third) & is_kept(keys, tokens, cut_key, cut_last)
            if tl.max(near.to(tl.int32), 0) > 0:
                amounts = tl.where(near, amount(gaps, BY_MASS), 0.0)
                firsts += tl.where(keys <= first, amounts, 0.0)
                seconds += tl.where(keys <= second, amounts, 0.0)
                thirds += amounts
        until_first, until_second = tl.sum(firsts, 0), tl.sum(seconds, 0)
        until_third = tl.sum(thirds, 0)
        if until_first >= needed:
            high = first
        elif until_second >= needed:
            needed -= until_first
            low = first + 1
            high = second
        elif until_third >= needed:
            needed -= until_second
            low = second + 1
            high = third
        else:
            needed -= until_third
            low = third + 1
    each = amount(low.to(tl.float32, bitcast=True), BY_MASS)
    return low, last_tie(row_ptr, size, highest, inverse, low, needed, each, BLOCK)


@triton.jit
def last_tie(row_ptr, size, highest, inverse, key, needed, each, BLOCK: tl.constexpr):
    """The token up to which it takes those with this key, of `each`, to have what is needed."""
    last = tl.full([], -1, tl.int32)
    for start in range(0, size, BLOCK):
        tokens = start + tl.arange(0, BLOCK)
        gaps = (highest - load_scores(row_ptr, tokens, size)) * inverse
        ties = (gaps.to(tl.int32, bitcast=True) == key).to(tl.int32)
        number = tl.sum(ties, 0)
        if (needed > 0) & (number > 0):
            before = (tl.cumsum(ties, 0) - 1).to(tl.float64) * each
            last = tl.maximum(last, tl.max(tl.where((ties > 0) & (before < needed), tokens, -1), 0))
            needed -= number.to(tl.float64) * each
    return last


@triton.jit
def noise_cells(state, tokens):
    """Which of 2**52 cells of the unit interval each token has: see `kernels.noise`."""
    value = state + (tokens + 1).to(tl.uint64) * 0x9E3779B97F4A7C15
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB
    value = value ^ (value >> 31)
    # As signed numbers: that is what processors convert.
    return (value >> 12).to(tl.int64, bitcast=True).to(tl.float64)


@triton.jit
def race(row_ptr, size, highest, inverse, cut_key, cut_last, state, BLOCK: tl.constexpr):
    """The token with the largest sum of Gumbel noise and negative gap.

    Noise of g or more takes one of the last 2**52 * e**-g cells, since 1 - u <= -log u; tiles in
    which no token has one of those that could win take no logarithms.
    """
    best = tl.full([], -1e30, tl.float64)
    winner = tl.zeros([], tl.int32)
    for start in range(0, size, BLOCK):
        tokens = start + tl.arange(0, BLOCK)
        gaps = (highest - load_scores(row_ptr, tokens, size)) * inverse
        kept = is_kept(gaps.to(tl.int32, bitcast=True), tokens, cut_key, cut_last)
        lead = tl.maximum(best.to(tl.float32) + gaps, 0.0)
        cells = noise_cells(state, tokens)
        may_win = kept & (_CELLS - 1 - cells <= tl.exp(-lead).to(tl.float64) * (1.001 * _CELLS))
        if tl.max(may_win.to(tl.int32), 0) > 0:
            noise = -tl.log(-tl.log((cells + 0.5) * (1 / _CELLS)))
            sums = tl.where(may_win, noise - gaps.to(tl.float64), float("-inf"))
            highest_sum = tl.max(sums, 0)
            if highest_sum > best:
                best = highest_sum
                winner = tl.min(tl.where(sums == highest_sum, tokens, size), 0)
    return winner


@triton.jit
def draw_rows(
    tokens_ptr,
    scores_ptr,
    states_ptr,
    numbers_ptr,
    scores_row,
    num_rows,
    size,
    BLOCK: tl.constexpr,
):
    """One program: one row."""
    row = tl.program_id(0)
    row_ptr = scores_ptr + row.to(tl.int64) * scores_row
    tops = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in range(0, size, BLOCK):
        tops = tl.maximum(tops, load_scores(row_ptr, start + tl.arange(0, BLOCK), size))
    highest = tl.max(tops, 0)
    inverse = tl.load(numbers_ptr + row).to(tl.float32)
    if (inverse == 0) | (tl.abs(highest) == float("inf")):
        first = size
        for start in range(0, size, BLOCK):
            tokens = start + tl.arange(0, BLOCK)
            is_highest = load_scores(row_ptr, tokens, size) == highest
            first = tl.minimum(first, tl.min(tl.where(is_highest, tokens, size), 0))
        tl.store(tokens_ptr + row, first.to(tl.int64))
    else:
        top_k = tl.load(numbers_ptr + num_rows + row)
        top_p = tl.load(numbers_ptr + 2 * num_rows + row)
        widest = tl.abs(tl.load(numbers_ptr + 3 * num_rows + row).to(tl.float32))  # 0 has one key
        cut_key = tl.full([], _INFINITE, tl.int32)
        cut_last = size - 1
        if (top_k > 0) & (top_k < size):
            cut_key, cut_last = find_cut(
                row_ptr, size, highest, inverse, cut_key, cut_last, top_k, False, BLOCK
            )
        if top_p < 1:
            mass = total(row_ptr, size, highest, inverse, cut_key, cut_last, BLOCK)
            needed = tl.maximum(tl.ceil(top_p * mass), 1.0)
            cut_key, cut_last = find_cut(
                row_ptr, size, highest, inverse, cut_key, cut_last, needed, True, BLOCK
            )
        widest_key = widest.to(tl.int32, bitcast=True)
        if widest_key < cut_key:
            cut_key = widest_key
            cut_last = size - 1
        state = tl.load(states_ptr + row).to(tl.uint64, bitcast=True)
        winner = race(row_ptr, size, highest, inverse, cut_key, cut_last, state, BLOCK)
        tl.store(tokens_ptr + row, winner.to(tl.int64))


@triton.jit
def mask_rows(
    output_ptr,
    scores_ptr,
    words_ptr,
    places_ptr,
    stride,
    num_words,
    size,
    BLOCK: tl.constexpr,
):
    """One program: `BLOCK` scores of one row."""
    row = tl.program_id(0).to(tl.int64)
    tokens = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = tokens < size
    scores = tl.load(scores_ptr + row * stride + tokens, mask=inside, other=0.0).to(tl.float32)
    place = tl.load(places_ptr + row)
    if place >= 0:
        words = tl.load(words_ptr + place * num_words + tokens // 32, mask=inside, other=0)
        allowed = (words >> (tokens % 32)) & 1
        scores = tl.where(allowed > 0, scores, float("-inf"))
    tl.store(output_ptr + row * size + tokens, scores, mask=inside)
