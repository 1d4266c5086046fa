"""The way of adapters and pictures to the replicas whose engines want them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from app.cluster.messages import Brought, Wanted
from engine.api import EngineError, EngineUnavailable
from engine.client import Source

_log = logging.getLogger(__name__)


class Customer(Protocol):
    """A replica."""

    async def bring(self, piece: Brought) -> bool:
        """See `app.cluster.door.link.Link.bring`."""
        ...


class Courier:
    """Brings them, each beside everything else, piece by piece as they are taken."""

    def __init__(self, source: Callable[[], Source]) -> None:
        """`source` tells where they are from, at any time."""
        self._source = source
        self._errands: set[asyncio.Task[None]] = set()

    def send(self, customer: Customer, wanted: Wanted) -> None:
        """Have one brought to a replica."""
        task = asyncio.create_task(self._run(customer, wanted))
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    async def close(self) -> None:
        """Bring nothing any more."""
        for task in self._errands:
            task.cancel()
        await asyncio.gather(*self._errands, return_exceptions=True)

    async def _run(self, customer: Customer, wanted: Wanted) -> None:
        errand = wanted.errand
        try:
            end = await self._bring(customer, wanted)
            await customer.bring(end)
        except EngineUnavailable:
            _log.info("errand %d to a replica that is lost", errand)

    async def _bring(self, customer: Customer, wanted: Wanted) -> Brought:
        """Returns what is to be brought last. Raises `EngineUnavailable` without the replica."""
        errand = wanted.errand
        pieces = aiter(self._source()(wanted.name))
        while True:
            try:
                data = await anext(pieces, None)
            except EngineError as error:
                return Brought(errand, error=str(error))
            except Exception:  # noqa: BLE001 - whatever a store raises
                _log.exception("what a replica wants cannot be read")
                return Brought(errand, error="it cannot be read")
            if data is None or not await customer.bring(Brought(errand, data)):
                return Brought(errand, is_last=True)
