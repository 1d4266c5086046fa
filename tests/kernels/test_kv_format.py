"""Quantized rows give back what was stored, to their type's precision, token by token."""

from __future__ import annotations

import pytest
import torch

from kernels.attention import attend, write_kv
from kernels.kv_format import dequantize, quantize, row_size, storage_dtype
from tests.kernels.batches import paged

STEP = {torch.int8: 1 / 254, torch.uint8: 1 / 16}
"""The largest error: of int8 in shares of a row's largest value, of fp8 in shares of the value."""


@pytest.mark.parametrize("storage", STEP)
def test_a_row_comes_back_to_its_types_precision(storage: torch.dtype) -> None:
    values = torch.randn(5, 3, 32) * torch.logspace(-6, 3, 5)[:, None, None]
    rows = quantize(values, storage)
    assert rows.shape == (5, 3, row_size(32, storage))
    assert rows.dtype == storage
    whole = values.abs().amax(-1, keepdim=True)
    bound = whole * STEP[storage] if storage == torch.int8 else values.abs() * STEP[storage]
    smallest = whole / 448 / 1024  # half a step of the subnormal numbers
    assert ((dequantize(rows) - values).abs() <= bound * 1.001 + smallest).all()


@pytest.mark.parametrize("storage", STEP)
@pytest.mark.parametrize("value", [0.0, 1e-39])
def test_zeros_stay_zeros_and_so_does_what_is_hardly_more(
    storage: torch.dtype, value: float
) -> None:
    assert not dequantize(quantize(torch.full((2, 16), value), storage)).any()


@pytest.mark.parametrize("storage", STEP)
def test_attention_reads_what_was_stored(storage: torch.dtype) -> None:
    example = paged([(20, 3), (9, 1)], head_dim=32)
    plain = example.kv.nan_to_num(0.0)
    quantized = quantize(plain, storage)
    scale = 32**-0.5
    expected = attend(example.query, dequantize(quantized), example.batch, scale=scale)
    actual = attend(example.query, quantized, example.batch, scale=scale, backend="reference")
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
    key, value = torch.randn(2, 4, 2, 32)
    write_kv(key, value, quantized, example.batch.slots, backend="reference")
    write_kv(key, value, plain, example.batch.slots)
    block, offset = example.batch.slots // 16, example.batch.slots % 16
    written = dequantize(quantized)[block, :, :, offset]
    torch.testing.assert_close(written, plain[block, :, :, offset], rtol=0.07, atol=0.02)


def test_heads_whose_rows_would_not_be_aligned_are_refused() -> None:
    assert row_size(72, torch.bfloat16) == 72
    with pytest.raises(ValueError, match="72 dimensions"):
        row_size(72, storage_dtype("int8", torch.bfloat16))
