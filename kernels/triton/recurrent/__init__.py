"""Triton: recurrent layers, all runs of a step in one launch.

A program takes a part of one state through a run's tokens, one after the other, and through those
of the runs that go on from it. Where states are, it reads on the device, so a recorded step serves
any pages; what runs there are, too, but for their number. Long prompts have no form of their own:
they are as slow as their tokens one by one, at several programs a head.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from kernels.triton.arguments import rows_of
from kernels.triton.recurrent.convolutions import BLOCK, TOKENS, convolve_runs
from kernels.triton.recurrent.delta import apply_delta, value_block
from kernels.triton.recurrent.places import pages_of
from kernels.triton.recurrent.scans import row_block, scan_runs
from kernels.types import StatePlace, StateRuns


def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str | None,
    runs: StateRuns,
    memory: Tensor,
    place: StatePlace,
) -> Tensor:
    """See `kernels.recurrent.convolve`."""
    channels, width = weight.shape
    output = x.new_empty(x.shape)
    num_runs = len(runs.sources)
    with torch.cuda.device(x.get_device()):  # Triton launches on the current device
        convolve_runs[num_runs, triton.cdiv(channels, BLOCK)](
            output,
            x,
            weight.contiguous(),
            bias,
            x.stride(0),
            channels,
            pages_of(runs, memory, place),
            WIDTH=width,
            ACTIVATED=activation is not None,
            TOKENS=1 if len(x) <= num_runs else TOKENS,  # of a run at once
            BLOCK=BLOCK,
        )
    return output


def gated_delta(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    beta: Tensor,
    runs: StateRuns,
    memory: Tensor,
    place: StatePlace,
) -> Tensor:
    """See `kernels.recurrent.gated_delta`."""
    (key_heads, key_dim), (heads, value_dim) = q.shape[1:], v.shape[1:]
    output = v.new_empty(v.shape)
    block = value_block(key_dim, value_dim)
    with torch.cuda.device(v.get_device()):  # Triton launches on the current device
        apply_delta[len(runs.sources), heads, triton.cdiv(value_dim, block)](
            output,
            *map(rows_of, (q, k, v)),
            decay.contiguous(),
            beta.contiguous(),
            pages_of(runs, memory, place),
            heads,
            heads // key_heads,
            key_dim**-0.5,
            KEY_DIM=key_dim,
            VALUE_DIM=value_dim,
            BY_KEY=decay.dim() == 3,
            BLOCK=block,
        )
    return output


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
) -> Tensor:
    """See `kernels.recurrent.selective_scan`."""
    (heads, head_dim), (groups, state_dim) = x.shape[1:], b.shape[1:]
    output = x.new_empty(x.shape)
    block = row_block(head_dim, state_dim)
    with torch.cuda.device(x.get_device()):  # Triton launches on the current device
        scan_runs[len(runs.sources), heads, triton.cdiv(head_dim, block)](
            output,
            rows_of(x),
            dt.contiguous(),
            a,
            rows_of(b),
            rows_of(c),
            d,
            pages_of(runs, memory, place),
            heads,
            heads // groups,
            HEAD_DIM=head_dim,
            STATE_DIM=state_dim,
            BLOCK=block,
        )
    return output
