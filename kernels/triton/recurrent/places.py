"""Triton: where states lie, and which runs go on from one another."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton.arguments import StatePages
from kernels.types import StatePlace, StateRuns


def pages_of(runs: StateRuns, memory: Tensor, place: StatePlace) -> StatePages:
    """What a kernel is told of a step's runs, and of where a layer's states are."""
    typed = memory.view(place.dtype)
    columns, offsets = _units(place, memory.device)
    tables = runs.starts, runs.sources, runs.targets
    return StatePages(typed, typed.stride(0), columns, offsets, *tables, *runs.sources.shape)


@cache
def _units(place: StatePlace, device: torch.device) -> tuple[Tensor, Tensor]:
    """Of each unit its column, and where it begins in the page, in elements: int32."""
    size = torch.Size(place.shape[1:]).numel()
    columns, offsets = [], []
    for _, count, column, begin in place.segments:
        columns += [column] * count
        offsets += [begin // place.dtype.itemsize + unit * size for unit in range(count)]
    both = torch.tensor([columns, offsets], dtype=torch.int32, device=device)
    return both[0], both[1]


@triton.jit
def goes_on(states: StatePages, run, column):
    """Whether a run's state is what the run before it leaves."""
    inside = (run > 0) & (run < states.num_runs)
    at = run * states.num_columns + column
    source = tl.load(states.sources_ptr + at, mask=inside, other=-1)
    left = tl.load(states.targets_ptr + at - states.num_columns, mask=inside, other=-1)
    return (source >= 0) & (source == left)


@triton.jit
def page(states: StatePages, pages_ptr, run, column):
    """The page of a run's state in `pages_ptr`, and where it begins."""
    number = tl.load(pages_ptr + run * states.num_columns + column)
    return number, states.ptr + number.to(tl.int64) * states.page_stride
