"""The blocks of one sequence by kind and index, as far as it holds them.

Rows of kinds that see everything are whole. Those of kinds that forget (`engine.api.kinds`) begin
with holes, where blocks were given back or have never been needed, and grow as the sequence is
computed; beyond their end it may hold blocks for others that are to go on from there. Those of
states have holes between blocks, too: where a step may pass without leaving its state.

A state cannot be cut back to where drafts prove wrong. So behind drafts states are left beside the
row, one where each block is full and one at their end. Those behind right drafts alone take their
places in it; what is right behind the last of them is computed again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from engine.api import Kind, next_pages
from engine.blocks.eviction.worth import Purpose
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
                held = len(row) - first - row[first:].count(HOLE)
                pages += kind.pages * min(left, max(0, most - held))
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
        self.most_again = block_size - 1 if any(kind.is_state for kind in pool.kinds) else 0
        """Tokens of right drafts that may have no state behind them."""
        self.ends: set[tuple[int, int]] = set()
        """Behind so many tokens, from the one number to the other, others are likely to go on."""
        self.stops: dict[int, Purpose] = {}
        """Behind which of them states, which are dear, are to be left, and what for."""
        self._empty()

    def _empty(self) -> None:
        self.rows: list[list[int]] = [[] for _ in self._kinds]
        """By kind. A list grows, and has its last block replaced; else it is replaced itself."""
        self._ahead: list[dict[int, int]] = [{} for _ in self._kinds]
        """By kind and index, what is held beyond the row's end."""
        self._first = [0 for _ in self._kinds]
        """By kind, the first block that was not given back."""
        self.beside: dict[int, int] = {}
        """States behind drafts, by the number of tokens up to there, fewest first."""

    @property
    def blocks(self) -> list[int]:
        """All of them, in the order of each kind."""
        if self._is_whole:
            return self.rows[0]
        rows = zip(self.rows, self._first, self._ahead, strict=True)
        all_of_them = (one for row, first, ahead in rows for one in (*row[first:], *ahead.values()))
        return [*(block for block in all_of_them if block != HOLE), *self.beside.values()]

    @property
    def _here(self) -> Outline:
        return Outline(self.rows, self._ahead, self._first)

    def outline(self, num_computed: int) -> Outline:
        """What it has, but for what no layer sees any more behind so many tokens."""
        assert not self.beside, "what is right of drafts is known"
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
        assert not other.beside, "what is right of drafts is known"
        self._pool.acquire(other.blocks)
        self.rows = [list(row) for row in other.rows]
        self._ahead = [dict(ahead) for ahead in other._ahead]
        self._first = list(other._first)
        self.ends, self.stops = set(other.ends), dict(other.stops)

    def missing(self, num_blocks: int) -> int:
        """Pages that it takes to hold so many blocks in each kind."""
        return sum(
            kind.pages * len(self._lacking(number, num_blocks))
            for number, kind in enumerate(self._kinds)
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
            if index < len(row) and row[index] != HOLE and self._pool.references[row[index]] > 1:
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
        numbers = range(len(self._kinds))
        return [block for number in numbers for block in self._grow(number, num_blocks)]

    def missing_for_drafts(self, num_tokens: int, count: int) -> int:
        """Pages that it takes to hold so many drafts behind `num_tokens`."""
        num_blocks = -(-(num_tokens + count) // self._block_size)
        marks = self._marks(num_tokens, count)
        return sum(
            kind.pages * len(marks if kind.is_state else self._lacking(number, num_blocks))
            for number, kind in enumerate(self._kinds)
        )

    def hold_drafts(self, num_tokens: int, count: int) -> list[int]:
        """Hold so many drafts behind `num_tokens`, the newest of which has its blocks; returns what
        it took.
        """
        taken: list[int] = []
        for number, kind in enumerate(self._kinds):
            if kind.is_state:
                marks = self._marks(num_tokens, count)
                new = self._take(len(marks), number)
                self.beside = dict(zip(marks, new, strict=True))
                taken += new
            else:
                taken += self._grow(number, -(-(num_tokens + count) // self._block_size))
        return taken

    def reached(self, start: int, end: int) -> int:
        """Of drafts behind `start` tokens those up to `end` are right: how far all layers have come
        with them.
        """
        if not self.beside:
            return end
        return max((mark for mark in self.beside if mark <= end), default=start)

    def settle(self, num_tokens: int) -> list[int]:
        """Put the states up to so many tokens into the row, in place of those before them, and give
        back these and those behind more; returns what it gave back.
        """
        spare: list[int] = []
        for mark, block in self.beside.items():
            if mark > num_tokens:
                spare.append(block)
                continue
            row, index = self.rows[-1], (mark - 1) // self._block_size
            row += [HOLE] * (index + 1 - len(row))
            spare += [row[index]] if row[index] != HOLE else []
            row[index] = block
        self.beside = {}
        self._pool.release(spare)
        return spare

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

    def forget(self, num_computed: int) -> None:
        """Give that back. What others would see who go on at one of the `ends` stays like any other
        block, and a window here and there; the rest is the first to go where memory is needed.
        """
        for number, row in enumerate(self.rows):
            behind = self._behind(number, num_computed)
            if behind:
                first = behind.start * self._block_size
                on_the_way = range(first - first % self._spacing, num_computed + 1, self._spacing)
                kept = self._wanted(number, zip(on_the_way, on_the_way, strict=True))
                held = [index for index in behind if row[index] != HOLE]
                for is_passed in (True, False):
                    blocks = [row[index] for index in held if (index not in kept) == is_passed]
                    self._pool.release(blocks, passed=is_passed)
                row[behind.start : behind.stop] = [HOLE] * len(behind)
                self._first[number] = behind.stop

    def keep_near(self, hashes: Sequence[bytes]) -> None:
        """What was passed near the end of full blocks with these hashes stays like any other."""
        for number, kind in enumerate(self._kinds):
            if kind.forgets:
                seen = self._seen(number, *self._near(number, len(hashes)))
                passed = range(seen.start, min(seen.stop, self._first[number]))
                for index in passed:
                    self._pool.keep_passed(self._pool.find([hashes[index]], number))

    def purpose(self, index: int) -> Purpose:
        """What a state of that index is left for."""
        ends = (one for one in self.stops if one // self._block_size == index + 1)
        return self.stops.get(next(ends, -1), Purpose.LAST)

    def left(self, number: int, num_blocks: int) -> set[int]:
        """Of a kind that forgets, what others need who go on as they are likely to, from so many
        full blocks.
        """
        return self._wanted(number, [self._near(number, num_blocks)])

    def release(self) -> None:
        """Give every block back."""
        self._pool.release(self.blocks)
        self._empty()

    def _wanted(self, number: int, others: Iterable[tuple[int, int]] = ()) -> set[int]:
        """Of a kind that forgets, what others need who go on as is likely, or behind `others`."""
        is_state = self._kinds[number].is_state
        ends = zip(self.stops, self.stops, strict=True) if is_state else self.ends
        return {index for end in (*ends, *others) for index in self._seen(number, *end)}

    def _seen(self, number: int, first: int, last: int) -> range:
        """The blocks of a kind that are seen behind `first ... last` tokens; or the state that is
        nearest to the last of them.
        """
        kind, size = self._kinds[number], self._block_size
        if kind.is_state:
            return range(max(0, last // size - 1), last // size)
        return range(kind.seen(first, size).start, kind.seen(last, size).stop)

    def _near(self, number: int, num_blocks: int) -> tuple[int, int]:
        """Where others are likely to part from so many full blocks, or to go on."""
        end = num_blocks * self._block_size
        return (end if self._kinds[number].is_state else max(0, end - NEAR)), end

    def _lacking(self, number: int, num_blocks: int) -> Collection[int]:
        """The indices of blocks that it takes to hold so many of a kind. Of states these are the
        last one, and those where others are likely to go on.
        """
        row, ahead = self.rows[number], self._ahead[number]
        indices: Collection[int] = range(len(row), num_blocks)
        if indices and self._kinds[number].is_state:
            wanted = self._wanted(number) | {num_blocks - 1}
            indices = sorted(wanted.intersection(indices))
        return [one for one in indices if one not in ahead] if ahead else indices

    def _grow(self, number: int, num_blocks: int) -> list[int]:
        """Hold so many blocks of a kind; returns those that it took."""
        row, ahead = self.rows[number], self._ahead[number]
        lacking = self._lacking(number, num_blocks)
        new = self._take(len(lacking), number)
        if len(new) == num_blocks - len(row):
            row += new
            return new
        others = dict(zip(lacking, new, strict=True))
        for index in range(len(row), num_blocks):
            row.append(ahead.pop(index) if index in ahead else others.get(index, HOLE))
        return new

    def _marks(self, num_tokens: int, count: int) -> list[int]:
        """Behind how many tokens states are left where so many are drafts: at each block's end, so
        that it can be found with its state, and at their own.
        """
        end = num_tokens + count
        first = num_tokens - num_tokens % self._block_size + self._block_size
        return [*range(first, end, self._block_size), end]

    def _take(self, count: int, kind: int) -> list[int]:
        return self._pool.allocate(count, self._owner, kind)

    def _behind(self, number: int, num_computed: int) -> range:
        kind, size = self._kinds[number], self._block_size
        if not kind.forgets:
            return range(0)
        end = min(kind.first_needed(num_computed) // size, len(self.rows[number]))
        if kind.is_state:  # that of its last full block is what its next turn goes on from
            end = min(end, num_computed // size - 1)
        return range(self._first[number], max(self._first[number], end))


def _spacing(kinds: Sequence[Kind], block_size: int) -> int:
    """Tokens from one window that is kept on the way to the next."""
    whole = sum(kind.pages for kind in kinds if not kind.forgets)
    # Windows alone are measured by themselves.
    own = sum(kind.pages * (block_size if kind.is_state else kind.longest or 0) for kind in kinds)
    each = whole or next_pages(kinds)
    return max(1, -(-_SHARE * own // (each * block_size))) * block_size
