"""Where blocks are found, what moves them, and what decides whether they move."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.block_pool import BlockPool
from engine.host_tier import HostTier
from engine.recovery import Recovery
from engine.transfers import TransferQueue


@dataclass(frozen=True, slots=True)
class Tiers:
    """The pool, and the host tier behind it, which takes what the pool evicts."""

    pool: BlockPool
    host: HostTier
    recovery: Recovery
    block_size: int
    transfers: TransferQueue = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "transfers", TransferQueue(self.pool, self.host))
        self.pool.on_evict = self._keep

    def _keep(self, block: int, block_hash: bytes, owner: str) -> None:
        """Move a block that the pool evicts to the host tier."""
        slot = self.host.keep(block_hash, owner)
        if slot is not None:
            self.transfers.swap_out(block, slot)
            self.host.release([slot])
