"""`/console/responses`: the chat's socket on the operators' port.

It is `/v1/responses` for an operator who has a tenant's key, too. The key alone is not enough: this
port serves no tenants, so that they take no connections of it.
"""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode

from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

from app.admin.door import Door
from app.admin.problems import as_problem, unauthorized
from app.routes.responses_ws import responses_socket

TOKEN_PREFIX = "partywall.operator."
"""Of the subprotocol that carries the operator's token, in base64url."""


def operators_chat(door: Door) -> WebSocketRoute:
    """The socket, for whom the door lets in."""

    async def chat(socket: WebSocket) -> None:
        try:
            await door.holder(_token(socket))
        except Exception as error:
            problem = as_problem(error)
            if problem is None:
                raise
            await socket.send_denial_response(problem.response())
            return
        await responses_socket(socket)

    return WebSocketRoute("/console/responses", chat)


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
