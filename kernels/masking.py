"""Which tokens rows of scores may draw, by what is not known to the model: a grammar."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Masks(NamedTuple):
    """A bit for each token of some rows: whether it may be drawn."""

    places: Tensor  # [num_rows] int64: of each row its place in `words`; -1 where it may draw all
    words: Tensor  # [num_masked, num_words] int32, contiguous; lowest bits first
