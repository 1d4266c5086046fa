"""Who is told what becomes of a pool's blocks: what was lost, what to show."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from itertools import chain
from typing import Final

from engine.api import BlockFate, Loss
from engine.blocks.partial_hits import Place

_LOSSES_A_BLOCK: Final = 4
"""So many losses are remembered for each block of the pool."""


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
        self, block: int, block_hash: bytes | None, owner: str, why: Loss | None, kind: int
    ) -> None:
        """It cannot be found any more. `None`: it has held nothing."""

    def touched(self, blocks: Collection[int]) -> None:
        """More or fewer hold or lease these blocks than before, or they are another tenant's."""


class Losses:
    """What was evicted lately, when, and why, by its hash: so that a miss can be explained."""

    def __init__(self, num_blocks: int, clock: Callable[[], float]) -> None:
        self._most = _LOSSES_A_BLOCK * num_blocks
        self._clock = clock
        self._losses: OrderedDict[tuple[bytes, int], tuple[float, Loss]] = OrderedDict()

    def add(self, block_hash: bytes, why: Loss, kind: int = 0) -> None:
        """What is found by this hash is lost; whatever was lost by it before is forgotten."""
        self._losses.pop((block_hash, kind), None)
        self._losses[block_hash, kind] = self._clock(), why
        if len(self._losses) > self._most:
            self._losses.popitem(last=False)

    def fate(self, block_hash: bytes, kind: int = 0) -> BlockFate:
        """What is known of a block that is not there."""
        loss = self._losses.get((block_hash, kind))
        if loss is None:
            return BlockFate("unknown")
        when, why = loss
        return BlockFate("evicted", self._clock() - when, why)


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
        self, block: int, _block_hash: bytes | None, _owner: str, _why: Loss | None, _kind: int
    ) -> None:
        """See `Listener`."""
        self.touched((block,))

    def touched(self, blocks: Collection[int]) -> None:
        """See `Listener`."""
        if self.pages is not None:
            self.pages.update(chain.from_iterable(map(self._pages_of, blocks)))
