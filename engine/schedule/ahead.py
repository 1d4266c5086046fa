"""What is done for a prompt before it is admitted, a slice a step: nobody else waits long for it.

A prompt of 120,000 tokens is some ten milliseconds of hashing, before anything is looked up. Until
a group is hashed it is not admitted, and other tenants' groups go first. To empty a cached block
takes some microseconds of books, twice as many where its contents go to the host: 20 to 50 ms for
the 7,500 blocks of such a prompt.
"""

from __future__ import annotations

from engine.blocks.tiers import Tiers
from engine.schedule.admission import Admission
from engine.sequences.group import SequenceGroup

_MOST_HASHED = 2048
"""Blocks in one step, all groups together: one or two milliseconds."""
_LEAST_HASHED = 32
"""What a group may have beyond that, so that a short prompt does not wait for long ones."""
_SPARE_HASHED = 1024
"""For such groups together: there may be hundreds."""
_MOST_EMPTIED = 512
"""Blocks in one step: one to four milliseconds."""


class HashAllowance:
    """How many blocks may still be hashed in the step that is being planned."""

    def __init__(self) -> None:
        self._left = _MOST_HASHED
        self._spare = _SPARE_HASHED
        self.is_short = False
        """Whether some of a group was left for the next step."""

    def hash(self, group: SequenceGroup) -> bool:
        """Hash what a waiting group knows, but no more than half of what is left for all.

        Where that is little, a little of what is spared for short prompts. Returns whether nothing
        is left to hash of it.
        """
        half = self._left // 2
        if half >= _LEAST_HASHED:
            self._left -= group.hash_ahead(half)
        else:
            self._spare -= group.hash_ahead(min(_LEAST_HASHED, self._spare))
        is_hashed = group.num_unhashed == 0
        self.is_short |= not is_hashed
        return is_hashed


class EmptyAllowance:
    """How many blocks may still be emptied in the step that is being planned."""

    def __init__(self, tiers: Tiers) -> None:
        self._tiers = tiers
        self._left = _MOST_EMPTIED

    def make(self, admission: Admission) -> bool:
        """Empty some blocks for a group that fits; whether so few are missing that it can start.

        What it starts from stays where it is.
        """
        pool, host = self._tiers.pool, self._tiers.host
        if admission.num_new - pool.num_free <= _MOST_EMPTIED:
            return True
        if self._left:
            pool.acquire(admission.held)
            host.acquire(admission.slots)
            pool.empty(self._left, admission.group.tenant)
            host.release(admission.slots)
            pool.release(admission.held)
            self._left = 0
        return False
