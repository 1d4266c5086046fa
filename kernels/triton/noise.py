"""Triton: Gumbel noise from a counter-based generator, in one pass over the vocabulary.

See `engine.run.noise`, which says what it is. In torch's own operations each of the generator's
twenty steps would be a pass over memory.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


def gumbel(states: Tensor, size: int) -> Tensor:
    """See `engine.run.noise.gumbel`."""
    noise = torch.empty(len(states), size, dtype=torch.float64, device=states.device)
    draw_noise[len(states), triton.cdiv(size, BLOCK)](noise, states, size, BLOCK=BLOCK)
    return noise


@triton.jit
def draw_noise(noise_ptr, states_ptr, size, BLOCK: tl.constexpr):
    """One program: some tokens of one row."""
    row = tl.program_id(0).to(tl.int64)
    tokens = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    state = tl.load(states_ptr + row).to(tl.uint64, bitcast=True)
    value = state + (tokens + 1).to(tl.uint64) * 0x9E3779B97F4A7C15
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB
    value = value ^ (value >> 31)
    # The middle of one of 2**52 cells, as a signed number: that is what processors convert.
    cells = (value >> 12).to(tl.int64, bitcast=True).to(tl.float64)
    uniform = (cells + 0.5) * 2.220446049250313e-16
    noise = -tl.log(-tl.log(uniform))
    tl.store(noise_ptr + row * size + tokens, noise, mask=tokens < size)
