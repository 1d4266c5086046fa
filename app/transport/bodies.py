"""Bodies of HTTP requests: bounded while they come, and read as the message that they are to be."""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request

from app.transport.bounds import INLINE_BYTES, Bounds
from app.transport.http import body_too_large
from app.transport.intake import Intake
from app.wire.bounded_json import decode_json
from app.wire.common import EffortWish, Model, parse
from app.wire.errors import ApiError
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
        with self._intake.body(tenant_id) as incoming:
            body = await read_body(request, self._bounds.max_body_bytes, incoming.grow)

            def work() -> tuple[Model, list[str]]:
                ignores = self._bounds.ignores_unknown_fields
                message = parse(model, decode_json(body), ignores_unknown=ignores)
                return message, message.ignored_fields

            short = len(body) <= INLINE_BYTES
            message, ignored = work() if short else await self._workers.run(tenant_id, work)
            request.state.ignored = [*ignored, *self._unheeded(message.effort_wish)]
            return message


def require_json(request: Request) -> None:
    """Raises `ApiError` 415 for a body that says it is anything but JSON, as it is."""
    for coding in ",".join(request.headers.getlist("content-encoding")).split(","):
        if coding.strip().lower() not in ("", "identity"):
            message = f"Send the body as it is, not with Content-Encoding '{coding.strip()}'."
            # What would do (RFC 9110, section 15.5.16).
            headers = {"accept-encoding": "identity"}
            raise ApiError(415, message, code="unsupported_media_type", headers=headers)
    content_type = request.headers.get("content-type", "application/json")
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise ApiError(415, "Send JSON (application/json).", code="unsupported_media_type")


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
