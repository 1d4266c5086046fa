"""Who is told what becomes of a pool's blocks: what was lost, what to route by, what to show."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from engine.api import BlockFate, Loss
from engine.blocks.partial_hits import Place

_LOSSES_A_BLOCK: Final = 4
"""So many losses are remembered for each block of the pool."""


class Listener:
    """Is told at once; this one wants to know of nothing."""

    def stored(
        self, block: int, block_hash: bytes | None, where: Place | None, parent: bytes | None
    ) -> None:
        """A block in use can be found that could not; a tail, which has no hash to be asked for, by
        its tokens alone.

        `where`, if it is known, says where it stands, and else the hash of its `parent`, which the
        first one has none of.
        """

    def lost(self, block: int, block_hash: bytes | None, owner: str, why: Loss | None) -> None:
        """It cannot be found any more. `None`: it has held nothing."""

    def touched(self, blocks: Collection[int]) -> None:
        """More or fewer hold or lease these blocks than before, or they are another tenant's."""


class Losses:
    """What was evicted lately, when, and why, by its hash: so that a miss can be explained."""

    def __init__(self, num_blocks: int, clock: Callable[[], float]) -> None:
        self._most = _LOSSES_A_BLOCK * num_blocks
        self._clock = clock
        self._losses: OrderedDict[bytes, tuple[float, Loss]] = OrderedDict()

    def add(self, block_hash: bytes, why: Loss) -> None:
        """What is found by this hash is lost; whatever was lost by it before is forgotten."""
        self._losses.pop(block_hash, None)
        self._losses[block_hash] = self._clock(), why
        if len(self._losses) > self._most:
            self._losses.popitem(last=False)

    def fate(self, block_hash: bytes) -> BlockFate:
        """What is known of a block that is not there."""
        loss = self._losses.get(block_hash)
        if loss is None:
            return BlockFate("unknown")
        when, why = loss
        return BlockFate("evicted", self._clock() - when, why)


class Change(NamedTuple):
    """A full block that can be found from now on, or not any more."""

    block_hash: bytes
    is_stored: bool
    parent: bytes | None = None
    """The hash of the stored block before it in its chain; `None`: it is the first."""


class Changes(Listener):
    """What has become findable and what no more, in order: for whoever routes by it."""

    def __init__(self) -> None:
        self._changes: list[Change] = []

    def stored(
        self, _block: int, block_hash: bytes | None, where: Place | None, parent: bytes | None
    ) -> None:
        """See `Listener`."""
        if block_hash is not None:
            parent = parent if where is None else where.parent_hash
            is_first = parent is None or not any(parent)
            self._changes.append(Change(block_hash, True, None if is_first else parent))

    def lost(self, _block: int, block_hash: bytes | None, _owner: str, _why: Loss | None) -> None:
        """See `Listener`."""
        if block_hash is not None:
            self._changes.append(Change(block_hash, False))

    def take(self) -> list[Change]:
        """What has changed since the last call."""
        changes, self._changes = self._changes, []
        return changes


class Marks(Listener):
    """The blocks whose books have changed since somebody took them from `blocks`."""

    def __init__(self) -> None:
        self.blocks: set[int] | None = None
        """`None`: nobody wants to know."""

    def stored(
        self, block: int, _block_hash: bytes | None, _where: Place | None, _parent: bytes | None
    ) -> None:
        """See `Listener`."""
        if self.blocks is not None:
            self.blocks.add(block)

    def lost(self, block: int, _block_hash: bytes | None, _owner: str, _why: Loss | None) -> None:
        """See `Listener`."""
        if self.blocks is not None:
            self.blocks.add(block)

    def touched(self, blocks: Collection[int]) -> None:
        """See `Listener`."""
        if self.blocks is not None:
            self.blocks.update(blocks)
