"""Which computed block begins like the tokens that follow a cached prefix.

Full blocks are found by their hash, and only whole. Where a prompt leaves a cached chain in the
middle of a block, the tokens that it has in common with a block of that chain can still be copied:
what a radix tree with one-token pages shares (SGLang: Zheng et al., NeurIPS 2024), found here among
the children of the last block that hit. Siblings are kept in the order of their tokens, so that
the one with most in common is next to where the prompt's own tokens would be.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from engine.blocks.hashing import HASH_BYTES, KEY_BYTES

_TOKEN_BYTES = 4


class Place(NamedTuple):
    """Where a block stands: whom it follows, and what it holds.

    `chain` is the namespace key that the block is hashed under and its parent's hash: only who
    hashes the next block under the same key looks there.
    """

    chain: bytes
    tokens: bytes

    @property
    def namespace_key(self) -> bytes:
        """What the block is hashed under."""
        return self.chain[:KEY_BYTES]

    @property
    def parent_hash(self) -> bytes:
        """Of the block that it follows."""
        return self.chain[-HASH_BYTES:]


class PartialHit(NamedTuple):
    """A computed block whose first tokens are to be copied, and their number."""

    block: int
    num_tokens: int


def place(namespace_key: bytes, parent_hash: bytes, token_ids: Sequence[int]) -> Place:
    """The place of a block, or of the part of one, that holds `token_ids`."""
    return Place(namespace_key + parent_hash, array("I", token_ids).tobytes())


class PartialHits:
    """The places of findable blocks. A new one counts once `settle` says it is computed."""

    def __init__(self) -> None:
        self._siblings: dict[bytes, list[bytes]] = {}
        self._blocks: dict[Place, int] = {}
        self._places: dict[int, Place] = {}
        self._fresh: dict[int, Place] = {}

    def add(self, block: int, where: Place) -> None:
        """A block that the step being planned computes; no other block is there."""
        self._fresh[block] = where

    def settle(self) -> None:
        """Everything added so far has been computed."""
        for block, where in self._fresh.items():
            siblings = self._siblings.setdefault(where.chain, [])
            siblings.insert(bisect_left(siblings, where.tokens), where.tokens)
            self._blocks[where] = block
            self._places[block] = where
        self._fresh.clear()

    def drop(self, block: int) -> None:
        """The block can no longer be found. Unknown ones are fine."""
        self._fresh.pop(block, None)
        where = self._places.pop(block, None)
        if where is None:
            return
        del self._blocks[where]
        siblings = self._siblings[where.chain]
        del siblings[bisect_left(siblings, where.tokens)]
        if not siblings:
            del self._siblings[where.chain]

    def place_of(self, block: int) -> Place | None:
        """Where a findable block stands, if it was added with its place."""
        return self._places.get(block) or self._fresh.get(block)

    def is_followed(self, where: Place) -> bool:
        """Whether anything is known to stand there, whatever it holds."""
        return where.chain in self._siblings

    def longest(self, where: Place) -> PartialHit | None:
        """The block that has most leading tokens in common with `where`."""
        siblings = self._siblings.get(where.chain, [])
        index = bisect_left(siblings, where.tokens)
        best: PartialHit | None = None
        for tokens in siblings[max(0, index - 1) : index + 1]:
            common = _common_tokens(tokens, where.tokens)
            if common > (0 if best is None else best.num_tokens):
                best = PartialHit(self._blocks[Place(where.chain, tokens)], common)
        return best

    def check(self, findable: set[int]) -> None:
        """Verify the index, in which only `findable` blocks may be. Raises `AssertionError`."""
        assert self._places.keys() | self._fresh.keys() <= findable, "a forgotten block has a place"
        assert self._blocks == {where: block for block, where in self._places.items()}, "places"
        assert sum(map(len, self._siblings.values())) == len(self._places), "siblings"
        for chain, siblings in self._siblings.items():
            assert siblings, "a chain is kept for nothing"
            assert siblings == sorted(siblings), "siblings are out of order"
            assert all((chain, tokens) in self._blocks for tokens in siblings), "no such block"


def _common_tokens(one: bytes, other: bytes) -> int:
    shorter = min(len(one), len(other))
    for start in range(0, shorter, _TOKEN_BYTES):
        if one[start : start + _TOKEN_BYTES] != other[start : start + _TOKEN_BYTES]:
            return start // _TOKEN_BYTES
    return shorter // _TOKEN_BYTES
