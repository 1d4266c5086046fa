"""Going down: from a certain moment no new work is taken, and the sockets are asked to leave."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from app.wire.errors import ApiError

_RETRY_AFTER_SECONDS = 5


def shutting_down() -> ApiError:
    """What new work is told, here; another replica, or this one after its restart, will take it."""
    return ApiError(
        503,
        "The service is shutting down.",
        code="shutting_down",
        headers={"retry-after": str(_RETRY_AFTER_SECONDS)},
    )


class Draining:
    """Whether the service is going down, and which sockets still have to leave."""

    def __init__(self) -> None:
        self._begun = False
        self._sockets: set[Callable[[], None]] = set()
        self._all_left = asyncio.Event()

    @property
    def begun(self) -> bool:
        """Whether new work is refused."""
        return self._begun

    def check(self) -> None:
        """Raises `ApiError` 503 where new work is not taken any more."""
        if self._begun:
            raise shutting_down()

    @contextmanager
    def socket(self, leave: Callable[[], None]) -> Iterator[None]:
        """While entered, a socket is open; `leave` asks it to close after its responses' ends."""
        self._sockets.add(leave)
        if self._begun:
            leave()
        try:
            yield
        finally:
            self._sockets.remove(leave)
            if not self._sockets:
                self._all_left.set()

    def begin(self) -> None:
        """Refuse new work from now on, and ask every socket to leave."""
        self._begun = True
        for leave in list(self._sockets):
            leave()

    async def left(self) -> None:
        """Wait until every socket has left."""
        while self._sockets:
            self._all_left.clear()
            await self._all_left.wait()
