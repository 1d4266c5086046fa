"""Recurrent layers in plain torch: run by run, token by token."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from kernels.types import StatePlace, StateRuns

_EPS = 1e-6


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
    output = x.new_empty(x.shape)
    wide = None if bias is None else bias.float()
    for run, begin, end in _tokens(runs):
        seen = torch.cat((read(memory, place, runs.sources[run]), x[begin:end].T), dim=1)
        inputs = seen[:, 1:].float()[None]
        made = functional.conv1d(inputs, weight.float()[:, None], wide, groups=len(weight))[0].T
        output[begin:end] = functional.silu(made) if activation else made
        write(memory, place, runs.targets[run], seen[:, -weight.shape[1] :])
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
    q, k = (_normalised(part, v.shape[1]) for part in (q, k))
    q = q * q.shape[2] ** -0.5
    kept = decay.exp().view(*decay.shape[:2], -1, 1)
    output = v.new_empty(v.shape)
    for run, begin, end in _tokens(runs):
        state = read(memory, place, runs.sources[run])
        for token in range(begin, end):
            state *= kept[token]
            unknown = v[token].float() - torch.einsum("hkv,hk->hv", state, k[token])
            learnt = unknown * beta[token].float()[:, None]
            state += k[token][:, :, None] * learnt[:, None]
            output[token] = torch.einsum("hkv,hk->hv", state, q[token])
        write(memory, place, runs.targets[run], state)
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
    heads, groups = x.shape[1], b.shape[1]
    rates = a.view(heads, -1)  # by head, or by each number of its states
    added = (x.float() * dt[:, :, None])[..., None]
    output = x.new_empty(x.shape)
    for run, begin, end in _tokens(runs):
        state = read(memory, place, runs.sources[run]).view(heads, x.shape[2], -1)
        for token in range(begin, end):
            own_b, own_c = (
                part[token].float().repeat_interleave(heads // groups, dim=0) for part in (b, c)
            )
            kept = (dt[token][:, None] * rates).exp()[:, None]
            state = state * kept + added[token] * own_b[:, None]
            found = torch.einsum("hpn,hn->hp", state, own_c)
            output[token] = found if d is None else found + x[token].float() * d[:, None]
        write(memory, place, runs.targets[run], state.view(place.shape))
    return output


def read(memory: Tensor, place: StatePlace, pages: Tensor) -> Tensor:
    """A copy of the state that `pages` hold, a row of `kernels.types.StateRuns`."""
    state = torch.zeros(place.shape, dtype=place.dtype, device=memory.device)
    for rows, stored in _segments(memory, place, pages, state):
        rows.copy_(stored)
    return state


def write(memory: Tensor, place: StatePlace, pages: Tensor, state: Tensor) -> None:
    """Keep the state in `pages`."""
    for rows, stored in _segments(memory, place, pages, state):
        stored.copy_(rows)


def _segments(
    memory: Tensor, place: StatePlace, pages: Tensor, state: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """The rows of each segment, in the state and in memory, where it has a page."""
    for first, count, column, begin in place.segments:
        rows = state[first : first + count]
        page = int(pages[column])
        if page >= 0:
            size = rows.numel() * place.dtype.itemsize
            yield rows, memory[page, begin : begin + size].view(place.dtype).view(rows.shape)


def _tokens(runs: StateRuns) -> Iterator[tuple[int, int, int]]:
    """Each run that has tokens, with its first one, and the one behind its last."""
    for run, (begin, end) in enumerate(pairwise(runs.starts.tolist())):
        if begin < end:
            yield run, begin, end


def _normalised(x: Tensor, heads: int) -> Tensor:
    x = x.float()
    x = x * torch.rsqrt(x.square().sum(2, keepdim=True) + _EPS)
    return x.repeat_interleave(heads // x.shape[1], dim=1)
