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
    """Whether the service is going down, and who still has to finish: requests and sockets.

    A request counts from before it is checked, so that none falls between its check and its start.
    """

    def __init__(self) -> None:
        self._begun = False
        self._ended = False
        self._requests = 0
        self._sockets: set[Callable[[], None]] = set()
        self._fewer = asyncio.Event()

    @property
    def begun(self) -> bool:
        """Whether new work is refused."""
        return self._begun

    def check(self) -> None:
        """Raises `ApiError` 503 where new work is not taken any more."""
        if self._begun:
            raise shutting_down()

    @contextmanager
    def request(self) -> Iterator[None]:
        """While entered, a request is waited for. Raises `ApiError` 503 where it came too late."""
        self.check()
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1
            self._fewer.set()

    def check_start(self) -> None:
        """To be asked at the very start of what `request` let in: by now the time may be up.

        Raises `ApiError` 503.
        """
        if self._ended:
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
            self._fewer.set()

    def begin(self) -> None:
        """Refuse new work from now on, and ask every socket to leave."""
        self._begun = True
        for leave in list(self._sockets):
            leave()

    def end(self) -> None:
        """Start nothing any more, not even what was let in before."""
        self._ended = True

    async def finished(self) -> None:
        """Wait until every request is over and every socket has left."""
        while self._requests or self._sockets:
            self._fewer.clear()
            await self._fewer.wait()
