"""Triton: where the weights of adapters lie, and which rows of a step are whose."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
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
_CHANGE: Final = Struct("=2q")
"""Of a product: where its first tile is, in fields of the table, and how many there are."""

_VECTOR_BYTES: Final = 16
"""That a thread reads at a time, at most."""


class _Table(NamedTuple):
    """All tiles of an adapter, behind where those of each product are."""

    fields: Tensor  # int64
    counts: tuple[int, ...]
    """Tiles, by product."""
    vector: int
    """Elements that divide all that rows of weights, and outputs that they go to, begin at."""


_tables: WeakKeyDictionary[Adapter, _Table] = WeakKeyDictionary()


class PlacedRows(tuple[AdaptedRows, ...]):
    """A step's rows with tables of them on the device."""

    order: Tensor  # int64 [num_rows]: those of an adapter one behind the other
    blocks: Tensor  # int64 [3, num_blocks]: adapter's table, first row, end, in that order
    vector: int
    """Elements that a thread may read at a time."""
    _tables: tuple[_Table, ...]

    def num_tiles(self, product: int) -> int:
        """The most of any adapter."""
        return max((table.counts[product] for table in self._tables), default=0)


def placed(adapted: Sequence[AdaptedRows], device: torch.device) -> PlacedRows:
    """See `kernels.adapters.placed`."""
    tables = tuple(_table(adapter, device) for adapter, _ in adapted)
    starts = list(accumulate((len(rows) for _, rows in adapted), initial=0))
    blocks = [
        (table.fields.data_ptr(), first, min(first + ROWS, end))
        for table, start, end in zip(tables, starts, starts[1:], strict=False)
        for first in range(start, end, ROWS)
    ]
    listed = torch.tensor(blocks, dtype=torch.int64).view(-1, 3).T.flatten()
    both = _on(device, torch.cat([*(rows.cpu() for _, rows in adapted), listed]))
    count = starts[-1]
    found = PlacedRows(
        AdaptedRows(one.adapter, both[start:end])
        for one, start, end in zip(adapted, starts, starts[1:], strict=False)
    )
    found.order, found.blocks = both[:count], both[count:].view(3, -1)
    found.vector = min((table.vector for table in tables), default=1)
    found._tables = tables
    return found


def _table(adapter: Adapter, device: torch.device) -> _Table:
    table = _tables.get(adapter)
    if table is None:
        tiles = [[tile for part in change for tile in _tiles(part)] for change in adapter.changes]
        counts = tuple(map(len, tiles))
        first = _CHANGE.size // 8 * len(counts)
        starts = (first + FIELDS * before for before in accumulate(counts, initial=0))
        packed = b"".join(map(_CHANGE.pack, starts, counts))
        packed += b"".join(tile for change in tiles for tile in change)
        fields = torch.frombuffer(bytearray(packed), dtype=torch.int64)
        parts = (part for change in adapter.changes for part in change)
        vector = min(map(_vector, parts), default=1)
        table = _tables[adapter] = _Table(_on(device, fields), counts, vector)
    return table


def _tiles(part: LowRank) -> list[bytes]:
    return [
        _TILE.pack(
            part.down[rank].data_ptr(),
            part.up[rank].data_ptr(),
            min(RANKS, len(part.down) - rank),
            part.up.shape[1],
            part.column,
            part.scale,
        )
        for rank in range(0, len(part.down), RANKS)
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
