"""What hybrid models hold and compute: bytes of keys and of a state, operations of a prompt.

As Marconi counts them (Pan et al., MLSys 2025): projections, experts and recurrence are linear in
the tokens, attention has a part that is quadratic. Here attention is causal, so that part is half
of the paper's. Embeddings and the head are left out: a prompt pays for one row of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

BLOCK: Final = 16
"""Tokens of a block of keys."""
_BF16: Final = 2
_FP32: Final = 4


@dataclass(frozen=True, slots=True)
class Shape:
    """A model of so many layers that attend to all tokens, and of recurrent ones.

    `per_token` are floating-point operations of all layers for one token, `per_pair` those for a
    token that attends to another one.
    """

    name: str
    key_bytes: int
    """Of one token."""
    state_bytes: int
    per_token: float
    per_pair: float

    @property
    def block_bytes(self) -> int:
        """Keys of a whole block."""
        return BLOCK * self.key_bytes

    def operations(self, tokens: float) -> float:
        """To compute a prompt from nothing."""
        return self.per_token * tokens + self.per_pair * tokens * tokens / 2


def _qwen() -> Shape:
    """`qwen3_5_moe_text`: Gated DeltaNet with 16 key and 32 value heads, 8 + 1 of 256 experts."""
    hidden, recurrent, attending, heads, key_heads, width = 2048, 30, 10, 16, 2, 256
    value_heads, linear_key_heads, linear_width, taps = 32, 16, 128, 4
    channels = (2 * linear_key_heads + value_heads) * linear_width
    values = value_heads * linear_width
    state = value_heads * linear_width * linear_width
    delta = hidden * (channels + values + 2 * value_heads) + values * hidden + channels * taps
    # Decay, read, difference, write and read again: about four multiplications and additions.
    recurrence = 4 * state
    attention = hidden * width * (2 * heads + 2 * key_heads) + heads * width * hidden
    experts = (8 + 1) * 3 * hidden * 512 + hidden * 256
    products = recurrent * (delta + recurrence) + attending * attention + 40 * experts
    return Shape(
        "Qwen3.5-35B-A3B",
        key_bytes=attending * 2 * key_heads * width * _BF16,
        state_bytes=recurrent * (state * _FP32 + channels * taps * _BF16),
        per_token=2.0 * products,
        per_pair=4.0 * attending * heads * width,
    )


def _granite() -> Shape:
    """`granitemoehybrid`, Granite 4.0 H Small: Mamba-2, 10 of 72 experts and a shared one."""
    hidden, recurrent, attending, heads, key_heads, width = 4096, 36, 4, 32, 8, 128
    mamba_heads, mamba_width, mamba_state, taps = 128, 64, 128, 4
    inner = mamba_heads * mamba_width
    channels = inner + 2 * mamba_state
    state = inner * mamba_state
    mamba = hidden * (inner + channels + mamba_heads) + inner * hidden + channels * taps
    recurrence = 3 * state
    attention = hidden * width * (heads + 2 * key_heads) + heads * width * hidden
    experts = 10 * 3 * hidden * 768 + 3 * hidden * 1536 + hidden * 72
    products = recurrent * (mamba + recurrence) + attending * attention + 40 * experts
    return Shape(
        "Granite 4.0 H Small",
        key_bytes=attending * 2 * key_heads * width * _BF16,
        state_bytes=recurrent * (state * _FP32 + channels * taps * _BF16),
        per_token=2.0 * products,
        per_pair=4.0 * attending * heads * width,
    )


QWEN: Final = _qwen()
GRANITE: Final = _granite()
SHAPES: Final = (QWEN, GRANITE)
