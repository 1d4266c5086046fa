"""The blocks of one sequence, in order, and their hashes."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from heapq import merge
from typing import Final

from engine.api import AdapterUse, Namespaces, PictureUse
from engine.blocks.eviction.leases import LeaseTerms
from engine.blocks.eviction.worth import Purpose
from engine.blocks.hashing import (
    Extras,
    block_key,
    extend_block_hashes,
    extras_for,
    parent_hash,
    tail_hash,
)
from engine.blocks.partial_hits import Place, place
from engine.blocks.pool import BlockPool
from engine.blocks.rows import HOLE, NEAR, Outline, Rows

_FAR: Final = 1 << 62
"""No sequence is so long."""


class BlockTable:
    """Maps the positions of a sequence to blocks: position p lives in `row[p // block_size]` of the
    row of each kind.

    The table owns one reference to each of its blocks, which it takes for `owner`. Whoever has it
    calls `release` exactly once for every `admit` and for every `fork`.
    """

    def __init__(
        self,
        pool: BlockPool,
        block_size: int,
        owner: str,
        namespaces: Namespaces,
        extras: bytes,
        up_to: int | None = None,
        rotary_switch: int | None = None,
        terms: LeaseTerms | None = None,
        ends: tuple[int, ...] = (),
        adapter: AdapterUse | None = None,
        pictures: tuple[PictureUse, ...] = (),
    ) -> None:
        """`extras` are what KV always depends on besides tokens; it differs behind `rotary_switch`
        tokens, if that is given, where an `adapter` acts, and where `pictures` are shown. Others
        are said to go on behind the `ends`.
        """
        self.held = Rows(pool, block_size, owner)
        """All blocks, by kind."""
        self.up_to = sys.maxsize if up_to is None else up_to
        """How many leading tokens are looked up, and left findable."""
        self.pool = pool
        self._block_size = block_size
        self._owner = owner
        self._namespaces = namespaces
        self._extras = extras
        self._rotary_switch = rotary_switch
        self._adapter = adapter
        self._pictures = pictures
        self.extras = self._extras_for(0)
        """What its KV depends on besides tokens."""
        self._terms = terms
        self._hashes: list[bytes] = []
        self.num_sealed = 0
        """How many blocks are findable, or will be once others have computed them."""
        self._tail: bytes | None = None
        """The hash of the tokens behind the last sealed block, if they are left findable."""
        self._said_ends = ends
        prompts = namespaces.shared_tokens, min(self.up_to, _FAR)
        self.held.stops = dict.fromkeys(ends, Purpose.SAID) | dict.fromkeys(prompts, Purpose.PROMPT)
        self.held.ends = set(zip(self.held.stops, self.held.stops, strict=True))

    @property
    def rows(self) -> list[list[int]]:
        """The blocks by kind, with holes where there are none any more."""
        return self.held.rows

    @property
    def blocks(self) -> list[int]:
        """Those of the first kind."""
        return self.held.rows[0]

    def begin(self, num_tokens: int) -> None:
        """A sequence of `num_tokens` is to be computed from its first token, with its own factors.

        Hashes of what it was with others are forgotten. Near the end of what is known now others
        may part from it.
        """
        self.held.ends.add((max(0, num_tokens - NEAR), num_tokens))
        if not self._said_ends:
            self.held.stops.setdefault(num_tokens - 1, Purpose.ASKED)
        assert not self.held.blocks
        if self.has_outgrown(num_tokens):
            self.extras = self._extras_for(num_tokens)
            self._hashes = []

    def has_outgrown(self, num_tokens: int) -> bool:
        """Whether `num_tokens` are so many that none of the sequence's KV counts any more."""
        if self._rotary_switch is None:
            return False  # asked of every sequence at every step
        return self._extras_for(num_tokens) != self.extras

    def num_kept(self, num_tokens: int) -> int:
        """How many of the first `num_tokens` are looked up, and left findable."""
        return min(num_tokens, self.up_to)

    def keeps(self, num_tokens: int) -> bool:
        """Whether all of the first `num_tokens` are."""
        return num_tokens <= self.up_to

    def missing(self, num_tokens: int) -> int:
        """How many pages it takes to hold `num_tokens` tokens."""
        return self.held.missing(-(-num_tokens // self._block_size))

    def num_unhashed(self, token_ids: Sequence[int]) -> int:
        """How many full blocks of `token_ids` are still to be hashed before any is looked up."""
        return max(0, self.num_kept(len(token_ids)) // self._block_size - len(self._hashes))

    def hash_ahead(self, token_ids: Sequence[int], most: int) -> int:
        """Hash up to `most` more full blocks of `token_ids`; returns how many."""
        count = min(self.num_unhashed(token_ids), most)
        if count:
            self._extend_hashes(token_ids, count)
        return count

    def share_hashes(self, other: BlockTable, num_tokens: int) -> None:
        """Take over what `other` has hashed: both begin with the same `num_tokens` tokens."""
        count = num_tokens // self._block_size
        if self.extras == other.extras and len(self._hashes) < count:
            self._hashes = other._hashes[:count]

    def prefix_hashes(self, token_ids: Sequence[int]) -> list[bytes]:
        """The hashes of the blocks that a sequence of `token_ids` could start with.

        The last token is never taken from the cache: its logits have to be computed.
        """
        self._extend_hashes(token_ids)
        return self._hashes[: self.num_kept(len(token_ids) - 1) // self._block_size]

    def next_place(self, token_ids: Sequence[int], num_blocks: int) -> Place | None:
        """Where a block stands that continues `num_blocks`, which have hit, with the next of
        `token_ids`, if there are any. As with `prefix_hashes`, the last token is never
        among them.
        """
        if self.num_kept(len(token_ids) - 1) <= num_blocks * self._block_size:
            return None
        self._extend_hashes(token_ids)
        known = token_ids[: self.num_kept(len(token_ids) - 1)]
        return self._place(known, num_blocks)

    def admit(
        self,
        num_tokens: int,
        held: Sequence[list[int]],
        ahead: Sequence[range] = (),
        filled: Sequence[Collection[int]] = (),
        parts_behind: Collection[int] = (),
    ) -> None:
        """Take the blocks for `num_tokens` tokens; see `Rows.admit`. Whoever computes them seals
        them. Others of the same prompt are likely to go on where `held` ends.

        Others are known to have gone on otherwise behind each of so many blocks that they have in
        common: it `parts_behind` these. Where nobody has gone on it is a turn that has ended there,
        whose next one this is: the state behind that has served its time.
        """
        num_held = min(map(len, held))
        self.held.admit(-(-num_tokens // self._block_size), held, ahead, filled)
        self.num_sealed = min(num_held, num_tokens // self._block_size)
        ends = {count * self._block_size for count in (num_held, *parts_behind)}
        if parts_behind:
            self.held.stops = dict.fromkeys(ends, Purpose.PARTING) | self.held.stops
        self.held.ends.update(zip(ends, ends, strict=True))

    def resume(self, outline: Outline, blocks: Mapping[int, int], num_sealed: int) -> None:
        """Take over `blocks`, by their names, with a reference each, in place of those given back
        before.
        """
        self.held.resume(outline, blocks)
        self.num_sealed = num_sealed

    def restore(self, index: int, token_ids: Sequence[int], owner: str, kind: int = 0) -> None:
        """Block number `index` holds again what it was sealed with, computed for `owner`."""
        self.num_sealed = max(self.num_sealed, index + 1)
        block = self.rows[kind][index]
        is_kept = self.keeps((index + 1) * self._block_size)
        if is_kept and self.pool.hashes[block] is None:
            self._extend_hashes(token_ids)
            where = None if kind else self._place(token_ids, index)
            purpose = self.held.purpose(index)
            self.pool.register(block, self._hashes[index], where, owner, kind=kind, purpose=purpose)

    @property
    def next_hash(self) -> bytes | None:
        """The hash of the block that is sealed next, if it is known."""
        is_known = self.num_sealed < len(self._hashes)
        return self._hashes[self.num_sealed] if is_known else None

    def fork(self) -> BlockTable:
        """Another table of the same blocks."""
        fork = BlockTable(
            self.pool,
            self._block_size,
            self._owner,
            self._namespaces,
            self._extras,
            self.up_to,
            self._rotary_switch,
            self._terms,
            self._said_ends,
            self._adapter,
            self._pictures,
        )
        fork.held.fork(self.held)
        fork.extras = self.extras
        fork._hashes = list(self._hashes)
        fork.num_sealed = self.num_sealed
        fork._tail = self._tail
        return fork

    def needed(self, num_tokens: int) -> int:
        """How many pages it takes to write the newest of `num_tokens` tokens."""
        return self.held.needed((num_tokens - 1) // self._block_size)

    def writes_shared(self, num_tokens: int) -> bool:
        """Whether the newest of `num_tokens` tokens belongs into a block that others hold, too."""
        return any(self.held.shared((num_tokens - 1) // self._block_size))

    def copy_on_write(self, num_tokens: int) -> list[tuple[int, int]]:
        """Put new blocks in place of shared ones that the newest token belongs into.

        Returns (source, target) of each: the contents are to be copied before anything is written.
        The last holder of a source must not give it back before that.
        """
        return self.held.copy_on_write((num_tokens - 1) // self._block_size)

    def grow(self, num_tokens: int) -> list[int]:
        """Extend the table to hold `num_tokens` tokens; returns the blocks that it took."""
        return self.held.grow(-(-num_tokens // self._block_size))

    def shrink(self, num_tokens: int) -> list[int]:
        """Give back the blocks behind those that hold `num_tokens` tokens; returns them."""
        return self.held.shrink(-(-num_tokens // self._block_size))

    def forget(self, num_computed: int) -> None:
        """Give back what no layer sees any more behind so many tokens: `Rows.forgettable`."""
        self.held.forget(num_computed)

    def seal(self, token_ids: Sequence[int], num_computed: int) -> None:
        """Make the blocks that `num_computed` tokens fill findable for others.

        So the last of them that may be found is, where it ends within a block.
        """
        if num_computed >= self.up_to and self._tail is None:
            self.leave_tail(token_ids, num_computed)
        full = self.num_kept(num_computed) // self._block_size
        if full <= self.num_sealed:
            return
        if len(self._hashes) < full:
            self._extend_hashes(token_ids)
        for number, row in enumerate(self.rows):
            for index in range(self.num_sealed, full):
                if row[index] != HOLE:
                    where = None if number else self._place(token_ids, index)
                    purpose = self.held.purpose(index) if number else Purpose.LAST
                    self.pool.register(
                        row[index], self._hashes[index], where, kind=number, purpose=purpose
                    )
        self.num_sealed = full

    def leave_tail(self, token_ids: Sequence[int], num_computed: int) -> None:
        """Leave the last tokens that may be found for others, where they end within a block.

        Who continues them copies these tokens of that block, too. At the end of a sequence that is
        over, the block must be nobody else's, who may come to fill it.
        """
        num_kept = self.num_kept(num_computed)
        index, count = divmod(num_kept, self._block_size)
        if any(kind.is_state for kind in self.pool.kinds):
            return  # theirs is that behind the newest token, which is overwritten
        blocks = [row[index] for row in self.rows] if count else []
        is_shared = num_kept < self.up_to and any(self.held.shared(index))
        if not count or is_shared or HOLE in blocks:
            return
        computed = token_ids[:num_kept]
        self._extend_hashes(computed)
        self._tail = tail_hash(
            self._hashes, computed, self._block_size, self._namespaces, self.extras
        )
        where = self._place(computed, index)
        for number, block in enumerate(blocks):
            if self.pool.hashes[block] is None:
                self.pool.register(block, self._tail, where, is_tail=True, kind=number)

    def findable(self) -> list[int]:
        """The blocks by which everything sealed so far is found: its own, or equal ones.

        Where an equal block was evicted since, this table's own takes its place.
        """
        blocks: list[int] = []
        hashes = self._hashes[: self.num_sealed]
        for number, row in enumerate(self.rows):
            for index, (own, block_hash) in enumerate(zip(row, hashes, strict=False)):
                if own != HOLE:
                    if not self.pool.find([block_hash], number):
                        parent = hashes[index - 1] if index else None
                        self.pool.register(own, block_hash, parent=parent, kind=number)
                    blocks += self.pool.find([block_hash], number)
        return blocks

    def release(self) -> None:
        """Give every block back; what others find is leased, or its lease renewed.

        So is what it has given back before that they would need.
        """
        self.held.keep_near(self.sealed_hashes())
        if self._terms is not None:
            # Where a tenant may lease no more, what of its end one kind has is of no use alone.
            kinds = map(self._left, range(len(self.rows)))
            self.pool.lease((named for _, named in merge(*kinds)), self._terms)
        self.held.release()
        self.num_sealed = 0
        self._tail = None

    def sealed_hashes(self) -> list[bytes]:
        """The hashes of the full blocks that are left findable."""
        num_tokens = self.num_kept(self.num_sealed * self._block_size)
        return self._hashes[: num_tokens // self._block_size]

    def known_hashes(self, most: int) -> list[bytes]:
        """Those of the first full blocks, held or not, that may be found and are hashed."""
        return self._hashes[: min(most, self.up_to // self._block_size)]

    def _left(self, number: int) -> Iterator[tuple[int, tuple[bytes, int]]]:
        """The indices of the blocks of a kind that it leaves, and by what others find them."""
        hashes, needed = self.sealed_hashes(), set[int]()
        if self.pool.kinds[number].forgets:
            needed = self.held.left(number, len(hashes))
        for index, (block, block_hash) in enumerate(zip(self.rows[number], hashes, strict=False)):
            if block != HOLE or index in needed:
                yield index, (block_hash, number)
        if self._tail is not None:
            yield len(hashes), (self._tail, number)

    def _extras_for(self, num_tokens: int) -> Extras:
        return extras_for(
            self._extras, self._rotary_switch, num_tokens, self._adapter, self._pictures
        )

    def _place(self, token_ids: Sequence[int], index: int) -> Place:
        """The place of block number `index`, as far as `token_ids` fill it."""
        start = index * self._block_size
        # The extras are in every parent's hash, but the first block has no parent.
        extras = self.extras.of(index, self._block_size)
        return place(
            block_key(self._namespaces, index, self._block_size) + extras,
            parent_hash(self._hashes, index),
            token_ids[start : start + self._block_size],
        )

    def _extend_hashes(self, token_ids: Sequence[int], most: int | None = None) -> None:
        left = self.num_kept(len(token_ids)) // self._block_size - len(self._hashes)
        left = left if most is None else min(left, most)
        if left > 0:
            extend_block_hashes(
                self._hashes, token_ids, self._block_size, self._namespaces, self.extras, left
            )
