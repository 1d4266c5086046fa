"""Bodies of HTTP requests: bounded while they come, and read as the message that they are to be.

They and a socket's messages come before their requests are admitted, which they have to be read
for. So how many bytes of them this process holds is bounded here, as a tenant may send many at
once, or let many stand short of their ends.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request

from app.shares import SHARES, SharedRoom
from app.transport.bounds import INLINE_BYTES, Bounds
from app.transport.http import body_too_large
from app.wire.bounded_json import decode_json
from app.wire.common import EffortWish, Model, parse
from app.wire.errors import ApiError, retry_after
from app.workers import Workers
from tenants.records import Principal


class Bodies:
    """Reads messages; `unheeded` names the field of a wish to reason that nothing comes of."""

    def __init__(
        self,
        bounds: Bounds,
        intake: Intake,
        workers: Workers,
        unheeded: Callable[[EffortWish], list[str]],
    ) -> None:
        self._bounds = bounds
        self._intake = intake
        self._workers = workers
        self._unheeded = unheeded

    async def read(self, request: Request, model: type[Model], principal: Principal) -> Model:
        """The request's JSON body; the answer will name its fields that nothing comes of.

        Raises `ApiError` 400, 413, 415 or 429.
        """
        require_json(request)
        tenant_id = principal.tenant.id
        ignores = self._bounds.ignores_unknown(principal.tenant)
        with self._intake.body(tenant_id) as incoming:
            body = await read_body(request, self._bounds.max_body_bytes, incoming.grow)

            def work() -> tuple[Model, list[str]]:
                message = parse(model, decode_json(body), ignores_unknown=ignores)
                return message, message.ignored_fields

            short = len(body) <= INLINE_BYTES
            message, ignored = work() if short else await self._workers.run(tenant_id, work)
            request.state.ignored = [*ignored, *self._unheeded(message.effort_wish)]
            return message


def require_json(request: Request) -> None:
    """Raises `ApiError` 415 for a body that says it is anything but JSON, as it is."""
    require_plain(request)
    if content_type(request) != "application/json":
        raise ApiError(415, "Send JSON (application/json).", code="unsupported_media_type")


def content_type(request: Request) -> str:
    """What the body says it is, in small letters; JSON where it does not."""
    given = request.headers.get("content-type", "application/json")
    return given.partition(";")[0].strip().lower()


def require_plain(request: Request) -> None:
    """Raises `ApiError` 415 for a body that is not sent as it is."""
    for coding in ",".join(request.headers.getlist("content-encoding")).split(","):
        if coding.strip().lower() not in ("", "identity"):
            message = f"Send the body as it is, not with Content-Encoding '{coding.strip()}'."
            # What would do (RFC 9110, section 15.5.16).
            headers = {"accept-encoding": "identity"}
            raise ApiError(415, message, code="unsupported_media_type", headers=headers)


async def read_body(
    request: Request, max_body_bytes: int, grow: Callable[[int], None] | None = None
) -> bytes:
    """The request's body; `grow` is told of every piece, and may raise.

    Raises `ApiError` 413, before anything is read where it can be told then.
    """
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > max_body_bytes:
        raise body_too_large(max_body_bytes)
    body = bytearray()
    async for piece in request.stream():
        if len(body) + len(piece) > max_body_bytes:
            raise body_too_large(max_body_bytes)
        if grow is not None:
            grow(len(piece))
        body += piece
    return bytes(body)


class Intake(SharedRoom):
    """The room for bodies and messages; a short one always finds some."""

    def __init__(self, bounds: Bounds) -> None:
        # A socket's message counts twice while it is handed on: as it came, and as it is read.
        sent = bounds.max_body_bytes, 2 * bounds.max_message_bytes, bounds.max_image_bytes
        least = max(sent)
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
