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
        self._booked: dict[str, int] = {}

    async def run(self) -> None:
        """Book until cancelled."""
        while True:
            await asyncio.sleep(_SECONDS)
            with contextlib.suppress(EngineUnavailable):
                await self.book()

    async def book(self) -> None:
        """Book the block-seconds that leases have lasted until now. Raises `EngineUnavailable`."""
        tenants = (await self._engine.stats()).tenants
        counted = {name: int(one.lease_block_seconds) for name, one in tenants.items()}
        for owner, seconds in counted.items():
            before = self._booked.get(owner, 0)
            self._booking.leased(owner, before if seconds >= before else 0, seconds)
        self._booked = counted
