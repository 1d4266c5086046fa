"""Drawing tokens by the compiled library: a row is a part of the call, and a few passes over it."""

from __future__ import annotations

from struct import Struct

import torch
from torch import Tensor

from kernels.native import library
from kernels.native.library import TYPES
from kernels.types import Masks

_DRAWING = Struct("=6q4qq")
"""`pw_drawing` of `sampling.h`, field by field."""


def draw(scores: Tensor, states: Tensor, numbers: Tensor, masks: Masks | None = None) -> Tensor:
    """See `kernels.sampling.draw`. Raises `MemoryError` where there is no room to work in."""
    num_rows, size = scores.shape
    assert scores.stride(1) == 1
    assert numbers.is_contiguous()
    tokens = torch.empty(num_rows, dtype=torch.int64)
    words = places = num_words = 0
    if masks is not None:
        words, places = masks.words.data_ptr(), masks.places.data_ptr()
        num_words = masks.words.shape[1]
        assert masks.words.is_contiguous()
        assert 32 * num_words >= size
    _draw(
        _DRAWING.pack(
            scores.data_ptr(),
            states.data_ptr(),
            numbers.data_ptr(),
            tokens.data_ptr(),
            words,
            places,
            scores.stride(0),
            num_rows,
            size,
            num_words,
            TYPES[scores.dtype],
        )
    )
    if bool((tokens < 0).any()):
        raise MemoryError("no room to draw tokens in")
    return tokens


_draw = library.function("pw_draw", library.text)
