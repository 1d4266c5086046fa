"""The slots of running streams and open sockets, renewed: whoever dies lets them lapse.

So are their reservations of budgets. Slots are counted in the store, for all replicas together.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tenants.limits.budgets import Budgets
from tenants.limits.limiter import Limiter

if TYPE_CHECKING:
    from app.limits.admission import Ticket

HEARTBEAT_SECONDS = 5.0


class StreamSlots:
    """The slots that this process holds, by the tickets of its requests."""

    def __init__(self, limiter: Limiter, budgets: Budgets) -> None:
        self._limiter = limiter
        self._budgets = budgets
        self.tickets: set[Ticket] = set()

    async def run(self) -> None:
        """Renew them until cancelled."""
        while True:
            await self._limiter.renew([one.admission for one in self.tickets])
            await self._budgets.renew([one.hold for one in self.tickets if one.hold is not None])
            await asyncio.sleep(HEARTBEAT_SECONDS)
