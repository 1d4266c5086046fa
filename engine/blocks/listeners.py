"""Who is told what becomes of a pool's blocks: what was lost, what to show."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from itertools import chain

from engine.api import Loss
from engine.blocks.partial_hits import Place


class Listener:
    """Is told at once; this one wants to know of nothing."""

    def stored(
        self,
        block: int,
        block_hash: bytes | None,
        where: Place | None,
        parent: bytes | None,
        kind: int,
    ) -> None:
        """A block of a kind, in use, can be found that could not; a tail, which has no hash to be
        asked for, by its tokens alone.

        `where`, if it is known, says where it stands, and else the hash of its `parent`, which the
        first one has none of.
        """

    def evicted(self, block: int) -> None:
        """It is about to be lost for its memory, though a hit might have needed it: its layers had
        not passed it. All is still known of it."""

    def lost(
        self, block: int, block_hash: bytes | None, owner: str, why: Loss | None, kind: int, by: str
    ) -> None:
        """It cannot be found any more. No `why`: it has held nothing. Its memory went to a request
        of `by`, if to anybody's, and its layers had not passed it."""

    def touched(self, blocks: Collection[int]) -> None:
        """More or fewer hold or lease these blocks than before, or they are another tenant's."""


class Marks(Listener):
    """The pages of blocks whose books have changed since somebody took them from `pages`."""

    def __init__(self, pages_of: Callable[[int], Iterable[int]]) -> None:
        """Of several pages each one is another cell."""
        self.pages: set[int] | None = None
        """`None`: nobody wants to know."""
        self._pages_of = pages_of

    def stored(
        self,
        block: int,
        _block_hash: bytes | None,
        _where: Place | None,
        _parent: bytes | None,
        _kind: int,
    ) -> None:
        """See `Listener`."""
        self.touched((block,))

    def lost(
        self,
        block: int,
        _block_hash: bytes | None,
        _owner: str,
        _why: Loss | None,
        _kind: int,
        _by: str,
    ) -> None:
        """See `Listener`."""
        self.touched((block,))

    def touched(self, blocks: Collection[int]) -> None:
        """See `Listener`."""
        if self.pages is not None:
            self.pages.update(chain.from_iterable(map(self._pages_of, blocks)))
