"""What was seen of pictures that nobody shows now, among the keys of the block pool.

It lies in some blocks of the first kind, which are found by hashes of the picture's name, belong to
the tenant that showed it, and are evicted together: by what it is worth beside keys, the seconds
that it took to be seen over those of computing as many pages of keys, as often as it was used
(`engine.blocks.eviction.wholes`).
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

from engine.blocks.hashing import HASH_BYTES
from engine.disk.memory import BlockMemory
from engine.pictures.sight import Layout, Sight
from engine.schedule.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class _Stored:
    """Where to find it, unless it was evicted."""

    hashes: list[bytes]
    layout: Layout
    seconds: float
    """That it took to be seen."""


class StoredPictures:
    """Those of all tenants."""

    def __init__(self, scheduler: Scheduler, sight: Sight, memory: BlockMemory) -> None:
        self._scheduler = scheduler
        self._pool = scheduler.pool
        self._sight = sight
        self._memory = memory
        self._stored: dict[bytes, _Stored] = {}
        """By the names of pictures; of some the blocks are there no more."""

    def store(self, name: bytes, tenant: str, seconds: float) -> None:
        """Keep what it took so long to see of a tenant's picture, unless it is there, or there is
        no room for it beside what runs.
        """
        if name in self:
            return
        layout = self._sight.lay_out(name)
        size = self._pool.kinds[0].pages
        count = -(-layout.num_bytes // (size * self._memory.page_bytes))
        life = self._scheduler.lifecycle
        spare = life.headroom(life.running.values())
        if not self._pool.can_allocate(count * size + spare, tenant):
            return
        self._forget_evicted()
        blocks = self._pool.allocate(count, tenant)
        life.transfers.move_evicted(self._memory.move)
        landing = self._memory.landing(list(map(self._pool.pages_of, blocks)))
        self._sight.write(name, landing.targets)
        landing.land()
        stored = self._stored[name] = _Stored(
            [_hash(name, number) for number in range(count)], layout, seconds
        )
        for block, key in zip(blocks, stored.hashes, strict=True):
            self._pool.register(block, key, is_tail=True)
            self._scheduler.tiers.fresh.discard(block)  # it is there
        self._pool.join(blocks, self._worth(count * size, seconds))
        self._pool.release(blocks)

    def _worth(self, num_pages: int, seconds: float) -> float:
        """Of a use, for a page: its seconds over those of computing as many pages of keys."""
        life = self._scheduler.lifecycle
        computed = life.recovery.costs.token_seconds * life.block_size
        return seconds / (num_pages / self._pool.block_pages * computed)

    def __contains__(self, name: bytes) -> bool:
        return name in self._stored and self._found(self._stored[name]) is not None

    def restore(self, name: bytes) -> tuple[int, float]:
        """Let the model have what was seen of one that is there; returns its bytes, and the seconds
        that it took.
        """
        stored = self._stored[name]
        blocks = self._found(stored)
        assert blocks is not None, "it is there"
        self._pool.acquire(blocks)
        pages = [page for block in blocks for page in self._pool.pages_of(block)]
        num_bytes = self._sight.read(name, stored.layout, pages)
        self._pool.release(blocks)
        return num_bytes, stored.seconds

    def _found(self, stored: _Stored) -> list[int] | None:
        blocks = [block for key in stored.hashes for block in self._pool.find([key])]
        return blocks if len(blocks) == len(stored.hashes) else None

    def _forget_evicted(self) -> None:
        for name in [name for name in self._stored if name not in self]:
            del self._stored[name]


def _hash(name: bytes, number: int) -> bytes:
    """By which a block of what was seen of a picture is found."""
    return blake2b(
        name + number.to_bytes(4, "little"), digest_size=HASH_BYTES, person=b"picture"
    ).digest()
