"""The pool as a picture: one cell a block, told to whoever watches by what has changed.

A *watcher* asks for one frame after the other. Each tells the cells that have changed since its
last one, as they are now: who asks late gets the changes of all that time in one, and nothing is
kept for it but a mark a cell. What a frame holds is bounded; where more has changed the cells take
turns, by their numbers. While nobody watches, the pools note nothing.

The cells are the pool's pages, each of which shows its block, and behind them those of the host
tier, each of which shows its slot. A frame, whose numbers are varints (LEB128):

    flags, number of pages, number of the host's, cells yet to be told,
    number of new owners, and each one's length in bytes and name in UTF-8,
    then to its end the cells: how many are left out since the last one told, state, and
        with RUN: how many more of the cells behind it are alike,
        unless free: the owner, by its place among those that this watcher has been told of,
        with HELD: how many hold it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Final

import numpy as np
import numpy.typing as npt

from engine.blocks.pins import Pins
from engine.blocks.pool import BlockPool
from engine.blocks.tiers import Tiers

HELD: Final = 1
"""In use: some sequence, pin or transfer holds it."""
FINDABLE: Final = 2
"""It has a hash; if nobody holds it, it is cached."""
LEASED: Final = 4
PINNED: Final = 8
STATE: Final = 32
"""It holds what layers keep of all tokens up to its end, and no keys."""
RUN: Final = 16
"""Not a part of the state: the cells behind this one are alike."""

ANEW: Final = 1
"""Flag: what this watcher has been told before does not count; all cells are free."""
PARTIAL: Final = 2
"""Flag: not every cell has been told yet."""

_CELLS_A_FRAME: Final = 1000
"""About a millisecond of the engine's loop, and 4 KB."""
_CELLS_AT_FIRST: Final = 2000
_MOST_WATCHERS: Final = 8
_MOST_OWNERS: Final = 4096
"""Besides as many as there are cells: more cannot be there at once."""
_PATIENCE_SECONDS: Final = 10.0


_Cell = tuple[int, str, int]
"""State, owner, and how many hold it."""
_FREE: Final[_Cell] = (0, "", 0)


@dataclass(slots=True)
class _Watcher:
    pending: npt.NDArray[np.bool_]
    """By cell: whether it is to be told."""
    untold: int
    """Cells that have not been told for the first time, at most."""
    asked: float = 0.0
    flags: int = ANEW
    cursor: int = 0
    owners: dict[str, int] = field(default_factory=dict)

    def take(self, most: int) -> list[int]:
        """The next cells to be told, in ascending order."""
        numbers = np.flatnonzero(self.pending)
        turn = int(np.searchsorted(numbers, self.cursor))
        taken: npt.NDArray[np.intp] = np.concatenate([numbers[turn:], numbers[:turn]])[:most]
        if len(taken):
            self.cursor = int(taken[-1]) + 1
            self.pending[taken] = False
            self.untold = max(0, self.untold - len(taken))
        return sorted(taken.tolist())


class Wall:
    """The picture of a pool, its pins and its host tier, and who watches it."""

    def __init__(self, tiers: Tiers, pins: Pins) -> None:
        self._pool = tiers.pool
        self._slots = tiers.host
        self._marks = (tiers.marks, tiers.host.marks)
        self._pins = pins
        self._state_kinds = {n for n, kind in enumerate(tiers.pool.kinds) if kind.is_state}
        self._clock = tiers.clock
        self._watchers: dict[str, _Watcher] = {}

    def __len__(self) -> int:
        return self._pool.num_pages + self._slots.num_pages

    def frame(self, name: str) -> bytes:
        """What a watcher has not been told, or a part of it. One that is new is told all.

        Empty for a new one where too many look already.
        """
        self._note()
        self.lapse()
        watcher = self._watchers.get(name)
        if watcher is None or len(watcher.owners) > _MOST_OWNERS + len(self):
            self.unwatch(name)
            if len(self._watchers) >= _MOST_WATCHERS:
                return b""
            watcher = self._begin(name)
        watcher.asked = self._clock()
        return self._next_frame(watcher)

    def unwatch(self, name: str) -> None:
        """This watcher looks no more. Unknown names are fine."""
        self._watchers.pop(name, None)
        if not self._watchers:
            for marks in self._marks:
                marks.pages = None

    def lapse(self) -> None:
        """Take those that have not asked for long to look no more."""
        oldest = self._clock() - _PATIENCE_SECONDS
        for name in [name for name, one in self._watchers.items() if one.asked < oldest]:
            self.unwatch(name)

    def _begin(self, name: str) -> _Watcher:
        if not self._watchers:
            for marks in self._marks:
                marks.pages = set()
        watcher = self._watchers[name] = _Watcher(np.ones(len(self), dtype=np.bool_), len(self))
        return watcher

    def _next_frame(self, watcher: _Watcher) -> bytes:
        numbers = watcher.take(_CELLS_AT_FIRST if watcher.untold else _CELLS_A_FRAME)
        num_known = len(watcher.owners)
        cells = _encoded(numbers, self._cells(numbers), watcher.owners)
        names = [name.encode() for name in list(watcher.owners)[num_known:]]
        frame = bytearray([watcher.flags | (PARTIAL if watcher.untold else 0)])
        watcher.flags = 0
        sizes = (self._pool.num_pages, self._slots.num_pages)
        for count in (*sizes, int(np.count_nonzero(watcher.pending)), len(names)):
            _put(frame, count)
        for name in names:
            _put(frame, len(name))
            frame += name
        return bytes(frame + cells)

    def _cells(self, numbers: list[int]) -> list[_Cell]:
        """What is in the books of the blocks on these pages and, behind them, those of slots."""
        first = self._pool.num_pages
        num_pages = bisect_left(numbers, first)
        blocks = [self._pool.block_on[page] for page in numbers[:num_pages]]
        slots = [self._slots.block_on[number - first] for number in numbers[num_pages:]]
        books = _look(self._pool, blocks) + _look(self._slots, slots)
        leased, pinned = self._pool.leases.blocks, self._pins.references
        flags: Iterable[int] = repeat(0)
        if leased or pinned:
            ours = ((LEASED * (one in leased) | PINNED * (one in pinned)) for one in blocks)
            flags = chain(ours, repeat(0))
        if self._state_kinds:
            kinds = chain(
                map(self._pool.kinds_of.__getitem__, blocks),
                map(self._slots.kinds_of.__getitem__, slots),
            )
            flags = (
                flag | STATE * (kind in self._state_kinds)
                for flag, kind in zip(flags, kinds, strict=False)
            )
        return [
            (flag | HELD * (references > 0) | FINDABLE * is_findable, owner, references)
            if references or is_findable or flag & ~STATE
            else _FREE
            for (references, is_findable, owner), flag in zip(books, flags, strict=False)
        ]

    def _note(self) -> None:
        """Mark what has changed since the last frame of any watcher, for all of them."""
        _ = self._pool.leases  # those that are due end
        changed: list[int] = []
        for marks, first in zip(self._marks, (0, self._pool.num_pages), strict=True):
            changed += (first + page for page in marks.pages or ())
            marks.pages = set()
        for watcher in self._watchers.values():
            watcher.pending[changed] = True


def _look(pool: BlockPool, blocks: list[int]) -> list[tuple[int, bool, str]]:
    """Of each block: how many hold it, whether it can be found, and its owner."""
    references, hashes, owners = pool.references, pool.hashes, pool.owners
    return [(references[one], hashes[one] is not None, owners[one]) for one in blocks]


def _encoded(numbers: Sequence[int], cells: Iterable[_Cell], owners: dict[str, int]) -> bytearray:
    """The part of a frame that tells cells; owners that are new are added to those known."""
    out, end = bytearray(), 0
    # Of many cells few are different: each is encoded once.
    known: dict[_Cell, bytes] = {}
    for first, count, cell in _runs(numbers, cells):
        gap = first - end
        end = first + count
        if gap < 128:
            out.append(gap)
        else:
            _put(out, gap)
        encoded = known.get(cell) or known.setdefault(cell, _encoded_cell(cell, owners))
        if count == 1:
            out += encoded
        else:
            out.append(encoded[0] | RUN)
            _put(out, count - 1)
            out += encoded[1:]
    return out


def _encoded_cell(cell: _Cell, owners: dict[str, int]) -> bytes:
    """A cell alone; its state is the first byte."""
    state, owner, references = cell
    out = bytearray([state])
    if state:
        _put(out, owners.setdefault(owner, len(owners)))
    if state & HELD:
        _put(out, references)
    return bytes(out)


def _runs(numbers: Sequence[int], cells: Iterable[_Cell]) -> Iterator[tuple[int, int, _Cell]]:
    """Neighbours that are alike: the first one's number, how many, and what they show."""
    first, end, shown = 0, 0, _FREE
    for number, cell in zip(numbers, cells, strict=True):
        if number == end and cell == shown and end > first:
            end += 1
            continue
        if end > first:
            yield first, end - first, shown
        first, end, shown = number, number + 1, cell
    if end > first:
        yield first, end - first, shown


def _put(out: bytearray, value: int) -> None:
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
