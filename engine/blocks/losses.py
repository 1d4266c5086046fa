"""What was evicted lately, when, and why: so that a miss can be explained."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from engine.api import BlockFate, Loss

_LOSSES_A_BLOCK: Final = 4
"""So many losses are remembered for each block of the pool."""


class Losses:
    """The last losses, by the hash of what was lost."""

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
