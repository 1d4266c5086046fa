"""Block tables as arrays, kept from step to step: no table is read anew for one more block."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from engine.blocks.table import BlockTable

_SPARE = 16


@dataclass(slots=True)
class _Row:
    """A copy of `blocks`, which is the table's own list."""

    blocks: list[int]
    array: npt.NDArray[np.int32]
    length: int = 0


class TableMirror:
    """Follows block tables by what they allow themselves: to grow, and to replace the last block.

    What was given back and admitted again is another list.
    """

    def __init__(self) -> None:
        self._rows: WeakKeyDictionary[BlockTable, _Row] = WeakKeyDictionary()

    def row(self, table: BlockTable) -> npt.NDArray[np.int32]:
        """The table's blocks; they hold until the next call."""
        blocks, row = table.blocks, self._rows.get(table)
        if row is None or row.blocks is not blocks:
            row = self._rows[table] = _Row(blocks, np.zeros(0, np.int32))
        if len(blocks) > len(row.array):
            grown = np.zeros(len(blocks) + len(blocks) // 2 + _SPARE, np.int32)
            grown[: row.length] = row.array[: row.length]
            row.array = grown
        start = max(0, row.length - 1)
        row.array[start : len(blocks)] = blocks[start:]
        row.length = len(blocks)
        return row.array[: row.length]
