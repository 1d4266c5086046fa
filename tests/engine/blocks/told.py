"""Who remembers what a pool tells."""

from engine.api import Loss
from engine.blocks.listeners import Listener


class Told(Listener):
    """Full blocks that were evicted or deleted, their hashes and owners, and why."""

    def __init__(self) -> None:
        self.losses: list[tuple[int, bytes, str, Loss]] = []

    def lost(
        self,
        block: int,
        block_hash: bytes | None,
        owner: str,
        why: Loss | None,
        _kind: int,
        _by: str,
    ) -> None:
        if block_hash is not None and why is not None:
            self.losses.append((block, block_hash, owner, why))
