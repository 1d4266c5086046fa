"""An adapter's weights as pages of the KV memory hold them, and what computes with them there.

Its ranks are cut into parts, each of which lies within a page: what it takes of inputs, and behind
that, on a cache line of its own, what it gives to outputs, by ranks (S-LoRA, Sheng et al., 2023).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from engine.model.layers.linear_places import LinearPlace
from kernels.native.adapters import MOST_RANKS
from kernels.types import Adapter, LowRank

_LINE: Final = 64
"""Bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class LinearChange:
    """What an adapter adds to a linear layer: `scale * x @ down.T @ up.T`.

    Of one that experts have each, the ranks of each stand together, one expert's behind another's.
    """

    down: Tensor  # [rank, in_features], of all experts
    up: Tensor  # [out_features, rank]
    scale: float


@dataclass(frozen=True, slots=True)
class _Part:
    """Some ranks of a change."""

    product: int
    column: int
    num_inputs: int
    num_outputs: int
    scale: float
    rank: int
    page: int
    """Of the image."""
    start: int
    """The byte of the page where it begins."""
    experts: range | None
    """See `kernels.types.LowRank`."""

    def views(self, page: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """What it takes, [rank, num_inputs], and gives, [rank, num_outputs], in that page."""
        size = self.rank * dtype.itemsize
        down, up = size * self.num_inputs, size * self.num_outputs
        behind = self.start + _whole_lines(down)
        return (
            page[self.start : self.start + down].view(dtype).view(self.rank, -1),
            page[behind : behind + up].view(dtype).view(self.rank, -1),
        )


@dataclass(frozen=True, slots=True, eq=False)
class AdapterLayout:
    """Where in its pages an adapter's weights lie, and what they are added to."""

    dtype: torch.dtype
    parts: tuple[_Part, ...]
    num_products: int
    """Of the model."""

    def within(self, memory: Tensor, pages: Sequence[int]) -> Adapter:
        """What computes, once these pages of `memory`, [num_pages, bytes of a page], hold it."""
        changes: dict[int, list[LowRank]] = {}
        for part in self.parts:
            down, up = part.views(memory[pages[part.page]], self.dtype)
            found = LowRank(down, up, part.column, part.scale, part.experts)
            changes.setdefault(part.product, []).append(found)
        numbers = range(self.num_products)
        return Adapter(tuple(tuple(changes.get(n, ())) for n in numbers), tuple(pages))


@dataclass(frozen=True, slots=True, eq=False)
class AdapterImage:
    """An adapter for one model, or a rank's part of one, in pages of the host's memory."""

    pages: Tensor  # uint8 [num_pages, bytes of a page]
    layout: AdapterLayout


def make_image(
    changes: Mapping[LinearPlace, LinearChange],
    num_products: int,
    dtype: torch.dtype,
    page_bytes: int,
) -> AdapterImage:
    """Of what an adapter changes in a model of so many products, in the model's `dtype`.

    Raises `ValueError` where a page is too small for a single rank.
    """
    placed = list(_parts(changes, dtype.itemsize, page_bytes))
    parts = tuple(part for _, part in placed)
    pages = torch.zeros(parts[-1].page + 1, page_bytes, dtype=torch.uint8)
    ranks: dict[LinearPlace, int] = {}
    for place, part in placed:
        change, first = changes[place], ranks.get(place, 0)
        up = change.up if place.order is None else change.up[place.order]
        ranks[place] = first + part.rank
        own = slice(first, ranks[place])
        down_view, up_view = part.views(pages[part.page], dtype)
        down_view.copy_(change.down[own, place.inputs or slice(None)])
        up_view.copy_(up[:, own].T)
    return AdapterImage(pages, AdapterLayout(dtype, parts, num_products))


def _parts(
    changes: Mapping[LinearPlace, LinearChange], itemsize: int, page_bytes: int
) -> Iterator[tuple[LinearPlace, _Part]]:
    """One behind the other, in as few pages as that takes."""
    page = start = 0
    for place, change in changes.items():
        total = len(change.down)
        each, done = total // (place.num_experts or 1), 0
        while done < total:
            room = _most_ranks(place, itemsize, page_bytes - start)
            if not room and not start:
                raise ValueError(f"a page of {page_bytes} bytes is too small for a rank")
            rank = _next_ranks(each, done, total, room, is_page=not start)
            if rank:
                first = done // each
                experts = range(first, first + -(-rank // each)) if place.num_experts else None
                sizes = place.own_inputs, place.own_outputs
                where = place.product, place.column
                yield place, _Part(*where, *sizes, change.scale, rank, page, start, experts)
                start, done = start + _num_bytes(place, rank, itemsize), done + rank
            else:
                page, start = page + 1, 0


def _next_ranks(each: int, done: int, total: int, room: int, *, is_page: bool) -> int:
    """How many of those behind `done` ones go where there is room for some, maybe a whole page: if
    experts have `each` so many, all of an expert's, unless a page is too small for them.
    """
    left = each - done % each
    if each == total or left < each or (is_page and room < each):
        return min(room, left, MOST_RANKS)
    return min(room // each * each, total - done)


def _most_ranks(place: LinearPlace, itemsize: int, room: int) -> int:
    rank = room // (itemsize * (place.own_inputs + place.own_outputs))
    while rank and _num_bytes(place, rank, itemsize) > room:
        rank -= 1
    return rank


def _num_bytes(place: LinearPlace, rank: int, itemsize: int) -> int:
    size = rank * itemsize
    return _whole_lines(size * place.own_inputs) + _whole_lines(size * place.own_outputs)


def _whole_lines(num_bytes: int) -> int:
    return -(-num_bytes // _LINE) * _LINE
