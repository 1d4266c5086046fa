"""Places for which tenants wait in turn: who has much waiting waits for itself."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Generic, TypeVar

_Item = TypeVar("_Item")


class Turns(Generic[_Item]):
    """Gives places to what waits for them: each tenant's in its order, tenants in turn."""

    def __init__(self, places: int, most_of_one: int) -> None:
        """No tenant has more than `most_of_one` of the places at a time."""
        self._places = places
        self._most_of_one = most_of_one
        self._taken: Counter[str] = Counter()
        self._waiting: dict[str, deque[_Item]] = {}
        """By tenant, the one whose turn it is first."""

    def add(self, tenant: str, item: _Item) -> None:
        """Have it wait for a place."""
        self._waiting.setdefault(tenant, deque()).append(item)

    def take(self, may: Callable[[str], bool] = lambda _: True) -> tuple[str, _Item] | None:
        """What has a place now, until `end`, and whose it is; `None`: nothing has, or waits, of
        tenants that `may`.
        """
        if self._taken.total() >= self._places:
            return None
        for tenant, queue in self._waiting.items():
            if self._taken[tenant] < self._most_of_one and may(tenant):
                del self._waiting[tenant]
                self._taken[tenant] += 1
                item = queue.popleft()
                if queue:
                    self._waiting[tenant] = queue  # behind the others
                return tenant, item
        return None

    def end(self, tenant: str) -> None:
        """One of its places is free again."""
        self._taken -= Counter((tenant,))
