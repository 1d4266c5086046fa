"""Which replica holds which block, as far as their events have told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_SHARDS: Final = 1024
"""A dict of them all would stall the loop for seconds when it grows, or when a replica leaves."""
_KEY_BYTES: Final = 7
"""Of a hash: two of 10^9 blocks share them once in 10^8 look-ups, which costs a worse choice of a
replica and nothing else. An integer of seven bytes takes the place of one of four."""
_MOST_INTERNED: Final = 65_536

Holders = frozenset[int]


class PrefixIndex:
    """Block hashes to replicas. The hashes are keyed: a namespace finds its own blocks alone.

    A replica that is cleared starts a new life: what it held in former ones counts no more at once,
    and is swept out shard by shard with the changes that follow.
    """

    def __init__(self) -> None:
        self._shards: list[dict[int, Holders]] = [{} for _ in range(_SHARDS)]
        self._lives: dict[int, int] = {}
        self._replicas: dict[int, int] = {}
        """By life; the lives that are over are not there."""
        self._alive: set[int] = set()
        self._num_lives = 0
        self._interned: dict[Holders, Holders] = {}
        self._left_to_sweep = 0

    def __len__(self) -> int:
        """Entries, a shared block once; those of former lives until they are swept out."""
        return sum(map(len, self._shards))

    def stored(self, replica: int, hashes: Sequence[bytes]) -> None:
        """The replica holds these blocks now; told twice is told once."""
        if replica not in self._lives:
            self._begin(replica)
        own = self._intern(frozenset((self._lives[replica],)))
        for block_hash in hashes:
            key = int.from_bytes(block_hash[:_KEY_BYTES])
            shard = self._shards[key % _SHARDS]
            holders = shard.setdefault(key, own)
            if holders is not own and not own <= holders:
                shard[key] = self._intern((holders & self._alive) | own)
        self._sweep()

    def removed(self, replica: int, hashes: Sequence[bytes]) -> None:
        """The replica holds these blocks no more."""
        own = {self._lives.get(replica, -1)}
        for block_hash in hashes:
            key = int.from_bytes(block_hash[:_KEY_BYTES])
            shard = self._shards[key % _SHARDS]
            holders = shard.get(key)
            if holders is not None and own <= holders:
                self._put(shard, key, holders - own)
        self._sweep()

    def cleared(self, replica: int) -> None:
        """The replica has lost everything, has left, or nothing is known of it any more."""
        life = self._lives.pop(replica, None)
        if life is not None:
            del self._replicas[life]
            self._alive.remove(life)
            self._left_to_sweep = _SHARDS

    def depths(self, hashes: Sequence[bytes]) -> dict[int, int]:
        """Replicas, and how many leading blocks of this chain each of them holds, if any.

        Block by block, until nobody has the next: an inner block can be lost before the tail.
        """
        found: dict[int, int] = {}
        going: Holders | None = None
        before: Holders | None = None
        depth = 0
        for block_hash in hashes:
            key = int.from_bytes(block_hash[:_KEY_BYTES])
            holders = self._shards[key % _SHARDS].get(key, frozenset())
            if holders is not before:  # equal ones are the same: most blocks of a chain are alike
                before = holders
                still = holders & self._alive if going is None else holders & going
                for life in going - still if going is not None else ():
                    found[self._replicas[life]] = depth
                going = still
                if not going:
                    break
            depth += 1
        found.update((self._replicas[life], depth) for life in going or ())
        return found

    def _begin(self, replica: int) -> None:
        self._lives[replica] = self._num_lives
        self._replicas[self._num_lives] = replica
        self._alive.add(self._num_lives)
        self._num_lives += 1

    def _intern(self, holders: Holders) -> Holders:
        if len(self._interned) > _MOST_INTERNED:
            self._interned.clear()
        return self._interned.setdefault(holders, holders)

    def _put(self, shard: dict[int, Holders], key: int, holders: Holders) -> None:
        holders = holders & self._alive
        if holders:
            shard[key] = self._intern(holders)
        else:
            del shard[key]

    def _sweep(self) -> None:
        """Take one shard's share of what former lives held out of it."""
        if not self._left_to_sweep:
            return
        self._left_to_sweep -= 1
        shard = self._shards[self._left_to_sweep]
        for key in [key for key, holders in shard.items() if not holders <= self._alive]:
            self._put(shard, key, shard[key])
