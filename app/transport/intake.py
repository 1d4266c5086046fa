"""Bodies and messages that are on their way: how many bytes of them this process holds.

They come before their requests are admitted, which they have to be read and parsed for. So a
tenant that sends many at once, or lets many stand short of their ends, is bounded here.
"""

from __future__ import annotations

from app.shares import SHARES, SharedRoom
from app.transport.bounds import INLINE_BYTES, Bounds
from app.wire.errors import ApiError
from app.wire.retry_after import retry_after


class Intake(SharedRoom):
    """The room for bodies and messages; a short one always finds some."""

    def __init__(self, bounds: Bounds) -> None:
        # A socket's message counts twice while it is handed on: as it came, and as it is read.
        least = max(bounds.max_body_bytes, 2 * bounds.max_message_bytes)
        size = max(bounds.max_incoming_bytes, least)
        super().__init__(size, max(size // SHARES, least))

    def body(self, tenant_id: str) -> IncomingBody:
        """A body of the tenant's that begins, or a socket for its messages.

        It is a context, to be left once nothing of it is held any more.
        """
        return IncomingBody(self, tenant_id)


class IncomingBody:
    """One body, as far as it has come; or one socket's messages."""

    def __init__(self, intake: Intake, tenant_id: str) -> None:
        self._intake = intake
        self._tenant_id = tenant_id
        self._num_bytes = 0
        self._taken = 0

    def __enter__(self) -> IncomingBody:
        return self

    def __exit__(self, *_: object) -> None:
        self.hold(0)

    def grow(self, num_bytes: int) -> None:
        """So many bytes have come. Raises `ApiError` 429 where there is no room for them."""
        self.hold(self._num_bytes + num_bytes)

    def hold(self, num_bytes: int) -> None:
        """Now it is so many bytes in all. Raises `ApiError` 429 where there is no room for more."""
        self._num_bytes = num_bytes
        counted = num_bytes if num_bytes > INLINE_BYTES else 0
        if counted > self._taken and not self._intake.take(self._tenant_id, counted - self._taken):
            raise ApiError(
                429,
                "Too many long requests are being sent at once.",
                code="queue_full",
                # What is left of the body is not read.
                headers=retry_after() | {"connection": "close"},
            )
        if counted < self._taken:
            self._intake.give_back(self._tenant_id, self._taken - counted)
        self._taken = counted
