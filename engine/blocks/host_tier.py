"""The host tier: blocks in host memory, behind the pool, by the same rules as in the pool.

A *slot* holds one block. Cached blocks move here when the pool evicts them and stay findable by
their hash; swapped requests leave their blocks here until they come back. So a slot, like a block,
is free, held or cached, has an owner, and is evicted least recently used first: the books are those
of a second `BlockPool`. The tier counts; the copies are the step's transfers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from engine.blocks.pool import BlockPool


class HostTier:
    """`num_slots` slots; none at all if there is no host memory for them."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._slots = BlockPool(num_slots, "lru")

    @property
    def books(self) -> BlockPool:
        """The books of the slots, to be read."""
        return self._slots

    @property
    def num_used(self) -> int:
        """Slots that hold a block."""
        return self._slots.num_in_use + self._slots.num_cached

    @property
    def num_held(self) -> int:
        """Slots of swapped requests and of transfers under way, which nobody can evict."""
        return self._slots.num_in_use

    def find(self, hashes: Iterable[bytes]) -> list[int]:
        """The slots of the longest prefix of `hashes` that is here."""
        return self._slots.find(hashes)

    def hash_of(self, slot: int) -> bytes | None:
        """The hash by which the slot is found."""
        return self._slots.hash_of(slot)

    def owner_of(self, slot: int) -> str:
        """The tenant that had the slot's block computed."""
        return self._slots.owner_of(slot)

    def can_take(self, count: int, present: Sequence[int] = ()) -> bool:
        """Whether `count` slots can be taken beside holding the slots `present`."""
        return self._slots.can_allocate(count, "", present)

    def take(self, owner: str, block_hash: bytes | None = None) -> int:
        """A slot for a block of `owner`, to be held until `release`; evicts a cached one.

        With `block_hash`, which is not here yet, the slot can be found by others.
        """
        assert block_hash is None or not self.find([block_hash]), "the block is here already"
        (slot,) = self._slots.allocate(1, owner)
        if block_hash is not None:
            self._slots.register(slot, block_hash)
        return slot

    def keep(self, block_hash: bytes, owner: str) -> int | None:
        """The slot, held, that a block which the pool evicts is to be copied to.

        `None` if it is here already, which makes it the most recently used one, or if every slot
        is held.
        """
        present = self.find([block_hash])
        if present:
            self.hold(present)
            self.release(present)
            return None
        return self.take(owner, block_hash) if self.can_take(1) else None

    def hold(self, slots: Iterable[int]) -> None:
        """Let no one evict `slots`, which have been found or are held."""
        self._slots.acquire(slots)

    def release(self, slots: Sequence[int]) -> None:
        """Undo one `hold` or `take` of each slot. What can be found stays until evicted."""
        self._slots.release(slots)

    def forget(self, slots: Iterable[int]) -> None:
        """Let nobody find `slots` any more: what they hold is not to be trusted."""
        self._slots.forget(slots)

    def forget_owner(self, owner: str) -> None:
        """Let nobody find a tenant's blocks any more; its swapped requests keep theirs."""
        self._slots.forget_owner(owner)

    def check(self) -> None:
        """Verify every invariant in O(slots). Raises `InvariantError`."""
        self._slots.check()

    def check_some(self, first: int, end: int) -> None:
        """See `BlockPool.check_some`."""
        self._slots.check_some(first, end)

    def references(self) -> list[int]:
        """How many hold each slot."""
        return self._slots.references()
