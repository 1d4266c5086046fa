"""States scattered over pages, and runs of tokens that go on from one to the next."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate, chain

import torch
from torch import Tensor

from kernels.reference.recurrent import write
from kernels.types import StatePlace, StateRuns


@dataclass(frozen=True, slots=True)
class Steps:
    """The tokens of some sequences in runs, in one call."""

    name: str
    lengths: tuple[tuple[int, ...], ...]
    """By sequence, of its runs."""
    fresh: frozenset[int] = field(default_factory=frozenset)
    """Sequences that begin with it; the others have a state."""
    in_place: frozenset[int] = field(default_factory=frozenset)
    """Sequences whose runs write where they read, if there is anything to read."""

    @property
    def num_tokens(self) -> int:
        return sum(chain(*self.lengths))


STEPS = (
    Steps("decode", ((1,), (1,), (1,)), in_place=frozenset((0, 1, 2))),
    Steps("decode into other pages", ((1,), (1,)), fresh=frozenset((1,))),
    Steps("prompts", ((37,), (4,), (70,)), fresh=frozenset((0, 2)), in_place=frozenset((1,))),
    Steps("runs of a sequence", ((5, 1, 33), (1, 1, 2), (3,)), frozenset((1,)), frozenset((0,))),
    Steps("runs without tokens", ((3, 0, 2), (0,)), in_place=frozenset((1,))),
)


@dataclass(frozen=True, slots=True)
class Paged:
    """Memory of states, where all that is no state is noise, and the runs over it."""

    memory: Tensor
    place: StatePlace
    runs: StateRuns
    written: Tensor  # bool, as the memory: whether it is of a target


def paged(shape: tuple[int, ...], dtype: torch.dtype, steps: Steps, per_page: int = 3) -> Paged:
    """Every state is cut into pages of `per_page` units at most, in any order."""
    place = _place(shape, dtype, per_page)
    columns, fields = len(place.segments), shape[0] * 2
    rows = sum(len(runs) + 1 for runs in steps.lengths)
    unit_bytes = torch.Size(shape[1:]).numel() * dtype.itemsize
    page_bytes = -(-(16 * columns + per_page * unit_bytes + fields) // 16) * 16
    pages = torch.randperm(rows * columns + 1).int()
    memory = torch.randn(len(pages), page_bytes // dtype.itemsize).to(dtype).view(torch.uint8)
    tables = iter(pages[1:].view(rows, columns))  # one page is nobody's
    sources, targets = [], []
    for sequence, lengths in enumerate(steps.lengths):
        last = next(tables)
        if sequence in steps.fresh:
            last = torch.full_like(last, -1)
        for _ in lengths:
            sources.append(last)
            last = last if sequence in steps.in_place and last[0] >= 0 else next(tables)
            targets.append(last)
    starts = torch.tensor([0, *accumulate(chain(*steps.lengths))], dtype=torch.int32)
    runs = StateRuns(starts, torch.stack(sources), torch.stack(targets))
    written = torch.zeros_like(memory)
    for run, pages_of_run in enumerate(runs.targets):
        if starts[run] < starts[run + 1]:
            ones = torch.full((*shape[:-1], shape[-1] * dtype.itemsize), 255, dtype=torch.uint8)
            write(written, place, pages_of_run, ones.view(dtype))
    return Paged(memory, place, runs, written.bool())


def _place(shape: tuple[int, ...], dtype: torch.dtype, per_page: int) -> StatePlace:
    firsts = range(0, shape[0], per_page)
    segments = [
        (first, min(per_page, shape[0] - first), column, 16 * column)
        for column, first in enumerate(firsts)
    ]
    return StatePlace(tuple(segments), shape, dtype)


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a layer, in the words of all kinds."""

    heads: int
    groups: int
    """Key heads of the delta rule."""
    head_dim: int
    """Of values."""
    state_dim: int
    """Of keys."""


SHAPES = (
    Shape(4, 2, 32, 32),
    Shape(4, 4, 8, 16),
    Shape(3, 1, 21, 37),
    Shape(2, 1, 160, 64),
)


def convolution_inputs(steps: Steps, channels: int, width: int, dtype: torch.dtype) -> list[Tensor]:
    """x, in a wider tensor, weight and bias."""
    x = torch.randn(steps.num_tokens, channels + 16)[:, 8:-8]
    return [part.to(dtype) for part in (x, torch.randn(channels, width), torch.randn(channels))]


def delta_inputs(
    steps: Steps, shape: Shape, dtype: torch.dtype, by_key: bool = False
) -> list[Tensor]:
    """q, k and v, next to each other, decay and beta."""
    sizes = (shape.groups * shape.state_dim,) * 2 + (shape.heads * shape.head_dim,)
    mixed = torch.randn(steps.num_tokens, sum(sizes)).to(dtype).split(sizes, dim=1)
    q, k = (part.unflatten(1, (shape.groups, shape.state_dim)) for part in mixed[:2])
    v = mixed[2].unflatten(1, (shape.heads, shape.head_dim))
    decays = (shape.state_dim,) if by_key else ()
    decay = -torch.rand(steps.num_tokens, shape.heads, *decays).exp2() + 1
    beta = torch.rand(steps.num_tokens, shape.heads).to(dtype)
    return [q, k, v, decay, beta]


def scan_inputs(steps: Steps, shape: Shape, dtype: torch.dtype) -> list[Tensor]:
    """x, dt, a, b, c, d; x, b and c next to each other."""
    sizes = (shape.heads * shape.head_dim,) + (shape.groups * shape.state_dim,) * 2
    x, b, c = torch.randn(steps.num_tokens, sum(sizes)).to(dtype).split(sizes, dim=1)
    dt = torch.rand(steps.num_tokens, shape.heads)
    b, c = (part.unflatten(1, (shape.groups, shape.state_dim)) for part in (b, c))
    x = x.unflatten(1, (shape.heads, shape.head_dim))
    return [x, dt, -torch.rand(shape.heads), b, c, torch.randn(shape.heads)]
