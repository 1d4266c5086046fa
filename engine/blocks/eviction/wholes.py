"""What blocks are worth that are of use together alone, such as an adapter's, beside all others.

GreedyDual-Size with frequency (Cao and Irani, USITS 1997; Cherkasova, HP Labs 1998). What goes sets
a level. A candidate is worth the level at which it became one, and the seconds of bringing it back,
for its memory, as often as it was used: levels tell how long nobody has come for it. One of the
other blocks counts as 1, a whole as the seconds of its loading over those of their computing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count

from engine.blocks.eviction.policy import Order
from engine.blocks.eviction.worth import Purpose


@dataclass(slots=True, eq=False)
class _Whole:
    """Blocks that are of use together alone."""

    worth: float
    """Of a use, for a page."""
    num_uses: int
    is_used: bool = True
    """Since it was a candidate last, which reserves and leases make it and unmake, too."""
    offered: dict[int, bytes] = field(default_factory=dict)
    """Those that are candidates, with their keys."""
    entry: int = -1
    """The one in the heap that counts, once there was one."""


class WithWholes:
    """An order that has wholes among its candidates."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._level = 0.0
        self._levels: dict[int, float] = {}
        """At which the order's own candidates became such; 0 for those that were before."""
        self._wholes: dict[int, _Whole] = {}
        """By their blocks."""
        self._heap: list[tuple[float, int, _Whole]] = []
        """The worth of those that have candidates, and others."""
        self._entries = count()
        self._num_offered = 0

    def join(self, blocks: Collection[int], worth: float) -> None:
        """Findable `blocks` in use are a whole, a use of which is worth so much for a page."""
        known = (self._wholes[block].num_uses for block in blocks if block in self._wholes)
        self._wholes |= dict.fromkeys(blocks, _Whole(worth, max(known, default=0)))

    def __len__(self) -> int:
        """See `Order`."""
        return len(self._order) + self._num_offered

    def add(self, block: int, key: bytes, *, oldest: bool = False) -> None:
        """See `Order`."""
        whole = self._wholes.get(block)
        if whole is None:
            self._order.add(block, key, oldest=oldest)
            self._levels[block] = self._level - oldest
            return
        if not whole.offered:
            whole.num_uses += whole.is_used
            whole.is_used = False
            whole.entry = next(self._entries)
            worth = self._level + whole.worth * whole.num_uses * (not oldest)
            heappush(self._heap, (worth, whole.entry, whole))
        whole.offered[block] = key
        self._num_offered += 1
        self._drop_outdated()

    def remove(self, block: int) -> bytes:
        """See `Order`."""
        whole = self._wholes.get(block)
        if whole is None:
            self._levels.pop(block, None)
            return self._order.remove(block)
        self._num_offered -= 1
        return whole.offered.pop(block)

    def least(self) -> tuple[int, bool]:
        """See `Order`."""
        first = self._first_whole()
        return self._order.least() if first is None else (_last_of(first[1]), False)

    def evict(self) -> int:
        """See `Order`."""
        first = self._first_whole()
        if first is None:
            block = self._order.evict()
            self._level = max(self._level, self._levels.pop(block, 0.0) + 1)
            return block
        worth, whole = first
        self._level = max(self._level, worth)
        block = _last_of(whole)
        self.remove(block)
        return block

    def used_again(self, block: int) -> None:
        """See `Order`."""
        whole = self._wholes.get(block)
        if whole is None:
            self._order.used_again(block)
        else:
            whole.is_used = True

    def stored(
        self, block: int, key: bytes, kind: int, parent: bytes | None, owner: str, purpose: Purpose
    ) -> None:
        """See `Order`."""
        self._order.stored(block, key, kind, parent, owner, purpose)

    def lost(self, block: int) -> None:
        """See `Order`."""
        self._wholes.pop(block, None)
        self._order.lost(block)

    def came_back(self, hashes: Sequence[bytes], num_found: int) -> Sequence[int]:
        """See `Order`."""
        return self._order.came_back(hashes, num_found)

    def candidates(self) -> dict[int, bytes]:
        """See `Order`."""
        found, offered = self._order.candidates(), dict[int, bytes]()
        for whole in set(self._wholes.values()):
            assert whole.offered.keys().isdisjoint(offered), "a block is of two wholes"
            offered |= whole.offered
            entries = [entry for _, entry, one in self._heap if one is whole]
            assert not whole.offered or whole.entry in entries, "a whole is not in the heap"
        assert all(self._wholes[block].offered.get(block) for block in offered), "of another whole"
        assert len(offered) == self._num_offered, "candidates of wholes are miscounted"
        assert self._levels.keys() <= found.keys(), "a level is of no candidate"
        return found | offered

    def _drop_outdated(self) -> None:
        """Keep no more entries than twice those that count, or so: nothing may ever be evicted."""
        if len(self._heap) > 2 * len(self._wholes) + 16:
            self._heap = [one for one in self._heap if _counts(*one[1:])]
            heapify(self._heap)

    def _first_whole(self) -> tuple[float, _Whole] | None:
        """The whole that is worth least, if it goes before the order's own candidates."""
        while self._heap:
            worth, entry, whole = self._heap[0]
            if _counts(entry, whole):
                break
            heappop(self._heap)
        else:
            return None
        if len(self._order):
            block, is_useless = self._order.least()
            if is_useless or self._levels.get(block, 0.0) + 1 < worth:
                return None
        return worth, whole


def _counts(entry: int, whole: _Whole) -> bool:
    """Whether an entry of the heap is the one that its whole is a candidate by."""
    return bool(whole.offered) and whole.entry == entry


def _last_of(whole: _Whole) -> int:
    """Its tail, which is released before the rest."""
    return next(iter(whole.offered))
