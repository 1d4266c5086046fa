"""Scores that masks leave are as they were, and all others are out."""

import numpy as np
import pytest
import torch

from kernels.reference.sampling import masked
from kernels.types import Masks


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [[], [2], [3, 0], [0, 1, 2, 3]])
@pytest.mark.parametrize(("size", "num_words"), [(64, 2), (70, 3), (33, 4)])
def test_bits_say_what_may_be_drawn(
    dtype: torch.dtype, rows: list[int], size: int, num_words: int
) -> None:
    rng = np.random.default_rng(size)
    scores = torch.from_numpy(rng.standard_normal((4, size))).to(dtype)
    before = scores.clone()
    words = rng.integers(-(2**31), 2**31, (len(rows), num_words)).astype(np.int32)
    places = torch.tensor([rows.index(row) if row in rows else -1 for row in range(4)])
    found = masked(scores, Masks(places, torch.from_numpy(words)))
    assert found.dtype == dtype
    assert torch.equal(scores, before)
    for row in range(4):
        for token in range(size):
            is_out = row in rows and not words[rows.index(row), token // 32] >> (token % 32) & 1
            expected = -np.inf if is_out else float(before[row, token])
            assert float(found[row, token]) == expected
