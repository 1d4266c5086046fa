"""A peer that sends no more, and may still read; and one that is not read any more, and sends.

Who has said all (`shutdown(SHUT_WR)`) and who has left (`close`) look alike: only what is written
to them tells, and that by failing, once their system has refused an earlier write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.types import Scope

PROBE_EXTENSION = "partywall.probe"
PROCESSING = b"HTTP/1.1 102 Processing\r\n\r\n"
"""What any client of HTTP/1.1 passes over before an answer (RFC 9110, section 15.2)."""
_FIRST_SECONDS = 0.1
_LAST_SECONDS = 2.0

Probe = Callable[[], None]


class Probing:
    """Calls `probe` now, and again and again, at first soon, until it is stopped."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._seconds = _FIRST_SECONDS
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._tick()

    def stop(self) -> None:
        """Call it no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        self._timer = self._loop.call_later(self._seconds, self._tick)
        self._seconds = min(2 * self._seconds, _LAST_SECONDS)
        self._probe()


def probe_with(scope: Scope, probe: Probe) -> None:
    """Have `probe` write something within an answer that its reader passes over."""
    extension = scope.get("extensions", {}).get(PROBE_EXTENSION)
    if extension is not None:
        extension["with"](probe)


class Outlet:
    """A connection as the answer to one request writes to it; how it is closed is not its own."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.close = close
