"""The blocks of adapters, which groups hold while they run."""

from __future__ import annotations

from engine.blocks.pool import BlockPool
from engine.sequences.group import SequenceGroup


class HeldAdapters:
    """Lets groups hold them."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self.lacking: dict[bytes, str] = {}
        """Names of adapters that groups could have begun with, were all of their blocks there, and
        whose groups these are."""

    def hold(self, group: SequenceGroup) -> bool:
        """Let a waiting group hold its adapter, if it has one. `False`: some of it is `lacking`."""
        blocks = [block for key in group.adapter for block in self._pool.find([key])]
        if len(blocks) < len(group.adapter):
            self.lacking[group.request.adapter_name] = group.tenant
            return False
        self._pool.acquire(blocks)
        group.beside = blocks
        return True

    def let_go(self, group: SequenceGroup) -> None:
        """Take it from a group that holds it, or does not."""
        self._pool.release(group.beside)
        group.beside = []
