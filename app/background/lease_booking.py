"""Books the leases of KV blocks: what the engine counts goes into the usage of tenants, by day."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from app.limits.booking import Booking
from engine.api import EngineUnavailable
from engine.client import EngineClient
from tenants.errors import StoreUnavailable
from tenants.storage.generations import ANY
from tenants.usage.meter import UsageMeter

_SECONDS = 10.0


@dataclass(frozen=True)
class _Booked:
    """What of an owner's block-seconds is booked, since when the engine counts, and to whom."""

    since: float
    seconds: int
    generation: str


class LeaseBooking:
    """Books now and then what has been added since; an engine that is new counts from zero.

    The engine counts by owner's name: what was added while the owner was deleted and made again is
    nobody's.
    """

    def __init__(self, engine: EngineClient, booking: Booking, meter: UsageMeter) -> None:
        self._engine = engine
        self._booking = booking
        self._meter = meter
        self._booked: dict[str, _Booked] = {}

    async def run(self) -> None:
        """Book until cancelled."""
        while True:
            await asyncio.sleep(_SECONDS)
            with contextlib.suppress(EngineUnavailable):
                await self.book()

    async def book(self) -> None:
        """Book the block-seconds that leases have lasted until now. Raises `EngineUnavailable`."""
        tenants = (await self._engine.stats()).tenants
        leasing = [owner for owner, one in tenants.items() if int(one.lease_block_seconds)]
        generations = await self._generations(leasing)
        booked, self._booked = self._booked, {}
        for owner in leasing:
            one, generation = tenants[owner], generations.get(owner, ANY)
            known = booked.get(owner)
            if known is None or known.since != one.leases_since:
                before = 0
            elif ANY != known.generation != generation != ANY:
                before = int(one.lease_block_seconds)
            else:
                before, generation = known.seconds, generation or known.generation
            # It may fall by a little: a lease that has just ended counted until now before.
            seconds = max(before, int(one.lease_block_seconds))
            if seconds > before:
                self._booking.leased(owner, before, seconds, generation)
            self._booked[owner] = _Booked(one.leases_since, seconds, generation)

    async def _generations(self, owners: list[str]) -> dict[str, str]:
        try:
            return await self._meter.generations(owners) if owners else {}
        except StoreUnavailable:
            return {}
