"""The blocks of one sequence, in order, and their hashes."""

from __future__ import annotations

from collections.abc import Sequence

from engine.block_pool import BlockPool
from engine.hashing import extend_block_hashes
from engine.request import Namespaces


class BlockTable:
    """Maps the positions of a sequence to blocks: position p lives in `blocks[p // block_size]`.

    The table owns one reference to each of its blocks. Its owner calls `release` exactly once
    for every `admit`.
    """

    def __init__(
        self, pool: BlockPool, block_size: int, namespaces: Namespaces, extras: bytes, cache: bool
    ) -> None:
        self.blocks: list[int] = []
        self._pool = pool
        self._block_size = block_size
        self._namespaces = namespaces
        self._extras = extras
        self._cache = cache
        self._hashes: list[bytes] = []
        self._num_sealed = 0

    def blocks_for(self, num_tokens: int) -> int:
        """How many blocks `num_tokens` tokens fill."""
        return -(-num_tokens // self._block_size)

    def hits(self, token_ids: Sequence[int]) -> list[int]:
        """The cached blocks that a sequence of `token_ids` could start with.

        The last token is never taken from the cache: its logits have to be computed.
        """
        if not self._cache:
            return []
        extend_block_hashes(
            self._hashes, token_ids, self._block_size, self._namespaces, self._extras
        )
        return self._pool.find(self._hashes[: (len(token_ids) - 1) // self._block_size])

    def can_admit(self, num_tokens: int, hits: Sequence[int], headroom: int) -> bool:
        """Whether `num_tokens` fit beside `headroom` blocks that others will need."""
        missing = self.blocks_for(num_tokens) - len(hits)
        return self._pool.can_allocate(missing + headroom, hits)

    def admit(self, num_tokens: int, hits: Sequence[int]) -> None:
        """Take the blocks for `num_tokens` tokens: `hits` first, new ones behind."""
        assert not self.blocks
        self._pool.acquire(hits)
        missing = self.blocks_for(num_tokens) - len(hits)
        self.blocks = [*hits, *self._pool.allocate(missing)]
        self._num_sealed = len(hits)

    def can_grow(self, num_tokens: int) -> bool:
        """Whether the table can be extended to hold `num_tokens` tokens."""
        return self._pool.can_allocate(self.blocks_for(num_tokens) - len(self.blocks))

    def grow(self, num_tokens: int) -> None:
        """Extend the table to hold `num_tokens` tokens."""
        self.blocks += self._pool.allocate(self.blocks_for(num_tokens) - len(self.blocks))

    def seal(self, token_ids: Sequence[int], num_computed: int) -> None:
        """Make the blocks that `num_computed` tokens fill findable for others."""
        full = num_computed // self._block_size
        if not self._cache or full <= self._num_sealed:
            return
        if len(self._hashes) < full:
            extend_block_hashes(
                self._hashes, token_ids, self._block_size, self._namespaces, self._extras
            )
        for index in range(self._num_sealed, full):
            self._pool.register(self.blocks[index], self._hashes[index])
        self._num_sealed = full

    def release(self) -> None:
        """Give every block back."""
        self._pool.release(self.blocks)
        self.blocks = []
        self._num_sealed = 0
