"""What layers must remember of a sequence: the kinds of blocks that hold their keys and values.

Layers of a kind remember alike, and keep what they remember of a block's tokens together: in a
block of that kind, which takes some pages of the memory that all kinds share. A kind says which
tokens it still needs, and so what can be given back while a sequence runs, and what a hit needs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable
from typing import Final

import msgspec

_FAR: Final = 1 << 32
"""Tokens: no sequence has so many."""
_STATES: Final = 3
"""Of a sequence at a time: what a step reads and writes, and one that others are to go on from."""


class Kind(msgspec.Struct, frozen=True, omit_defaults=True):
    """Layers with attention to every token before, to a window of them, to a chunk, or to both; or
    with a state of fixed size, which every token overwrites.

    A block with a state holds it as it was behind the last token that was computed of the block's.
    """

    window: int | None = None
    """A token sees the last so many, itself included."""
    chunk: int | None = None
    """A token sees those of its own chunk alone: chunk c is tokens `c * chunk ... (c + 1) * chunk`.
    """
    pages: int = 1
    """What a block takes of the memory."""
    is_state: bool = False
    """Whether all that is kept is a state."""

    @property
    def longest(self) -> int | None:
        """Tokens that one may see, at most; `None`: all."""
        return min((one for one in (self.window, self.chunk) if one is not None), default=None)

    @property
    def forgets(self) -> bool:
        """Whether it comes to need tokens no more."""
        return self.is_state or self.window is not None or self.chunk is not None

    def first_needed(self, num_tokens: int) -> int:
        """The first token that those behind the first `num_tokens` may see; of a state the last of
        these, behind which it is.
        """
        if self.is_state:
            return max(0, num_tokens - 1)
        first = 0 if self.window is None else max(0, num_tokens - self.window + 1)
        return first if self.chunk is None else max(first, num_tokens - num_tokens % self.chunk)

    def seen(self, num_tokens: int, block_size: int) -> range:
        """The blocks of which the token behind the first `num_tokens` sees some, or is in."""
        return range(self.first_needed(num_tokens) // block_size, -(-num_tokens // block_size))

    def blocks_for(self, num_tokens: int, block_size: int, step: int = 0) -> int:
        """How many blocks a sequence holds at most while its last `step` of `num_tokens` tokens are
        computed, or have been: at the start of a step, what is behind is given back.
        """
        most = -(-num_tokens // block_size)
        if self.is_state:
            return min(most, _STATES)
        if self.longest is None:
            return most
        return min(most, (self.longest + step + block_size - 3) // block_size + 1)


EVERYTHING = Kind()
"""Of a model whose layers are all alike, and see all: a block is a page."""


def block_pages(kinds: Collection[Kind]) -> int:
    """Of a block of each kind: what its tokens take while all layers remember them. States, which
    few blocks have, are beside that, unless there is nothing else.
    """
    return sum(kind.pages for kind in kinds if not kind.is_state) or next_pages(kinds)


def next_pages(kinds: Iterable[Kind]) -> int:
    """What a sequence takes when it begins a block: one of each kind."""
    return sum(kind.pages for kind in kinds)


def most_pages(
    kinds: Iterable[Kind], block_size: int, shared: int, total: int, lines: int, step: int
) -> int:
    """What `lines` sequences of `total` tokens hold at most, which share the full blocks of their
    first `shared` tokens, while steps of so many tokens compute them.
    """
    common = shared // block_size
    blocks = common + lines * (-(-total // block_size) - common)
    return sum(
        kind.pages * min(blocks, lines * kind.blocks_for(total, block_size, step)) for kind in kinds
    )


def most_tokens(
    kinds: Collection[Kind], block_size: int, num_pages: int, shared: int, lines: int, step: int
) -> int:
    """The most tokens that such sequences may have in so many pages."""
    is_bounded = any(not kind.forgets for kind in kinds)
    totals = range(num_pages * block_size + 1 if is_bounded else _FAR)

    def needed(total: int) -> int:
        return most_pages(kinds, block_size, shared, total, lines, step)

    return bisect_right(totals, num_pages, key=needed) - 1
