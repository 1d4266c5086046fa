"""How keys and values are stored: as the model computes them, or in a byte a value with scales.

A quantized row is one token of one head: `head_dim` one-byte values, their scale as a float32, and
padding to 16 bytes, so that rows stay aligned for wide loads. A scale of its own for each token and
head costs an eighth of what it saves at 128 dimensions, and keeps outliers of one token out of all
others (KIVI, Liu et al. 2024, on what scales are for). int8 is stored in an int8 tensor; fp8 (e4m3:
Micikevicius et al. 2022, "FP8 Formats for Deep Learning") as bytes in a uint8 tensor, since few
tensor operations know of eight-bit floats.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

KvDtype = Literal["auto", "int8", "fp8"]

SCALE_BYTES = 16
"""Of a quantized row: the scale and its padding."""

LARGEST = {torch.int8: 127.0, torch.uint8: 448.0}
"""The largest magnitude that a byte of each quantized type holds."""

SMALLEST = 1e-30
"""Rows without a larger magnitude are stored as zeros: their factor could be infinite."""


def storage_dtype(kv_dtype: KvDtype, dtype: torch.dtype) -> torch.dtype:
    """The element type of the KV memory of a model that computes in `dtype`."""
    return {"auto": dtype, "int8": torch.int8, "fp8": torch.uint8}[kv_dtype]


def is_quantized(storage: torch.dtype) -> bool:
    """Whether rows of this element type carry a scale."""
    return storage in LARGEST


def row_size(head_dim: int, storage: torch.dtype) -> int:
    """Elements of one token's row in one head.

    Raises `ValueError` for quantized heads whose rows would not be aligned to 16 bytes.
    """
    if not is_quantized(storage):
        return head_dim
    if head_dim % 16:
        raise ValueError(
            f"heads of {head_dim} dimensions cannot be quantized: not a multiple of 16"
        )
    return head_dim + SCALE_BYTES


def head_size(kv: Tensor) -> int:
    """Dimensions of a head whose rows are the last dimension of `kv`."""
    return kv.shape[-1] - SCALE_BYTES if is_quantized(kv.dtype) else kv.shape[-1]


def quantize(values: Tensor, storage: torch.dtype) -> Tensor:
    """Rows [..., head_dim + 16] of `values` [..., head_dim], each scaled by its largest value."""
    wide = values.float()
    largest = wide.abs().amax(dim=-1, keepdim=True)
    # Not `number / tensor`, which multiplies by a reciprocal and is rounded twice.
    factor = torch.full_like(largest, LARGEST[storage]).div(largest)
    factor = torch.where(largest > SMALLEST, factor, 0.0)
    if storage == torch.int8:
        codes = (wide * factor).round().to(torch.int8)
    else:
        codes = (wide * factor).to(torch.float8_e4m3fn).view(torch.uint8)
    scale = (largest / LARGEST[storage]).contiguous().view(storage)
    padding = codes.new_zeros((*codes.shape[:-1], SCALE_BYTES - scale.shape[-1]))
    return torch.cat([codes, scale, padding], dim=-1)


def dequantize(rows: Tensor) -> Tensor:
    """The float32 values [..., head_dim] of quantized rows [..., head_dim + 16]."""
    head_dim = rows.shape[-1] - SCALE_BYTES
    codes = rows[..., :head_dim].contiguous()
    values = codes if rows.dtype == torch.int8 else codes.view(torch.float8_e4m3fn)
    scale = rows[..., head_dim : head_dim + 4].contiguous().view(torch.float32)
    return values.float() * scale
