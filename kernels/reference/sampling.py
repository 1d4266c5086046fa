"""Drawing tokens in plain torch, row by row: what the other rooms must draw.

It looks at few tokens, too: nothing is sorted but those among which a cut lies, and logarithms are
taken for those that may win.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from kernels import noise
from kernels.types import Masks

UNIT = 34
"""A weight is a whole number of 2**-34ths of that of the likeliest token: sums are exact."""
LOG2_E = float.fromhex("0x1.7154765p0")
"""In 29 bits, so that its products with a float32 are exact in float64."""
SERIES = tuple(
    float.fromhex(value)
    for value in (
        "0x1.444p-13",
        "-0x1.5f08p-10",
        "0x1.3b2a1cp-7",
        "-0x1.c6af6cp-5",
        "0x1.ebfbe0p-3",
        "-0x1.62e430p-1",
        "0x1.0p0",
    )
)
"""Of 2**-x for x between -1/2 and 1/2, the highest power first; within 5e-8."""
_FIRST_LOOK = 256
"""Tokens among which a cut is looked for at first; then twice as many, and so on."""


def draw(scores: Tensor, states: Tensor, numbers: Tensor, masks: Masks | None = None) -> Tensor:
    """See `kernels.sampling.draw`."""
    if masks is not None:
        scores = masked(scores, masks)
    rows = zip(scores, states.tolist(), numbers.t().tolist(), strict=True)
    tokens = [_draw_row(row.float(), state, *of_row) for row, state, of_row in rows]
    return torch.tensor(tokens, dtype=torch.int64)


def masked(scores: Tensor, masks: Masks) -> Tensor:
    """A copy with -inf where tokens may not be drawn."""
    rows = (masks.places >= 0).nonzero()[:, 0]
    words = masks.words[masks.places[rows]]
    bits = words[:, :, None] >> torch.arange(32, device=words.device) & 1
    is_out = bits.flatten(1)[:, : scores.shape[1]] == 0
    return scores.index_copy(0, rows, scores[rows].masked_fill(is_out, -math.inf))


def weights(gaps: Tensor) -> Tensor:
    """2**34 * exp(-gap), rounded to whole numbers, float64 for float32.

    Sums are rounded to few bits, so that every product is exact: the result is the same, bit for
    bit, wherever it is computed, with fused products or without.
    """
    power = (gaps.double() * LOG2_E).clamp(max=64.0)
    whole = power.round()
    rest = _rounded(power - whole)
    series = torch.full_like(rest, SERIES[0])
    for factor in SERIES[1:]:
        series = _rounded(series * rest + factor)
    return torch.ldexp(series, UNIT - whole).round()


def _rounded(values: Tensor) -> Tensor:
    """Multiples of 2**-25."""
    return (values * 2.0**25).round() * 2.0**-25


def _draw_row(
    scores: Tensor, state: int, inverse: float, top_k: float, top_p: float, widest: float
) -> int:
    scores = scores.nan_to_num(nan=-math.inf, posinf=math.inf, neginf=-math.inf)
    highest = scores.max()
    if inverse == 0 or not highest.isfinite():
        return _first(scores == highest)
    gaps = (highest - scores) * inverse
    kept = gaps <= widest
    if 0 < top_k < len(gaps):
        kept &= _first_ones(gaps, gaps.kthvalue(int(top_k)).values, int(top_k))
    if top_p < 1:
        kept &= _nucleus(gaps, int(top_k), top_p)
    return _race(gaps, kept.nonzero()[:, 0], state)


def _first_ones(gaps: Tensor, last_gap: Tensor, count: int) -> Tensor:
    """Which tokens are the first `count`, of which the last one has the gap `last_gap`."""
    before, ties = gaps < last_gap, gaps == last_gap
    return before | (ties & (ties.cumsum(0) <= count - before.sum()))


def _nucleus(gaps: Tensor, top_k: int, top_p: float) -> Tensor:
    """Which tokens come before so much of the mass of the first `top_k` (0: of all)."""
    size = len(gaps)
    most = top_k if 0 < top_k < size else size
    mass = None if most < size else weights(gaps).sum()
    look = _FIRST_LOOK
    while True:
        # Stable: of tokens with one score, those with smaller numbers come first.
        nearest = gaps.topk(min(look, most), largest=False).values
        sums = weights(nearest).cumsum(0)
        whole = mass if mass is not None else sums[-1] if len(nearest) == most else None
        if whole is not None:
            needed = max(1.0, math.ceil(top_p * float(whole)))
            count = int(torch.searchsorted(sums, torch.tensor([needed], dtype=sums.dtype))) + 1
            if count <= len(nearest):
                return _first_ones(gaps, nearest[count - 1], count)
        look = most if whole is None else 4 * look


def _race(gaps: Tensor, tokens: Tensor, state: int) -> int:
    """The token with the largest sum of noise and negative gap; `tokens` are ascending.

    Noise of g or more is among the last e**-g of all cells, since 1 - u <= -log u. So whoever is to
    win against the likeliest tokens must have one of so many cells.
    """
    best = -math.inf
    near = gaps[tokens]
    likeliest = tokens[near.topk(min(32, len(tokens)), largest=False).indices]
    for candidates in (likeliest, tokens):
        distances = gaps[candidates].double().numpy()
        cells = noise.cells(noise.noise_bits(np.int64(state), candidates.numpy()))
        if math.isfinite(best):
            beyond = np.exp(-np.maximum(best + distances, 0)) * (1.001 * 2.0**noise.CELL_BITS)
            may_win = np.flatnonzero(2**noise.CELL_BITS - 1 - cells <= beyond)
            candidates, distances, cells = candidates[may_win], distances[may_win], cells[may_win]
        sums = noise.gumbel(cells) - distances
        best = float(sums.max())
    return int(candidates[int(sums.argmax())])


def _first(found: Tensor) -> int:
    return int(found.to(torch.uint8).argmax())
