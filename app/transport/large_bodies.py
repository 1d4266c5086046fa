"""Bodies that are larger than others, and take longer: whoever reads them bounds them by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from starlette.requests import ClientDisconnect, Request

from app.wire.errors import ApiError, invalid_request

LARGE_EXTENSION = "partywall.large"
_SILENCE_SECONDS = 60.0
_ALL_SECONDS = 3600.0


class LargeBody:
    """Whether the body of one request may be so; `on_allowed` is told once it may."""

    def __init__(self, on_allowed: Callable[[], None]) -> None:
        self._on_allowed = on_allowed
        self.is_allowed = False

    def allow(self) -> None:
        """From now on neither bytes nor time of it are bounded."""
        self.is_allowed = True
        self._on_allowed()


async def large_body(request: Request, most_seconds: float = _ALL_SECONDS) -> AsyncIterator[bytes]:
    """A body as it comes, however large: so long at most, and no minute of it without a byte.

    Raises `ApiError` 400 where it ends early, and 408.
    """
    extension = request.scope.get("extensions", {}).get(LARGE_EXTENSION)
    if extension is not None:
        extension["body"].allow()
    pieces = request.stream()
    ends = asyncio.get_running_loop().time() + most_seconds
    while True:
        try:
            async with asyncio.timeout_at(ends), asyncio.timeout(_SILENCE_SECONDS):
                piece = await anext(pieces, None)
        except TimeoutError:
            message = "The request did not arrive in time."
            raise ApiError(408, message, code="request_timeout") from None
        except ClientDisconnect:
            raise invalid_request("The body has not come as a whole.") from None
        if piece is None:
            return
        yield piece
