"""Room for what requests make a process hold: so much for all tenants, and a share for each."""

from __future__ import annotations

from collections import Counter
from typing import Final

SHARES: Final = 4
"""One tenant may fill such a part of a room."""


class SharedRoom:
    """Room for so many bytes, or whatever is counted."""

    def __init__(self, size: int, share: int | None = None) -> None:
        """A tenant's `share` is a quarter where nothing is said of it."""
        self._size = size
        self._share = size // SHARES if share is None else share
        self._held: Counter[str] = Counter()

    def take(self, tenant_id: str, count: int) -> bool:
        """Hold so much more, if there is room for it; whether there was."""
        held = self._held
        if held[tenant_id] + count > self._share or held.total() + count > self._size:
            return False
        held[tenant_id] += count
        return True

    def give_back(self, tenant_id: str, count: int) -> None:
        """Hold so much less."""
        self._held[tenant_id] -= count
        if not self._held[tenant_id]:
            del self._held[tenant_id]
