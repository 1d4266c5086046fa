"""`WS /v1/responses`: the Responses API in WebSocket mode.

The client sends `response.create` (the body of `POST /v1/responses`, with `type` and, for a lane of
its own, `stream_id`) and two extensions: `response.cancel`, and `response.resume`, which asks for
the rest of a stream that another socket has lost. The server sends the events of every response,
and `error` events; what ends a socket, and with which code, is in docs/protocol.md.

An upgrade is refused with HTTP 401 (no valid key), 403 (the tenant is disabled, or pages of the
origin may not connect), 429 (it has too many sockets) or 503 (the tenant store is down, or the
service is shutting down).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import cast

from starlette.websockets import WebSocket

from app.context import Service
from app.limits.auth import authenticate, select_subprotocol
from app.limits.connections import POLICY_VIOLATION
from app.observe.request_fields import note_error
from app.responses.socket.socket import OpenSocket
from app.transport.bodies import IncomingBody
from app.transport.http import error_response
from app.transport.origins import check_origin
from app.wire.errors import as_api_error

Outlived = Callable[[], Awaitable[str]]
"""Waits until what a socket depends on has ended, and returns the reason."""


async def responses_socket(socket: WebSocket, outlived: Outlived | None = None) -> None:
    """Serve one socket for its whole life; or until what it depends on has ended."""
    service: Service = socket.app.state.service
    serving = OpenSocket(
        socket, service.responses, service.draining, service.workers, service.intake, service.bounds
    )
    accepted = False
    try:
        service.gate.check()
        check_origin(socket, service.bounds.page_origins)
        principal = await authenticate(service.stores.tenants, socket)
        _count_messages(socket, service.intake.body(principal.tenant.id))
        async with service.connections.socket(principal, serving.end) as connection:
            await socket.accept(subprotocol=select_subprotocol(socket.scope["subprotocols"]))
            accepted = True
            with service.metrics.sockets_open.track_inprogress(), _ending(serving, outlived):
                await serving.serve(connection)
    except Exception as error:
        known = as_api_error(error)
        if accepted or known is None:
            raise
        note_error(known.code)
        await socket.send_denial_response(error_response(known))


@contextlib.contextmanager
def _ending(serving: OpenSocket, outlived: Outlived | None) -> Iterator[None]:
    """While entered, the socket is closed once `outlived` returns."""
    if outlived is None:
        yield
        return

    async def end(outlived: Outlived) -> None:
        await serving.end(POLICY_VIOLATION, await outlived())

    task = asyncio.create_task(end(outlived))
    try:
        yield
    finally:
        task.cancel()


def _count_messages(socket: WebSocket, incoming: IncomingBody) -> None:
    """Have the connection's bytes counted as those of bodies are, where the server offers that."""
    extension = socket.scope.get("extensions", {}).get("partywall.incoming")
    if extension is not None:
        cast("Callable[[IncomingBody], None]", extension["count"])(incoming)
