"""The door to layers that keep a state of fixed size a sequence, in place of keys and values.

A step's packed tokens are runs (`kernels.types.StateRuns`), all of which are one call. The memory
of states is uint8 [num_pages, page_bytes]; where in its pages a layer's state lies, a `StatePlace`
says. Runs are computed as if one after the other: what a run leaves, the next one may go on from. A
run without tokens leaves nothing. Nothing is written outside of the runs' targets.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import torch
from torch import Tensor

from kernels import backends
from kernels.backends import Backend
from kernels.types import StatePlace, StateRuns

COMPILED: Final = (torch.float32, torch.bfloat16)
"""What compiled kernels for CPUs take."""
WIDEST: Final = 8
"""Inputs of a convolution that compiled kernels see at once."""
MOST_KEYS: Final = 256
"""Numbers of a key in compiled kernels."""


def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: Literal["silu"] | None,
    runs: StateRuns,
    memory: Tensor,
    place: StatePlace,
    *,
    backend: Backend | None = None,
) -> Tensor:
    """What a causal convolution of each channel by itself makes of its inputs so far.

    `x` is [num_tokens, channels], rows may lie apart; `weight` [channels, width] and `bias`
    [channels] are of its type, and so are the result, which is rounded once, and the state: a
    sequence's last `width` inputs, [channels, width], the oldest first, zeros before the first.
    """
    width = weight.shape[1]
    room = _room(x, width <= WIDEST, backend)
    made: Tensor = room.convolve(x, weight, bias, activation, runs, memory, place)
    return made


def gated_delta(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    beta: Tensor,
    runs: StateRuns,
    memory: Tensor,
    place: StatePlace,
    *,
    backend: Backend | None = None,
) -> Tensor:
    """The gated delta rule: a state forgets, and learns what it did not know of a key's value.

    `q` and `k` are [num_tokens, key_heads, key_dim], `v` [num_tokens, value_heads, value_dim], of
    one type, tokens may lie apart; consecutive value heads share a key head. Of each token S is
    multiplied by exp(decay), then k (beta (v - S'k))' added, and S'q is the result, in the type of
    `v`. Queries and keys are normalised before (to length 1, 1e-6 added to their squares), queries
    also divided by sqrt(key_dim). `decay` is float32 [num_tokens, value_heads], or of each number
    of a key, [num_tokens, value_heads, key_dim]; `beta` [num_tokens, value_heads]. The state is
    float32 [value_heads, key_dim, value_dim]. Sources: Yang, Kautz and Hatamizadeh, "Gated Delta
    Networks", 2024; Kimi Team, "Kimi Linear", 2025.
    """
    room = _room(v, q.shape[2] <= MOST_KEYS, backend)
    found: Tensor = room.gated_delta(q, k, v, decay, beta, runs, memory, place)
    return found


def selective_scan(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor | None,
    runs: StateRuns,
    memory: Tensor,
    place: StatePlace,
    *,
    backend: Backend | None = None,
) -> Tensor:
    """Mamba-2's state space: of each token h becomes exp(dt a) h + dt x b', and h c + d x is given.

    `x` is [num_tokens, heads, head_dim], `b` and `c` [num_tokens, groups, state_dim], of one type,
    tokens may lie apart; consecutive heads share a group. `dt` is float32 [num_tokens, heads], what
    makes it positive applied; `a` (negative) and `d` are float32 [heads]. The result is in the type
    of `x`, the state float32 [heads, head_dim, state_dim]. Mamba-1 has an `a` of each number of a
    state, [heads, state_dim], and heads of one number. Sources: Gu and Dao, "Mamba", 2023; Dao and
    Gu, "Transformers are SSMs", 2024.
    """
    room = _room(x, a.dim() == 1, backend)
    found: Tensor = room.selective_scan(x, dt, a, b, c, d, runs, memory, place)
    return found


def _room(x: Tensor, fits: bool, backend: Backend | None) -> Any:
    computed = fits and (x.is_cuda or x.dtype in COMPILED)
    return backends.room("recurrent", x.device, backend if computed else "reference")
