"""Books the leases of KV blocks: what the engine counts goes into the usage of tenants, by day."""

from __future__ import annotations

import asyncio
import contextlib

from app.generate.booking import Booking
from engine.client import EngineClient, EngineUnavailable

_SECONDS = 10.0


class LeaseBooking:
    """Books now and then what has been added since; an engine that is new counts from zero."""

    def __init__(self, engine: EngineClient, booking: Booking) -> None:
        self._engine = engine
        self._booking = booking
        self._booked: dict[str, tuple[float, int]] = {}
        """Since when the engine counts for an owner, and what of that is booked."""

    async def run(self) -> None:
        """Book until cancelled."""
        while True:
            await asyncio.sleep(_SECONDS)
            with contextlib.suppress(EngineUnavailable):
                await self.book()

    async def book(self) -> None:
        """Book the block-seconds that leases have lasted until now. Raises `EngineUnavailable`."""
        tenants = (await self._engine.stats()).tenants
        booked, self._booked = self._booked, {}
        for owner, one in tenants.items():
            since, before = booked.get(owner, (one.leases_since, 0))
            if since != one.leases_since:
                before = 0
            # It may fall by a little: a lease that has just ended counted until now before.
            seconds = max(before, int(one.lease_block_seconds))
            if seconds > before:
                self._booking.leased(owner, before, seconds)
            self._booked[owner] = one.leases_since, seconds
