"""Which replica holds which block, as far as their events have told."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Final

from app.cluster.routing.table import CompactTable

Holders = frozenset[int]


class HolderSets:
    """Each set once, under a number that stays its own while anything has it."""

    def __init__(self) -> None:
        self._sets: list[Holders] = []
        self._uses: list[int] = []
        self._numbers: dict[Holders, int] = {}
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, number: int) -> Holders:
        return self._sets[number]

    def take(self, holders: Holders) -> int:
        """The number of a set that one thing more has."""
        number = self._numbers.get(holders)
        if number is None:
            number = self._add(holders)
        self._uses[number] += 1
        return number

    def take_again(self, number: int, times: int) -> None:
        """So many things more have a set."""
        self._uses[number] += times

    def drop(self, number: int) -> None:
        """One thing less has it; the number of one that nothing has is given to another."""
        self._uses[number] -= 1
        if not self._uses[number]:
            del self._numbers[self._sets[number]]
            self._sets[number] = frozenset()
            self._free.append(number)

    def _add(self, holders: Holders) -> int:
        if self._free:
            number = self._free.pop()
            self._sets[number] = holders
        else:
            number = len(self._sets)
            self._sets.append(holders)
            self._uses.append(0)
        self._numbers[holders] = number
        return number


_KEY_BYTES: Final = 8
"""Of a hash: a look-up of what is not among 10^9 blocks finds one of them once in 10^10 times,
which costs a worse choice of a replica and nothing else."""
_HASHES_A_SWEEP: Final = 16
"""Of changes, that one bucket of the table is swept with: all, before it grows by a thirtieth."""


class PrefixIndex:
    """Block hashes to replicas. The hashes are keyed: a namespace finds its own blocks alone.

    A replica that is cleared starts a new life: what it held in former ones counts no more at once,
    and is swept out bucket by bucket with the changes that follow.
    """

    def __init__(self) -> None:
        self._table = CompactTable()
        """To numbers of sets of lives."""
        self._sets = HolderSets()
        self._lives: dict[int, int] = {}
        self._replicas: dict[int, int] = {}
        """By life; the lives that are over are not there."""
        self._alive: set[int] = set()
        self._num_lives = 0
        self._next_to_sweep = 0
        self._sweeps_to_do = 0

    def __len__(self) -> int:
        """Entries, a shared block once; those of former lives until they are swept out."""
        return len(self._table)

    def stored(self, replica: int, hashes: Sequence[bytes]) -> None:
        """The replica holds these blocks now; told twice is told once."""
        life = self._lives.get(replica)
        if life is None:
            life = self._begin(replica)
        alone = frozenset((life,))
        own = self._sets.take(alone)
        num_new = 0
        for block_hash in hashes:
            key = int.from_bytes(block_hash[:_KEY_BYTES])
            number = self._table.set_default(key, own)
            if number is None:
                num_new += 1
            elif life not in (holders := self._sets[number]):
                self._change(key, number, holders | alone)
        self._sets.take_again(own, num_new)
        self._sets.drop(own)
        self._sweep(len(hashes))

    def removed(self, replica: int, hashes: Sequence[bytes]) -> None:
        """The replica holds these blocks no more."""
        life = self._lives.get(replica)
        if life is None:
            return
        for block_hash in hashes:
            key = int.from_bytes(block_hash[:_KEY_BYTES])
            number = self._table.get(key)
            if number is not None and life in (holders := self._sets[number]):
                self._change(key, number, holders - {life})
        self._sweep(len(hashes))

    def cleared(self, replica: int) -> None:
        """The replica has lost everything, has left, or nothing is known of it any more."""
        life = self._lives.pop(replica, None)
        if life is not None:
            del self._replicas[life]
            self._alive.remove(life)
            is_under_way = self._next_to_sweep > 0  # it would miss what is behind it
            self._sweeps_to_do = 1 + is_under_way

    def depths(self, hashes: Sequence[bytes]) -> dict[int, int]:
        """Replicas, and how many leading blocks of this chain each of them holds, if any.

        Block by block, until nobody has the next: an inner block can be lost before the tail.
        """
        found: dict[int, int] = {}
        going: Set[int] = self._alive
        before = -1
        depth = 0
        for block_hash in hashes:
            number = self._table.get(int.from_bytes(block_hash[:_KEY_BYTES]))
            if number is None:
                break
            if number != before:  # most blocks of a chain are alike
                before = number
                still = self._sets[number] & going
                if depth:
                    found.update((self._replicas[life], depth) for life in going - still)
                going = still
                if not going:
                    return found
            depth += 1
        if depth:
            found.update((self._replicas[life], depth) for life in going)
        return found

    def _begin(self, replica: int) -> int:
        life = self._num_lives
        self._num_lives += 1
        self._lives[replica] = life
        self._replicas[life] = replica
        self._alive.add(life)
        return life

    def _change(self, key: int, number: int, holders: Holders) -> None:
        """Give an entry other holders, of which those that are no more are left out."""
        holders = holders & self._alive
        if holders:
            self._table.replace(key, self._sets.take(holders))
        else:
            self._table.remove(key)
        self._sets.drop(number)

    def _sweep(self, num_changes: int) -> None:
        """Take what former lives held out of some buckets.

        From the first to the last: what a split takes from one not yet swept becomes the last.
        """
        for _ in range(1 + num_changes // _HASHES_A_SWEEP):
            if not self._sweeps_to_do:
                return
            self._sweep_bucket(self._next_to_sweep)
            self._next_to_sweep += 1
            if self._next_to_sweep == self._table.num_buckets:
                self._next_to_sweep = 0
                self._sweeps_to_do -= 1

    def _sweep_bucket(self, bucket: int) -> None:
        alive = self._alive
        numbers = self._table.values_in(bucket)
        stale = {number for number in numbers if not self._sets[number] <= alive}
        if not stale:
            return
        for key, number in self._table.items_in(bucket):
            if number in stale:
                self._change(key, number, self._sets[number])
