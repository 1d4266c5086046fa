"""Where each layer's keys and values lie: in pages of one memory, by kinds of layers.

Layers that remember alike are of a kind. What 16 tokens (a block) leave in the layers of a kind
takes some pages, each with as many whole layers of it as there is room for; so all kinds draw on
one memory, and what one gives back another takes (Jenga, arXiv 2503.18292). A model whose layers
are all of one kind has a page a block.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from msgspec import structs
from torch import Tensor

from engine.api.kinds import EVERYTHING, Kind, block_pages
from kernels.kv_format import row_size
from kernels.types import LayerCaches, StatePlace

_ALIGNMENT = 64
"""In bytes, of pages with states and of what begins in them."""
_LOST_SHARE = 0.02
"""Of the bytes of a block of all kinds: what pages may leave empty so that there are fewer."""


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """What a layer of the model asks of its attention, beside its tensors."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    sliding_window: int | None
    softcap: float | None
    chunk: int | None = None
    has_sinks: bool = False
    """Whether each call brings a score of each head that is in the softmax's sum alone."""
    value_dim: int | None = None
    """Of latents, of which one row a token is kept: its value is so many first dimensions of it."""
    reads: int | None = None
    """The layer whose keys and values it reads, which comes before it; it has none of its own."""

    @property
    def rows_per_token(self) -> int:
        """What is kept of a token for each KV head: key and value, or a latent."""
        return 2 if self.value_dim is None else 1


@dataclass(frozen=True, slots=True)
class Place:
    """Where a layer keeps what a block's tokens leave there."""

    column: int
    """Which of the block's pages: those of the first kind come first."""
    start: int
    """Elements of the page in front of it."""
    shape: tuple[int, int, int, int]
    """Keys and values, or latents; KV heads, tokens, elements of a row."""

    @property
    def size(self) -> int:
        """In elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class StateShape:
    """What a layer keeps of a sequence that no later token makes longer."""

    layer: int
    """As the model counts them."""
    name: str
    """Of several of a layer."""
    shape: tuple[int, ...]
    """Its rows, which are never cut, are the first dimension."""
    dtype: torch.dtype

    @property
    def row_bytes(self) -> int:
        """Of one row."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class PageLayout:
    """How a block of all kinds lies in pages."""

    kinds: tuple[Kind, ...]
    """First whatever sees everything, then what remembers longest."""
    page_size: int
    """In elements."""
    places: tuple[Place, ...]
    """By layer; one that reads another's keys has that one's."""
    states: tuple[StatePlace, ...] = ()
    """In the pages of a block with a state."""

    @property
    def num_columns(self) -> int:
        """Pages of a block of all kinds, but for states; one that nobody looks at where there is
        nothing else."""
        return sum(kind.pages for kind in self.kinds if not kind.is_state) or 1

    @property
    def state_pages(self) -> int:
        """Those of a block with a state."""
        return sum(kind.pages for kind in self.kinds if kind.is_state)

    def caches(self, memory: Tensor) -> LayerCaches:
        """Each layer's view of `memory`, which is [num_pages, page_size]."""
        starts = (memory[:, place.start : place.start + place.size] for place in self.places)
        return LayerCaches(
            tuple(
                part.view(len(memory), *place.shape)
                for part, place in zip(starts, self.places, strict=True)
            ),
            tuple(place.column for place in self.places),
            memory.view(torch.uint8),
            self.states,
        )

    def describe(self) -> str:
        """How the elements of a block lie, in a word for who keeps them."""
        own = dict.fromkeys(self.places)
        shapes = [place.shape for place in own]
        is_one = self.num_columns == 1 and len(set(shapes)) == 1
        described = str([len(shapes), *shapes[0]] if is_one else list(map(_described, own)))
        return described + "".join(f" {one.segments}{one.shape}{one.dtype}" for one in self.states)


def _described(place: Place) -> list[int]:
    return [place.column, place.start, *place.shape]


@dataclass(frozen=True, slots=True)
class AttentionLayout:
    """What the layers of a model, or of a rank's part of it, ask of attention."""

    calls: tuple[AttentionCall, ...]
    by_kinds: bool = False
    """Whether layers with a window remember that alone; else all remember every token."""
    states: tuple[StateShape, ...] = ()
    """What layers with a state keep."""
    whole: AttentionLayout | None = None
    """Of a rank's part the whole model's: on every rank a layer lies in the same one of a block's
    pages, whatever part of its heads is there."""

    def pages(self, block_size: int, storage: torch.dtype) -> PageLayout:
        """How blocks of so many tokens lie in pages.

        Raises `ValueError` if the heads cannot be stored in this type.
        """
        shapes = self._shapes(block_size, storage)
        columns = (self.whole or self)._columns(block_size, storage)
        places: dict[int, Place] = {}
        filled, found = Counter[int](), []
        for kind, own in self._kinds().items():
            for layer in own:
                column = columns[layer]
                places[layer] = Place(column, filled[column], shapes[layer])
                filled[column] += places[layer].size
            found.append(structs.replace(kind, pages=len({columns[layer] for layer in own})))
        in_order = tuple(map(places.__getitem__, self._owners))
        page_size = max(filled.values(), default=0)
        if not self.states:
            return PageLayout(tuple(found), page_size, in_order)
        # Rows of states are read as what they are, and one of them has to fit.
        least = max(page_size * storage.itemsize, *(one.row_bytes for one in self.states))
        page_bytes = _aligned(least)
        states, num_pages = _placed(self.states, page_bytes)
        found.append(Kind(pages=num_pages, is_state=True))
        return PageLayout(tuple(found), page_bytes // storage.itemsize, in_order, states)

    def block_bytes(self, block_size: int, storage: torch.dtype) -> int:
        """Bytes of a block of all kinds; for errors see `pages`."""
        pages = self.pages(block_size, storage)
        return block_pages(pages.kinds) * pages.page_size * storage.itemsize

    def _shapes(
        self, block_size: int, storage: torch.dtype
    ) -> dict[int, tuple[int, int, int, int]]:
        """Of each layer with keys of its own: see `Place`."""
        return {
            layer: (
                call.rows_per_token,
                call.num_kv_heads,
                block_size,
                row_size(call.head_dim, storage),
            )
            for layer, call in enumerate(self.calls)
            if call.reads is None
        }

    def _columns(self, block_size: int, storage: torch.dtype) -> dict[int, int]:
        """In which of a block's pages each of these layers lies."""
        shapes = self._shapes(block_size, storage)
        kinds = list(self._kinds().values())
        if not kinds:
            return {}
        sizes = [[math.prod(shapes[layer]) for layer in own] for own in kinds]
        page_size = _page_size(sizes)
        columns: dict[int, int] = {}
        first = 0
        for own, their in zip(kinds, sizes, strict=True):
            pages = [first + page for page in _filled(their, page_size)]
            columns.update(zip(own, pages, strict=True))
            first = pages[-1] + 1
        return columns

    @property
    def _owners(self) -> list[int]:
        """Of each layer the one that keeps what it reads."""
        return [
            layer if call.reads is None else call.reads for layer, call in enumerate(self.calls)
        ]

    def _kinds(self) -> dict[Kind, list[int]]:
        """The layers with keys of their own, by what has to be remembered for those that read them:
        everything, if these do not see alike. What remembers longest comes first.
        """
        seen: dict[int, set[Kind]] = {}
        for owner, call in zip(self._owners, self.calls, strict=True):
            rule = _rule(call) if self.by_kinds else EVERYTHING
            seen.setdefault(owner, set()).add(rule)
        kinds: dict[Kind, list[int]] = {}
        for layer, rules in seen.items():
            kinds.setdefault(rules.pop() if len(rules) == 1 else EVERYTHING, []).append(layer)
        return dict(
            sorted(kinds.items(), key=lambda pair: pair[0].longest or math.inf, reverse=True)
        )


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT


def _placed(states: Sequence[StateShape], page_bytes: int) -> tuple[tuple[StatePlace, ...], int]:
    """Where states lie in pages of that size, one behind the other, and how many these are."""
    places: list[StatePlace] = []
    column = start = 0
    for state in states:
        segments: list[tuple[int, int, int, int]] = []
        row = 0
        start = _aligned(start)
        while row < state.shape[0]:
            count = min(state.shape[0] - row, (page_bytes - start) // state.row_bytes)
            if count > 0:
                segments.append((row, count, column, start))
                row, start = row + count, start + count * state.row_bytes
            else:
                column, start = column + 1, 0
        places.append(StatePlace(tuple(segments), state.shape, state.dtype))
    return tuple(places), column + 1


def _rule(call: AttentionCall) -> Kind:
    return Kind(window=call.sliding_window, chunk=call.chunk)


def _filled(sizes: Sequence[int], page_size: int) -> Iterator[int]:
    """Of one layer of a kind after the other its page."""
    page = end = 0
    for size in sizes:
        if end + size > page_size:
            page, end = page + 1, 0
        yield page
        end += size


def _page_size(kinds: Sequence[Sequence[int]]) -> int:
    """By the sizes of each kind's layers: that with which a block has the fewest pages, of those
    that leave little of them empty, or else the least.
    """
    whole = sum(map(sum, kinds))
    least = max(map(max, kinds))

    def cost(page_size: int) -> tuple[float, int, int]:
        pages = sum(1 + max(_filled(sizes, page_size)) for sizes in kinds)
        lost = pages * page_size - whole
        return max(lost, _LOST_SHARE * whole), pages, lost

    candidates = {size for sizes in kinds for size in accumulate(sizes) if size >= least}
    return min(candidates, key=cost)
