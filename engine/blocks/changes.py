"""What has become findable on the device, and what no more: for whoever routes by it."""

from __future__ import annotations

from typing import NamedTuple


class Change(NamedTuple):
    """A full block that can be found from now on, or not any more."""

    block_hash: bytes
    is_stored: bool
    parent: bytes | None = None
    """The hash of the stored block before it in its chain; `None`: it is the first."""


class Changes:
    """The pool's changes in their order, since they were last taken."""

    def __init__(self) -> None:
        self._changes: list[Change] = []

    def store(self, block_hash: bytes, parent: bytes | None) -> None:
        """A block can be found that could not; the `parent` of a first one is none, or zeros."""
        is_first = parent is None or not any(parent)
        self._changes.append(Change(block_hash, True, None if is_first else parent))

    def remove(self, block_hash: bytes) -> None:
        """A block cannot be found any more."""
        self._changes.append(Change(block_hash, False))

    def take(self) -> list[Change]:
        """What has changed since the last call."""
        changes, self._changes = self._changes, []
        return changes
