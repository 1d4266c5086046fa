"""Books what processes had counted that were killed, from the journals that they have left."""

from __future__ import annotations

import asyncio
import logging

import msgspec

from app.limits.booking import Booking
from tenants.usage.meter import UsageMeter

_log = logging.getLogger(__name__)
_SECONDS = 10.0


class LeftUsage:
    """Looks for them at the start, and then for those of others who share the place."""

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
