"""`/console/responses`: the chat's socket on the operators' port.

It is `/v1/responses` for an operator who has a tenant's key, too. The key alone is not enough: this
port serves no tenants, so that they take no connections of it.
"""

from __future__ import annotations

import asyncio
import binascii
from base64 import urlsafe_b64decode
from functools import partial

from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

from app.admin.door import Door
from app.admin.problems import as_problem, unauthorized
from app.routes.responses_ws import responses_socket

TOKEN_PREFIX = "partywall.operator."
"""Of the subprotocol that carries the operator's token, in base64url."""
_LOOK_SECONDS = 1.0


def operators_chat(door: Door) -> WebSocketRoute:
    """The socket, for whom the door lets in."""

    async def chat(socket: WebSocket) -> None:
        try:
            token = _token(socket)
            await door.holder(token)
        except Exception as error:
            problem = as_problem(error)
            if problem is None:
                raise
            await socket.send_denial_response(problem.response())
            return
        await responses_socket(socket, partial(_end_of, token, door))

    return WebSocketRoute("/console/responses", chat)


async def _end_of(token: str, door: Door) -> str:
    """Why who was let in is welcome no more, once that is so."""
    while await door.is_open(token):  # noqa: ASYNC110 - it is asked, and nobody tells
        await asyncio.sleep(_LOOK_SECONDS)
    return "This operator's token has ended."


def _token(socket: WebSocket) -> str:
    """Raises `Problem` 401."""
    for name in socket.scope["subprotocols"]:
        if name.startswith(TOKEN_PREFIX):
            encoded = name.removeprefix(TOKEN_PREFIX)
            try:
                return urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode()
            except (binascii.Error, UnicodeDecodeError):
                break
    raise unauthorized()
