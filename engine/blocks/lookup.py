"""What of a chain a sequence can go on from: as many blocks as layers of every kind can serve."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from engine.api import Kind
from engine.blocks.pool import BlockPool
from engine.blocks.rows import HOLE


class Found(NamedTuple):
    """From where a sequence can go on; all rows are as long."""

    rows: list[list[int]]
    """By kind, blocks of the pool, behind holes where none are needed."""
    slots: list[dict[int, int]]
    """By kind and index, what the host tier has in place of holes."""
    num_alike: int
    """How many blocks the kinds that see everything have."""


class Lookup:
    """Finds the blocks of a chain that a sequence can go on from: in the pool or, where this has
    none, in the host tier, if there is one.
    """

    def __init__(
        self, pool: BlockPool, host: BlockPool | None = None, fresh: Collection[int] = ()
    ) -> None:
        """The states of `fresh` blocks are not there before the next step has been computed."""
        self._pool = pool
        self._host = host
        self._fresh = fresh

    def longest(self, hashes: Sequence[bytes], num_before: int, block_size: int) -> Found:
        """What the sequence can go on from behind `num_before` blocks that it shares.

        They are as many as all kinds can serve: those that forget need the blocks of their window
        alone, and what of it is shared is taken for granted.
        """
        kinds = list(enumerate(self._pool.kinds))
        rows: list[list[int]] = [[] for _ in kinds]
        slots: list[dict[int, int]] = [{} for _ in kinds]
        whole = [number for number, kind in kinds if not kind.forgets]
        for number in whole:
            rows[number] = self._pool.find(hashes, number)
            if self._host is not None:
                self._add(rows[number], slots[number], hashes, len(hashes), number)
        alike = min((len(rows[number]) for number in whole), default=len(hashes))

        def has(number: int, index: int) -> bool:
            return self._has(hashes[index], number)

        count = served(self._pool.kinds, alike, has, num_before, block_size)
        for number in whole:
            del rows[number][count:]
            slots[number] = {i: slot for i, slot in slots[number].items() if i < count}
        for number, kind in kinds:
            if kind.forgets:
                window = _needed(kind, count, num_before, block_size)
                rows[number] = [HOLE] * window.start
                self._add(rows[number], slots[number], hashes, count, number)
        return Found(rows, slots, alike)

    def _has(self, block_hash: bytes, kind: int) -> bool:
        key = [block_hash]
        if found := self._pool.find(key, kind):
            return not (self._pool.kinds[kind].is_state and found[0] in self._fresh)
        return self._host is not None and bool(self._host.find(key, kind))

    def _add(
        self, row: list[int], slots: dict[int, int], hashes: Sequence[bytes], end: int, kind: int
    ) -> None:
        """Add to a row what comes next, up to its `end`, until it is found nowhere."""
        for index in range(len(row), end):
            found = self._pool.find([hashes[index]], kind)
            if not found and self._host is not None:
                for slot in self._host.find([hashes[index]], kind):
                    slots[index] = slot
                    found = [HOLE]
            if not found:
                break
            row += found


def usable(pool: BlockPool, hashes: Sequence[bytes], block_size: int) -> list[list[int]]:
    """Of each block of a chain that a hit could use, those of all kinds that it needs there."""
    rows = Lookup(pool).longest(hashes, 0, block_size).rows
    return [[one for one in blocks if one != HOLE] for blocks in zip(*rows, strict=True)]


def served(
    kinds: Sequence[Kind],
    most: int,
    has: Callable[[int, int], bool],
    num_before: int,
    block_size: int,
) -> int:
    """Behind how many blocks, `most` at most, kinds that forget can go on, too: they need those of
    their window alone. Of these blocks, by kind and index behind `num_before`, `has` tells.
    """
    forgetting = [(number, kind) for number, kind in enumerate(kinds) if kind.forgets]

    def gap(number: int, kind: Kind) -> int:
        window = reversed(_needed(kind, most, num_before, block_size))
        return next((one for one in window if not has(number, one)), -1)

    while most and (last := max((gap(*one) for one in forgetting), default=-1)) >= 0:
        most = last
    return most


def _needed(kind: Kind, count: int, num_before: int, block_size: int) -> range:
    """Of `count` blocks behind `num_before`: those that the token behind them sees."""
    seen = kind.seen((num_before + count) * block_size, block_size)
    return range(max(0, seen.start - num_before), count)
