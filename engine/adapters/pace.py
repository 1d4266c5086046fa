"""Which adapters are brought now: few at a time, fewer of one tenant, and each tenant's at a pace.

To read, decrypt, check and copy one takes a processor for some hundredths of a second, which other
tenants' requests lack: a flood of adapters would cost them more than one of requests.
"""

from __future__ import annotations

from typing import Final

from engine.adapters.adapter import Adapter
from engine.schedule.lifecycle import Lifecycle
from engine.system.turns import Turns

_MOST_COMING: Final = 8
"""Adapters on their way into blocks at a time."""
_MOST_OF_TENANT: Final = 4
"""Of these, where nobody else has requests; else it is one."""
_REST: Final = 4.0
"""A tenant's next one waits so many times as long as its last one took where others have."""


class Pace:
    """Gives adapters their turns."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self.coming: dict[bytes, Adapter] = {}
        """Those that have one, by their names."""
        self._live = lifecycle.live
        self._clock = lifecycle.tiers.clock
        self._turns: Turns[Adapter] = Turns(_MOST_COMING, _MOST_OF_TENANT)
        self._rested: dict[str, float] = {}
        """When tenants will have."""

    def add(self, one: Adapter) -> None:
        """Have one wait for its turn."""
        self._turns.add(one.tenant, one)

    def begin(self) -> None:
        """Have those come whose turn it is."""
        while (turn := self._turns.take(self._may_come)) is not None:
            _, one = turn
            self.coming[one.name], one.began_at = one, self._clock()

    def end(self, one: Adapter) -> None:
        """It is there, or does not come; harmless if its turn had not come."""
        if self.coming.pop(one.name, None) is not None:
            self._turns.end(one.tenant)
            now = self._clock()
            self._rested = {name: at for name, at in self._rested.items() if at > now}
            self._rested[one.tenant] = now + _REST * (now - one.began_at)

    def _may_come(self, tenant: str) -> bool:
        if all(group.tenant == tenant for group in self._live.values()):
            return True
        has_one = any(one.tenant == tenant for one in self.coming.values())
        return not has_one and self._clock() >= self._rested.get(tenant, 0.0)
