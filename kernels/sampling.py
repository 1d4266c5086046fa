"""The door to drawing tokens: scores in, one token a row out."""

from __future__ import annotations

from torch import Tensor

from kernels import backends
from kernels.backends import Backend
from kernels.types import Masks


def draw(
    scores: Tensor,
    states: Tensor,
    numbers: Tensor,
    masks: Masks | None = None,
    *,
    backend: Backend | None = None,
) -> Tensor:
    """Draw one token a row: [num_rows] int64, on the device of the scores.

    `scores` is [num_rows, vocab_size], float32, bfloat16 or float16, each row contiguous. `states`
    ([num_rows] int64) are those of `kernels.noise.noise_states`. `numbers` is [4, num_rows]
    float64, contiguous; each row's

    - inverse temperature, a float32; 0 takes the first of the largest scores,
    - top_k: only so many of the likeliest tokens; 0 for all,
    - top_p: of these, the likeliest ones, until their mass is this part of all theirs; 1 for all,
    - widest gap, a float32: of these, tokens at most so far behind the first; inf for all.

    What `masks` do not allow counts as -inf. Of tokens with one score, those with smaller numbers
    come first. The gap of a token is its distance from the row's largest score, times the inverse
    temperature; the token with the largest sum of Gumbel noise and negative gap wins (Maddison,
    Tarlow and Minka, "A* sampling", 2014).
    A row does not depend on the others, and every backend draws the same tokens: gaps are computed
    in float32 by one difference and one product, masses are sums of whole numbers, and noise is
    computed from whole numbers in float64. A score that is no number counts as -inf; a row without
    a finite largest score takes the first of its largest ones.
    """
    room = backends.room("sampling", scores.device, backend)
    tokens: Tensor = room.draw(scores, states, numbers, masks)
    return tokens
