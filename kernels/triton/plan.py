"""Which program computes what of a step's chunks: a list that the host makes, once for all layers.

The queries of a chunk are cut into tiles, each with all query heads of a KV head; a tile with one
KV head is an item. Where items are many and alike, each is a part, and a program computes it whole.
Where the longest one would leave the device waiting (20 new tokens behind 8,192 cached ones are as
few items as there are KV heads), the keys of all items are laid in a row and cut into equal shares,
one a program: split-K (Flash-Decoding, Dao et al. 2023), as even as Stream-K (Osama et al. 2023).
An item in several parts is merged; the others' results are written where they belong.

An even cut depends on all of a step, and so does, by its last bit, what a token gets. A fixed one
cuts at multiples of so many keys, whatever else there is.

Nothing here touches a device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kernels.types import Chunk

Integers = npt.NDArray[np.int64]

PART_FIELDS = 8
"""row, first token, queries, position of the first, KV head, first key, end of keys, slot or -1."""
MERGE_FIELDS = 5
"""First token, queries, KV head, first slot, last slot."""

_MERGE_KEYS = 512
"""Estimated: a second launch takes as long as a program takes for so many keys."""
_BYTES_RATIO = 2
"""Of a row of a slot, fp32 written and read, over those of a key and a value in half precision."""
_MOST_SLOTS = 2048


@dataclass(frozen=True, slots=True)
class ChunkCut:
    """What of a launch decides how work is cut."""

    queries: int
    """Of a tile, each with all query heads of a KV head."""
    rows: int
    """Of a tile: queries times heads, and what fills it up."""
    keys: int
    """Of a unit: parts begin at multiples of it."""
    num_kv_heads: int
    window: int
    """0: none."""
    chunk: int
    """The same."""
    num_programs: int
    """That run at a time."""
    fixed_keys: int = 0
    """Of every part, a multiple of `keys`, where cuts must not depend on what else there is."""


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """One launch, and what to merge behind it."""

    parts: npt.NDArray[np.int32]  # [num_programs, PART_FIELDS], the longest first
    merges: npt.NDArray[np.int32]  # [num_merges, MERGE_FIELDS]
    num_slots: int
    """Partial results, each of a whole tile."""


class _Items(NamedTuple):
    """Tiles, each with one KV head; all [num_items]."""

    row: Integers
    token: Integers
    queries: Integers  # their number
    position: Integers  # of the first query
    head: Integers
    begin: Integers  # keys, a multiple of a unit
    end: Integers

    def units(self, keys: int) -> Integers:
        """How many times `keys` keys each has."""
        return -(-(self.end - self.begin) // keys)


class _Cuts(NamedTuple):
    """Parts of items; all [num_parts], those of an item one behind the other."""

    item: Integers
    begin: Integers  # units, from the item's first one on
    end: Integers


def plan_chunks(chunks: Sequence[Chunk], cut: ChunkCut) -> list[ChunkPlan]:
    """Plans that together compute all of `chunks`; one, unless a fixed cut has too many slots."""
    items = _items(chunks, cut)
    units = items.units(cut.keys)
    if cut.fixed_keys:
        cuts = _cut(units, items.begin // cut.keys, cut.fixed_keys // cut.keys)
    else:
        cuts = _even(units, cut)
    num_parts = np.bincount(cuts.item, minlength=len(units))
    slots = np.where(num_parts > 1, num_parts, 0)
    wave = (slots.cumsum() - slots) // _MOST_SLOTS
    return [
        _plan(items, _Cuts(*(column[wave[cuts.item] == index] for column in cuts)), cut.keys)
        for index in np.unique(wave)
    ]


def _items(chunks: Sequence[Chunk], cut: ChunkCut) -> _Items:
    row, token, num_queries, context = np.array(chunks, np.int64).T
    num_tiles = -(-num_queries // cut.queries)
    chunk, tile = _numbered(num_tiles)
    first = tile * cut.queries
    count = np.minimum(cut.queries, num_queries[chunk] - first)
    position = (context - num_queries)[chunk] + first
    seen = np.zeros_like(position)
    if cut.window:
        seen = np.maximum(seen, position - cut.window + 1)
    if cut.chunk:
        seen = np.maximum(seen, position // cut.chunk * cut.chunk)
    begin = seen // cut.keys * cut.keys
    heads = cut.num_kv_heads
    return _Items(
        row=row[chunk].repeat(heads),
        token=(token[chunk] + first).repeat(heads),
        queries=count.repeat(heads),
        position=position.repeat(heads),
        head=np.tile(np.arange(heads), len(count)),
        begin=begin.repeat(heads),
        end=(position + count).repeat(heads),
    )


def _even(units: Integers, cut: ChunkCut) -> _Cuts:
    """Whole items, or equal shares of all, if these are done earlier by more than merging takes."""
    whole = _cut(units, np.zeros_like(units), int(units.max()))
    share = -(-int(units.sum()) // cut.num_programs)
    shares = _cut(units, units.cumsum() - units, share)
    saved = (int(units.max()) - share) * cut.keys
    num_parts = np.bincount(shares.item)
    num_slots = int(num_parts[num_parts > 1].sum())
    written = num_slots * cut.rows * _BYTES_RATIO // cut.num_programs
    return shares if saved > _MERGE_KEYS + written else whole


def _cut(units: Integers, first: Integers, share: int) -> _Cuts:
    """Items lie on a line from `first` on; it is cut at multiples of `share`."""
    low = first // share
    item, part = _numbered((first + units - 1) // share - low + 1)
    begin = (part + low[item]) * share - first[item]
    return _Cuts(item, np.maximum(begin, 0), np.minimum(begin + share, units[item]))


def _plan(items: _Items, cuts: _Cuts, keys: int) -> ChunkPlan:
    numbers, first_part, num_parts = np.unique(cuts.item, return_index=True, return_counts=True)
    is_split = num_parts.repeat(num_parts) > 1
    slot = is_split.cumsum() - 1
    of = _Items(*(column[cuts.item] for column in items))
    parts = np.stack(
        [
            *(of.row, of.token, of.queries, of.position, of.head),
            of.begin + cuts.begin * keys,
            np.minimum(of.begin + cuts.end * keys, of.end),
            np.where(is_split, slot, -1),
        ],
        axis=1,
    )
    split = num_parts > 1
    merged, first = numbers[split], slot[first_part[split]]
    last = first + num_parts[split] - 1
    merges = [items.token[merged], items.queries[merged], items.head[merged], first, last]
    longest_first = np.argsort(cuts.begin - cuts.end, kind="stable")
    return ChunkPlan(
        parts[longest_first].astype(np.int32),
        np.stack(merges, axis=1).astype(np.int32),
        int(is_split.sum()),
    )


def _numbered(counts: Integers) -> tuple[Integers, Integers]:
    """For `counts[i]` things of each i: their i, and their numbers from 0 on."""
    owner = np.arange(len(counts)).repeat(counts)
    return owner, np.arange(len(owner)) - (counts.cumsum() - counts)[owner]
