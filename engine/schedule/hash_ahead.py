"""Prompts are hashed before anything is looked up: so many blocks a step that nobody waits long.

A prompt of 120,000 tokens is some ten milliseconds of hashing. Until a group is hashed it is not
admitted, and other tenants' groups go first.
"""

from __future__ import annotations

from engine.sequences.group import SequenceGroup

_MOST_BLOCKS = 2048
"""In one step, all groups together: one or two milliseconds."""
_LEAST_BLOCKS = 32
"""What a group may have beyond that, so that a short prompt does not wait for long ones."""
_SPARE_BLOCKS = 1024
"""For such groups together: there may be hundreds."""


class HashAllowance:
    """How many blocks may still be hashed in the step that is being planned."""

    def __init__(self) -> None:
        self._left = _MOST_BLOCKS
        self._spare = _SPARE_BLOCKS
        self.is_short = False
        """Whether some of a group was left for the next step."""

    def hash(self, group: SequenceGroup) -> bool:
        """Hash what a waiting group knows, but no more than half of what is left for all.

        Where that is little, a little of what is spared for short prompts. Returns whether nothing
        is left to hash of it.
        """
        half = self._left // 2
        if half >= _LEAST_BLOCKS:
            self._left -= group.hash_ahead(half)
        else:
            self._spare -= group.hash_ahead(min(_LEAST_BLOCKS, self._spare))
        is_hashed = group.num_unhashed == 0
        self.is_short |= not is_hashed
        return is_hashed
