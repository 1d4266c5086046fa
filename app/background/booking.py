"""Books what no request does: leases of KV blocks, and what killed processes had counted."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass

import msgspec

from app.limits.booking import Booking
from engine.api import EngineUnavailable
from engine.client import EngineClient
from tenants.errors import StoreUnavailable
from tenants.storage.commits import ANY
from tenants.usage.meter import UsageMeter

_log = logging.getLogger(__name__)
_SECONDS = 10.0
"""Between two looks at what is to be booked."""


@dataclass(frozen=True)
class _Booked:
    """What of an owner's block-seconds is booked, since when the engine counts, and to whom."""

    since: float
    seconds: int
    generation: str


class LeaseBooking:
    """Books now and then what the engine has counted since, into the usage of tenants by day.

    An engine that is new counts from zero.

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


class LeftUsage:
    """Books the journals of killed processes: at the start, and then those of others who share the
    place.
    """

    def __init__(self, meter: UsageMeter) -> None:
        self._meter = meter

    async def run(self) -> None:
        """Book until cancelled."""
        while True:
            await self.book()
            await asyncio.sleep(_SECONDS)

    async def book(self) -> None:
        """Book all that is left. What Redis does not take now stays where it is."""
        for left in self._meter.left():
            try:
                await _book(left)
            except (OSError, msgspec.DecodeError) as error:
                _log.error("what a killed process had counted cannot be read: %s", error)
            finally:
                left.close()


async def _book(left: UsageMeter) -> None:
    running, booking = left.read_journal(), Booking(left)
    for slot in running:
        try:
            booking.left(slot)
        except msgspec.DecodeError as error:  # it waits for a version that can
            _log.error("what a killed request had used cannot be read: %s", error)
    if not left.has_all_in:
        _log.warning("booking what a killed process had counted; %d requests ran", len(running))
        await left.flush()
