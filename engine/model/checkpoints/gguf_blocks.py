"""The blocks of GGUF's quantized types, taken apart (ggml's `ggml-quants.c` defines them).

A block is bytes: scales in half precision, then codes of 32 weights, or of 256 with a super-scale.
What comes out are the very weights, in groups of 32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from kernels.group_format import GROUP, Bits, GroupedWeight

_Parts = tuple[Bits, Tensor, Tensor, Tensor]
"""Bits, codes uint8 [blocks, weights], scales and minima float32 [blocks, groups]."""


def split_blocks(kind: str, rows: Tensor) -> GroupedWeight | None:
    """The weights of rows of blocks, uint8 [rows, bytes]; `None` for types of another structure.

    Those are Q6_K, Q3_K and Q2_K, whose scales are for 16 weights each, and codes of no even steps.
    """
    if kind not in _TYPES:
        return None
    size, split = _TYPES[kind]
    bits, *parts = split(rows.reshape(-1, size))
    codes, scales, minima = (part.reshape(len(rows), -1) for part in parts)
    return GroupedWeight(codes.shape[1], bits, codes, scales, minima)


def _half(blocks: Tensor, start: int) -> Tensor:
    """The number at that byte of each block: float32 [blocks, 1]."""
    return blocks[:, start : start + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: Tensor) -> Tensor:
    """Low halves, then high ones, of every 16 or 32 bytes: [..., n] to [..., 2, n]."""
    return torch.stack([packed & 15, packed >> 4], dim=-2)


def _bits(packed: Tensor) -> Tensor:
    """Of every byte, lowest first: [..., n] to [..., n, 8]."""
    return packed[..., None] >> torch.arange(8, dtype=torch.uint8) & 1


def _q4_0(blocks: Tensor) -> _Parts:
    scales = _half(blocks, 0)
    return 4, _nibbles(blocks[:, 2:]), scales, -8 * scales


def _q4_1(blocks: Tensor) -> _Parts:
    return 4, _nibbles(blocks[:, 4:]), _half(blocks, 0), _half(blocks, 2)


def _five(high: Tensor, low: Tensor) -> Tensor:
    """Codes of 5 bits: [blocks, 4] bytes of fifth bits, [blocks, 16] of the others."""
    return _nibbles(low).flatten(1) | _bits(high).flatten(1) << 4


def _q5_0(blocks: Tensor) -> _Parts:
    scales = _half(blocks, 0)
    return 8, _five(blocks[:, 2:6], blocks[:, 6:]), scales, -16 * scales


def _q5_1(blocks: Tensor) -> _Parts:
    return 8, _five(blocks[:, 4:8], blocks[:, 8:]), _half(blocks, 0), _half(blocks, 2)


def _q8_0(blocks: Tensor) -> _Parts:
    scales = _half(blocks, 0)
    return 8, blocks[:, 2:] ^ 128, scales, -128 * scales


def _k_scales(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Scales and minima of a block's 8 groups: 6 bits each, times the block's own two."""
    low, middle, mixed = blocks[:, 4:16].reshape(-1, 3, 4).unbind(1)
    scales = torch.cat([low & 63, mixed & 15 | low >> 2 & 48], dim=1)
    minima = torch.cat([middle & 63, mixed >> 4 | middle >> 2 & 48], dim=1)
    return _half(blocks, 0) * scales.float(), -(_half(blocks, 2) * minima.float())


def _k_nibbles(packed: Tensor) -> Tensor:
    """Codes of 8 groups, two in every 32 bytes: [blocks, 128] to [blocks, 8, 32]."""
    return _nibbles(packed.reshape(-1, 4, GROUP)).flatten(1, 2)


def _q4_k(blocks: Tensor) -> _Parts:
    return 4, _k_nibbles(blocks[:, 16:]), *_k_scales(blocks)


def _q5_k(blocks: Tensor) -> _Parts:
    fifth = _bits(blocks[:, 16:48]).transpose(1, 2)  # a bit of each byte for each group
    return 8, _k_nibbles(blocks[:, 48:]) | fifth << 4, *_k_scales(blocks)


_TYPES: Final[dict[str, tuple[int, Callable[[Tensor], _Parts]]]] = {
    "Q4_0": (18, _q4_0),
    "Q4_1": (20, _q4_1),
    "Q5_0": (22, _q5_0),
    "Q5_1": (24, _q5_1),
    "Q8_0": (34, _q8_0),
    "Q4_K": (144, _q4_k),
    "Q5_K": (176, _q5_k),
}
"""Bytes of a block, and what takes it apart."""
