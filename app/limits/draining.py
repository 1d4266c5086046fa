"""Going down: the gate takes no new requests any more, and the sockets are asked to leave."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from app.limits.admission import Gate


class Draining:
    """Whether the service is going down, and who still has to finish: requests and sockets."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._sockets: set[Callable[[], None]] = set()
        self._fewer = asyncio.Event()

    @property
    def begun(self) -> bool:
        """Whether new work is refused."""
        return self._gate.is_shut

    @contextmanager
    def socket(self, leave: Callable[[], None]) -> Iterator[None]:
        """While entered, a socket is open; `leave` asks it to close after its responses' ends."""
        self._sockets.add(leave)
        if self.begun:
            leave()
        try:
            yield
        finally:
            self._sockets.remove(leave)
            self._fewer.set()

    def begin(self) -> None:
        """Refuse new work from now on, and ask every socket to leave."""
        self._gate.shut()
        for leave in list(self._sockets):
            leave()

    async def finished(self) -> None:
        """Wait until every request is over and every socket has left."""
        while self._sockets or not self._gate.is_empty:
            await self._gate.emptied()
            if self._sockets:
                self._fewer.clear()
                await self._fewer.wait()
