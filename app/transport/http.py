"""Writing answers over HTTP, errors included, also to what no application could be given."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any, TypeVar

import msgspec
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from app.observe.log_lines import log_refusal
from app.observe.metrics import Metrics
from app.observe.request_fields import new_request_id, note_error
from app.transport.server_sent_events import until_gone
from app.wire.errors import ApiError, as_api_error, internal_error, shortened

_log = logging.getLogger(__name__)
_CODES_BY_STATUS = {404: "not_found", 405: "method_not_allowed"}
READER_GONE = 499
IGNORED_HEADER = "x-partywall-ignored-fields"
Result = TypeVar("Result")


class ReaderGone(Exception):
    """The client left before its answer was ready."""


def json_response(
    content: bytes | dict[str, Any], status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """A JSON answer."""
    body = content if isinstance(content, bytes) else msgspec.json.encode(content)
    return Response(body, status, headers, media_type="application/json")


def error_response(error: ApiError) -> Response:
    """An error in the shape of HTTP."""
    return json_response(error.body(), error.status, error.headers)


async def unless_gone(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`, which is cancelled as soon as the client leaves (`ReaderGone`).

    Only for requests whose body has been read.
    """
    task = asyncio.create_task(work)
    gone = asyncio.create_task(until_gone(request.receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ReaderGone
        return task.result()
    finally:
        gone.cancel()
        task.cancel()
        await asyncio.wait({task, gone})
        # An error holds this frame, and the request's texts: no circle may keep them.
        del task, gone


Endpoint = Callable[[Request], Awaitable[ASGIApp]]
Shape = Callable[[ApiError], Response]
"""How an API answers with an error."""


def answering(
    endpoint: Endpoint, route: str, shape: Shape = error_response
) -> Callable[[Request], Awaitable[ASGIApp]]:
    """An endpoint whose exceptions become answers in its API's `shape`, counted for `route`."""

    async def answer(request: Request) -> ASGIApp:
        try:
            return _naming_ignored(request, await endpoint(request))
        except (ReaderGone, ClientDisconnect):
            return Response(status_code=READER_GONE)
        except Exception as error:  # noqa: BLE001 - the last resort turns bugs into a logged 500
            return shape(_refusal(request, route, error))

    return answer


def _naming_ignored(request: Request, response: ASGIApp) -> ASGIApp:
    """The answer, with a header for what was ignored in the request, if that is anything."""
    names: list[str] = getattr(request.state, "ignored", [])
    if not names:
        return response
    # A header is one line of ASCII, and a client's names need not be.
    value = ", ".join(json.dumps(name)[1:-1] for name in names)

    async def named(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[IGNORED_HEADER] = shortened(value)
            await send(message)

        await response(scope, receive, send_named)

    return named


def _refusal(request: Request, route: str, error: Exception) -> ApiError:
    """What a request that `error` has ended is told.

    Not where it was caught: an error holds the frames that it went through, and whichever of these
    held it would keep them all, and the request's texts.
    """
    known = as_api_error(error)
    if known is None:
        _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        known = internal_error()
    metrics: Metrics = request.app.state.metrics
    metrics.count_refused(route, known.status)
    note_error(known.code)
    return known


async def routing_error(
    request: Request, error: Exception, shape_of: Callable[[str], Shape]
) -> Response:
    """Starlette's own refusals (404, 405) in the shape of the API that a path is of."""
    assert isinstance(error, HTTPException)
    code = _CODES_BY_STATUS.get(error.status_code, "invalid_request")
    message = error.detail
    if error.status_code == 404:
        message = f"There is nothing at '{request.url.path}'{_instead(request)}."
    refused = ApiError(error.status_code, message, code=code, headers=error.headers)
    return shape_of(request.url.path)(refused)


def _instead(request: Request) -> str:
    """Where it is, if only the API's version is missing in a path, or stands there twice."""
    path = request.url.path
    meant = path.removeprefix("/v1") if path.startswith("/v1/v1/") else f"/v1{path}"
    scope = {**request.scope, "path": meant, "root_path": ""}
    found = any(route.matches(scope)[0] is Match.FULL for route in request.app.routes)
    return f": it is at '{meant}'" if found else ""


def refusal(error: ApiError, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """An error as HTTP, the last on its connection; it has its line in the log, and an id."""
    body = msgspec.json.encode(error.body())
    request_id = new_request_id()
    log_refusal(error, None, request_id=request_id)
    lines = [
        STATUS_LINE[error.status],
        *(b"%s: %s\r\n" % header for header in headers),
        b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body),
        b"x-request-id: %s\r\nconnection: close\r\n\r\n" % request_id.encode(),
        body,
    ]
    return b"".join(lines)


def head_too_large(what: str) -> ApiError:
    """Of a head that has more of something than it may."""
    return ApiError(431, f"The request's head has {what}.", code="headers_too_large")


def body_too_large(count: int) -> ApiError:
    """Of a body that is longer than `count` bytes; what is left of it is not read."""
    message = f"The body is larger than {count} bytes."
    return ApiError(413, message, code="body_too_large", headers={"connection": "close"})
