"""The blocks of one sequence by kind and index, as far as it holds them.

Rows of kinds that see everything are whole. Those of kinds that forget (`engine.api.kinds`) begin
with holes, where blocks were given back or have never been needed, and grow as the sequence is
computed; beyond their end it may hold blocks for others that are to go on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from engine.api import Kind
from engine.blocks.pool import BlockPool

HOLE: Final = -1
"""In place of a block."""
NEAR: Final = 512
"""Tokens before the end of a prompt, or of all, within which others may part from it: the last
message is edited or asked anew, and an answer is repeated otherwise than it was begun."""


_SHARE: Final = 8
"""Windows that are kept on the way, where any sequence may part from this one, take an eighth of
what kinds that see everything take. So they are the rarer the larger they are."""


@dataclass(frozen=True, slots=True)
class Outline:
    """Which blocks rows have where: mere names, once these are given back."""

    rows: list[list[int]]
    """By kind."""
    ahead: list[dict[int, int]]
    """By kind and index, what is held beyond the row's end."""
    first: list[int]
    """By kind, the first block that was not given back."""

    def names(self) -> dict[int, int]:
        """Each block's kind, in the order of each kind."""
        kinds = enumerate(zip(self.rows, self.first, self.ahead, strict=True))
        return {
            block: number
            for number, (row, first, ahead) in kinds
            for block in (*row[first:], *ahead.values())
            if block != HOLE
        }

    def behind(self, num_blocks: int) -> set[int]:
        """Those behind so many."""
        ahead = (block for row in self.ahead for block in row.values())
        return {*ahead, *(block for row in self.rows for block in row[num_blocks:])} - {HOLE}

    def promised(self, kinds: Sequence[Kind], num_tokens: int, block_size: int, step: int) -> int:
        """Pages that are to come until `num_tokens` are computed, `step` at a time, at most at a
        time beyond what is here: in kinds that forget, whose rows grow as that goes on.
        """
        pages = 0
        for kind, row, first, ahead in zip(kinds, self.rows, self.first, self.ahead, strict=True):
            if kind.forgets:
                left = max(0, -(-num_tokens // block_size) - len(row) - len(ahead))
                most = kind.blocks_for(num_tokens, block_size, step)
                pages += kind.pages * min(left, max(0, most - (len(row) - first)))
        return pages


class Rows:
    """Owns one reference to each of its blocks, which it takes for `owner`."""

    def __init__(self, pool: BlockPool, block_size: int, owner: str) -> None:
        self._pool = pool
        self._block_size = block_size
        self._owner = owner
        self._kinds = pool.kinds
        self._is_whole = not any(kind.forgets for kind in pool.kinds) and len(pool.kinds) == 1
        self._spacing = _spacing(pool.kinds, block_size)
        self._empty()

    def _empty(self) -> None:
        self.rows: list[list[int]] = [[] for _ in self._kinds]
        """By kind. A list grows, and has its last block replaced; else it is replaced itself."""
        self._ahead: list[dict[int, int]] = [{} for _ in self._kinds]
        """By kind and index, what is held beyond the row's end."""
        self._first = [0 for _ in self._kinds]
        """By kind, the first block that was not given back."""

    @property
    def blocks(self) -> list[int]:
        """All of them, in the order of each kind."""
        if self._is_whole:
            return self.rows[0]
        rows = zip(self.rows, self._first, self._ahead, strict=True)
        all_of_them = (one for row, first, ahead in rows for one in (*row[first:], *ahead.values()))
        return [block for block in all_of_them if block != HOLE]

    @property
    def _here(self) -> Outline:
        return Outline(self.rows, self._ahead, self._first)

    def outline(self, num_computed: int) -> Outline:
        """What it has, but for what no layer sees any more behind so many tokens."""
        rows, first = [list(row) for row in self.rows], list(self._first)
        for number, row in enumerate(rows):
            behind = self._behind(number, num_computed)
            row[behind.start : behind.stop] = [HOLE] * len(behind)
            first[number] = max(first[number], behind.stop)
        return Outline(rows, [dict(ahead) for ahead in self._ahead], first)

    def resume(self, outline: Outline, blocks: Mapping[int, int]) -> None:
        """Take over the blocks that have these names now, with a reference each."""
        assert not self.blocks
        blocks = {**blocks, HOLE: HOLE}
        self.rows = [[blocks[name] for name in row] for row in outline.rows]
        self._ahead = [{i: blocks[name] for i, name in row.items()} for row in outline.ahead]
        self._first = list(outline.first)

    def admit(
        self,
        num_blocks: int,
        held: Sequence[list[int]],
        ahead: Sequence[range],
        filled: Sequence[Collection[int]] = (),
    ) -> None:
        """Take `num_blocks` of kinds that see everything; by kind `held` are the first ones.

        Of kinds that forget only those of the indices `ahead` that lie behind `held`. `held` may
        have holes, of which those at indices `filled` get blocks, too; its blocks come with a
        reference each, which are taken over.
        """
        assert not self.blocks
        for number, (kind, found) in enumerate(zip(self._kinds, held, strict=True)):
            row = list(found)
            holes = filled[number] if filled else ()
            for index, block in zip(holes, self._take(len(holes), number), strict=True):
                row[index] = block
            wanted = range(num_blocks) if not kind.forgets else ahead[number]
            indices = range(max(len(row), wanted.start), wanted.stop)
            new = self._take(len(indices), number)
            if kind.forgets:
                self._ahead[number] = dict(zip(indices, new, strict=True))
                self._first[number] = next((i for i, b in enumerate(row) if b != HOLE), len(row))
            else:
                row += new
            self.rows[number] = row

    def fork(self, other: Rows) -> None:
        """Share all blocks of `other`."""
        self._pool.acquire(other.blocks)
        self.rows = [list(row) for row in other.rows]
        self._ahead = [dict(ahead) for ahead in other._ahead]
        self._first = list(other._first)

    def missing(self, num_blocks: int) -> int:
        """Pages that it takes to hold so many blocks in each kind."""
        kinds = zip(self._kinds, self.rows, self._ahead, strict=True)
        return sum(
            kind.pages * max(0, num_blocks - len(row) - sum(one < num_blocks for one in ahead))
            for kind, row, ahead in kinds
        )

    def promised(self, num_tokens: int, step: int) -> int:
        """Pages that it may come to hold until `num_tokens` are computed, `step` at a time, beyond
        what it holds."""
        return self._here.promised(self._kinds, num_tokens, self._block_size, step)

    def first(self, wanted: Sequence[range]) -> list[list[int]]:
        """By kind, the wanted blocks behind holes."""
        return [
            [HOLE] * indices.start + [row[one] if one < len(row) else ahead[one] for one in indices]
            for indices, row, ahead in zip(wanted, self.rows, self._ahead, strict=True)
        ]

    def shared(self, index: int) -> Iterator[tuple[int, list[int]]]:
        """The kinds of which others hold block number `index`, too, with their rows."""
        for number, row in enumerate(self.rows):
            if index < len(row) and self._pool.references[row[index]] > 1:
                yield number, row

    def needed(self, index: int) -> int:
        """Pages that it takes to write to block number `index`, the last one or behind it."""
        if self._is_whole:  # asked of every sequence at every step
            row = self.rows[0]
            if index < len(row):
                return int(self._pool.references[row[index]] > 1)
            return index + 1 - len(row)
        copied = sum(self._kinds[number].pages for number, _ in self.shared(index))
        return copied + self.missing(index + 1)

    def copy_on_write(self, index: int) -> list[tuple[int, int]]:
        """Put blocks of its own in place of shared ones; returns (source, target) of each."""
        copies: list[tuple[int, int]] = []
        for number, row in list(self.shared(index)):
            source = row[index]
            (row[index],) = self._pool.allocate(1, self._owner, number)
            self._pool.release([source])
            copies.append((source, row[index]))
        return copies

    def grow(self, num_blocks: int) -> list[int]:
        """Hold so many blocks in each kind; returns those that it took."""
        taken: list[int] = []
        for number, (row, ahead) in enumerate(zip(self.rows, self._ahead, strict=True)):
            missing = max(0, num_blocks - len(row) - sum(index < num_blocks for index in ahead))
            new = self._pool.allocate(missing, self._owner, number)
            taken += new
            if not ahead:
                row += new
                continue
            others = iter(new)
            for index in range(len(row), num_blocks):
                row.append(ahead.pop(index) if index in ahead else next(others))
        return taken

    def shrink(self, num_blocks: int) -> list[int]:
        """Give back the blocks behind so many; returns them."""
        spare: list[int] = []
        for number, row in enumerate(self.rows):
            if len(row) > num_blocks:
                spare += row[num_blocks:]
                self.rows[number] = row[:num_blocks]
        self._pool.release(spare)
        return spare

    def forgettable(self, num_computed: int) -> list[int]:
        """What no layer of its kind sees any more behind `num_computed` tokens."""
        rows = enumerate(self.rows)
        blocks = (row[one] for number, row in rows for one in self._behind(number, num_computed))
        return [block for block in blocks if block != HOLE]

    def forget(self, num_computed: int, ends: Collection[tuple[int, int]]) -> None:
        """Give that back. What others would see who go on behind so many tokens as one of `ends`
        says, from the one number to the other, stays like any other block, and a window here and
        there; the rest is the first to go where memory is needed.
        """
        for number, row in enumerate(self.rows):
            behind = self._behind(number, num_computed)
            if behind:
                first = behind.start * self._block_size
                on_the_way = range(first - first % self._spacing, num_computed + 1, self._spacing)
                places = [*ends, *zip(on_the_way, on_the_way, strict=True)]
                kept = self.seen(number, places)
                held = [index for index in behind if row[index] != HOLE]
                for is_passed in (True, False):
                    blocks = [row[index] for index in held if (index not in kept) == is_passed]
                    self._pool.release(blocks, passed=is_passed)
                row[behind.start : behind.stop] = [HOLE] * len(behind)
                self._first[number] = behind.stop

    def keep_near(self, hashes: Sequence[bytes]) -> None:
        """What was passed near the end of full blocks with these hashes stays like any other."""
        end = len(hashes) * self._block_size
        for number, kind in enumerate(self._kinds):
            if kind.forgets:
                seen = self._seen(number, max(0, end - NEAR), end)
                passed = range(seen.start, min(seen.stop, self._first[number]))
                for index in passed:
                    self._pool.keep_passed(self._pool.find([hashes[index]], number))

    def seen(self, number: int, ends: Collection[tuple[int, int]]) -> set[int]:
        """Of a kind that forgets, what others need who go on behind one of the `ends`."""
        return {index for end in ends for index in self._seen(number, *end)}

    def release(self) -> None:
        """Give every block back."""
        self._pool.release(self.blocks)
        self._empty()

    def _seen(self, number: int, first: int, last: int) -> range:
        """The blocks of a kind that are seen behind `first ... last` tokens."""
        kind, size = self._kinds[number], self._block_size
        return range(kind.seen(first, size).start, kind.seen(last, size).stop)

    def _take(self, count: int, kind: int) -> list[int]:
        return self._pool.allocate(count, self._owner, kind)

    def _behind(self, number: int, num_computed: int) -> range:
        kind = self._kinds[number]
        if not kind.forgets:
            return range(0)
        end = min(kind.first_needed(num_computed) // self._block_size, len(self.rows[number]))
        return range(self._first[number], max(self._first[number], end))


def _spacing(kinds: Sequence[Kind], block_size: int) -> int:
    """Tokens from one window that is kept on the way to the next."""
    whole = sum(kind.pages for kind in kinds if not kind.forgets)
    # Windows alone are measured by themselves.
    own = sum(kind.pages * (kind.longest or 0) for kind in kinds)
    each = whole or sum(kind.pages for kind in kinds)
    return max(1, -(-_SHARE * own // (each * block_size))) * block_size


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

    def __init__(self, pool: BlockPool, host: BlockPool | None = None) -> None:
        self._pool = pool
        self._host = host

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
        if self._pool.find(key, kind):
            return True
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
