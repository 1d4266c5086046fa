"""Where blocks are found, and what moves them between here and there."""

from __future__ import annotations

from engine.blocks.host_tier import HostTier
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
        if host.num_slots:
            pool.on_evict = self._keep

    def _keep(self, block: int, block_hash: bytes, owner: str) -> None:
        """Move a block that the pool evicts to the host tier."""
        slot = self.host.keep(block_hash, owner)
        if slot is not None:
            self.transfers.swap_out(block, slot)
            self.host.release([slot])
