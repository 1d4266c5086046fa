"""Triton: where the weights of adapters lie, and which rows of a step are whose."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import gcd
from struct import Struct
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from kernels.types import AdaptedRows, Adapter, LowRank

ROWS: Final = 32
"""Of a block: of one adapter."""

RANKS: Final = 32
"""Of a tile: of one part of a change."""

FIELDS: Final = 6
"""Of a tile in the table: addresses of what it takes and of what it gives, numbers of ranks and of
outputs, the first output, the scale's bits."""

_TILE: Final = Struct("=5qf4x")
_ENTRY: Final = Struct("=2q")
"""Of a product: where its first tile is, in fields of the table, and how many there are; or where
such entries of all experts are, and how many."""

_ENTRY_FIELDS: Final = _ENTRY.size // 8

_VECTOR_BYTES: Final = 16
"""That a thread reads at a time, at most."""


class _Table(NamedTuple):
    """All tiles of an adapter, behind where those of each product are."""

    fields: Tensor  # int64
    counts: tuple[int, ...]
    """Tiles, by product: the most that an expert has, where it is one of experts."""
    vector: int
    """Elements that divide all that rows of weights, and outputs that they go to, begin at."""


_tables: WeakKeyDictionary[Adapter, _Table] = WeakKeyDictionary()


class Blocks(NamedTuple):
    """Rows in blocks of one adapter each, or of one of its experts."""

    order: Tensor  # int64 [num_rows]: which row of a tensor each is
    blocks: Tensor
    """int64 [3, num_blocks]: of each block the table of its adapter, its first row and its end; of
    experts [4, num_blocks], with the expert besides, and blocks that have no row."""
    vector: int
    """Elements that a thread may read at a time."""

    @property
    def are_of_experts(self) -> bool:
        """Whether there are experts."""
        return len(self.blocks) > 3


class PlacedRows(tuple[AdaptedRows, ...]):
    """A step's rows with tables of them on the device."""

    rows: Blocks
    owners: Tensor  # int64 [num_rows]: the number of the adapter of each, in their order
    addresses: Tensor  # int64 [num_adapters]: of their tables
    _tables: tuple[_Table, ...]

    def num_tiles(self, product: int) -> int:
        """The most of any adapter."""
        return max((table.counts[product] for table in self._tables), default=0)


def placed(adapted: Sequence[AdaptedRows], device: torch.device) -> PlacedRows:
    """See `kernels.adapters.placed`."""
    tables = tuple(_table(adapter, device) for adapter, _ in adapted)
    addresses = [table.fields.data_ptr() for table in tables]
    counts = [len(rows) for _, rows in adapted]
    bounds = list(pairwise(accumulate(counts, initial=0)))
    blocks = [
        (address, first, min(first + ROWS, end))
        for address, (start, end) in zip(addresses, bounds, strict=True)
        for first in range(start, end, ROWS)
    ]
    parts = [
        torch.cat([rows.cpu() for _, rows in adapted]),
        torch.tensor(blocks, dtype=torch.int64).view(-1, 3).T.flatten(),
        torch.arange(len(counts)).repeat_interleave(torch.tensor(counts)),
        torch.tensor(addresses),
    ]
    whole = _on(device, torch.cat(parts))
    ends = pairwise(accumulate(map(len, parts), initial=0))
    order, flat, owners, on_device = (whole[start:end] for start, end in ends)
    found = PlacedRows(
        AdaptedRows(one.adapter, order[start:end])
        for one, (start, end) in zip(adapted, bounds, strict=True)
    )
    found.rows = Blocks(order, flat.view(3, -1), min(table.vector for table in tables))
    found.owners, found.addresses, found._tables = owners, on_device, tables
    return found


def _table(adapter: Adapter, device: torch.device) -> _Table:
    table = _tables.get(adapter)
    if table is None:
        fields, counts = _packed(adapter)
        parts = (part for change in adapter.changes for part in change)
        vector = min(map(_vector, parts), default=1)
        table = _tables[adapter] = _Table(_on(device, fields), counts, vector)
    return table


def _packed(adapter: Adapter) -> tuple[Tensor, tuple[int, ...]]:
    """The fields and the counts of `_Table`."""
    entries, behind, counts = list[bytes](), list[bytes](), list[int]()
    at = _ENTRY_FIELDS * len(adapter.changes)
    for change in adapter.changes:
        of_experts = _tiles_of_experts(change)
        tiles = of_experts or [
            [tile for part in change for tile in _tiles(part, 0, len(part.down))]
        ]
        if of_experts:
            entries.append(_ENTRY.pack(at, len(tiles)))
            at += _ENTRY_FIELDS * len(tiles)
        own = behind if of_experts else entries
        for one in tiles:
            own.append(_ENTRY.pack(at, len(one)))
            at += FIELDS * len(one)
        behind += [tile for one in tiles for tile in one]
        counts.append(max(map(len, tiles)))
    packed = bytearray(b"".join([*entries, *behind]))
    return torch.frombuffer(packed, dtype=torch.int64), tuple(counts)


def _tiles_of_experts(change: Sequence[LowRank]) -> list[list[bytes]]:
    """Of each expert up to the last one that is changed."""
    ranges = [part.experts for part in change if part.experts is not None]
    found: list[list[bytes]] = [[] for _ in range(max((one.stop for one in ranges), default=0))]
    for part, experts in zip(change, ranges, strict=False):
        each = len(part.down) // len(experts)
        for place, expert in enumerate(experts):
            found[expert] += _tiles(part, place * each, (place + 1) * each)
    return found


def _tiles(part: LowRank, first: int, end: int) -> list[bytes]:
    """Of some of its ranks."""
    width, size = part.up.shape[1], part.down.itemsize
    down, up = part.down.data_ptr(), part.up.data_ptr()
    rows = size * part.down.shape[1], size * width
    return [
        _TILE.pack(
            down + rank * rows[0],
            up + rank * rows[1],
            min(RANKS, end - rank),
            width,
            part.column,
            part.scale,
        )
        for rank in range(first, end, RANKS)
    ]


def _vector(part: LowRank) -> int:
    size = part.down.itemsize
    bytes_of_rows = size * part.down.shape[1], size * part.up.shape[1], size * part.column
    begins = part.down.data_ptr(), part.up.data_ptr()
    return gcd(_VECTOR_BYTES, *begins, *bytes_of_rows) // size


def _on(device: torch.device, numbers: Tensor) -> Tensor:
    """Copied without waiting for what the device has still to do."""
    if device.type != "cuda":
        return numbers.to(device)
    return numbers.pin_memory().to(device, non_blocking=True)
