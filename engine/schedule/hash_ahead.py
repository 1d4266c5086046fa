"""Prompts are hashed before anything is looked up: so many blocks a step that nobody waits long.

A prompt of 120,000 tokens is some ten milliseconds of hashing. Until a group is hashed it is not
admitted, and other tenants' groups go first.
"""

from __future__ import annotations

from engine.schedule.group import SequenceGroup

_MOST_BLOCKS = 2048
"""In one step, all groups together: one or two milliseconds."""
_LEAST_BLOCKS = 32
"""What a group may always have, so that a short prompt never waits for long ones."""


class HashAllowance:
    """How many blocks may still be hashed in the step that is being planned."""

    def __init__(self) -> None:
        self._left = _MOST_BLOCKS
        self.is_short = False
        """Whether some of a group was left for the next step."""

    def hash(self, group: SequenceGroup) -> bool:
        """Hash what a waiting group knows, but no more than half of what is left for all.

        Returns whether nothing is left to hash of it.
        """
        hashed = group.hash_ahead(max(self._left // 2, _LEAST_BLOCKS))
        self._left = max(0, self._left - hashed)
        is_hashed = group.num_unhashed == 0
        self.is_short |= not is_hashed
        return is_hashed
