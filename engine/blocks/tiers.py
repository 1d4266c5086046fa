"""Where blocks are found, and what moves them between here and there."""

from __future__ import annotations

from collections.abc import Iterable

from engine.api import BlockFate, Loss
from engine.blocks.host_tier import HostTier
from engine.blocks.losses import Losses
from engine.blocks.pool import BlockPool
from engine.blocks.transfers import TransferQueue


class Tiers:
    """The pool, and the host tier behind it, which takes what the pool evicts."""

    def __init__(self, pool: BlockPool, host: HostTier, block_size: int) -> None:
        self.pool = pool
        self.host = host
        self.block_size = block_size
        self.transfers = TransferQueue(pool, host)
        self.incoming: list[int] = []
        """Blocks that are held while they, or what continues them, are read from disk."""
        self._losses = Losses(pool.num_blocks, pool.clock)
        pool.on_loss = self._lose

    def fates(self, hashes: Iterable[bytes]) -> list[BlockFate]:
        """Of each block: whether it can be found, or else what is known of its loss."""
        return [
            BlockFate("present")
            if self.pool.find([one]) or self.host.find([one])
            else self._losses.fate(one)
            for one in hashes
        ]

    def _lose(self, block: int, block_hash: bytes, owner: str, why: Loss) -> None:
        """Note what the pool loses; what it evicts moves to the host tier."""
        self._losses.add(block_hash, why)
        if why == "deleted" or not self.host.num_slots:
            return
        slot = self.host.keep(block_hash, owner)
        if slot is not None:
            self.transfers.swap_out(block, slot)
            self.host.release([slot])
