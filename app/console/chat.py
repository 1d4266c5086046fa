"""What the chat asks for beside the page: whose a key is, and, on the operators' port, what tenants
find below `/v1`.

There a key alone is not enough: that port serves no tenants, so that they take no connections of
it. An operator's token comes beside it, in a header of its own or, to a socket, a subprotocol.
"""

from __future__ import annotations

import asyncio
import binascii
from base64 import urlsafe_b64decode
from functools import partial
from typing import Final

from starlette.requests import Request
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp
from starlette.websockets import WebSocket

from app.admin.door import Door
from app.admin.problems import as_problem, unauthorized
from app.context import identified
from app.routes import models, prompts, responses
from app.routes.responses_ws import responses_socket
from app.transport.http import Endpoint, answering, json_response
from app.wire.events import encode_json

OPERATOR: Final = "x-partywall-operator"
"""The header that carries the operator's token."""
TOKEN_PREFIX: Final = "partywall.operator."
"""Of the subprotocol that does, in base64url."""
_LOOK_SECONDS: Final = 1.0
_RESPONSE: Final = "/console/responses/{response_id}"
_OF_TENANTS: Final = [
    ("GET", "/console/models", models.list_models),
    ("GET", "/console/prompts", prompts.list_prompts),
    ("GET", _RESPONSE, responses.get_response),
    ("DELETE", _RESPONSE, responses.delete_response),
]


async def whose(request: Request) -> ASGIApp:
    """`GET /console/me`: the tenant that the request's key belongs to."""
    _, principal = await identified(request)
    return json_response(encode_json({"tenant": principal.tenant.id}))


def tenants_chat() -> list[BaseRoute]:
    """What the page asks for beside `/v1`."""
    return [Route("/console/me", answering(whose, "console"), methods=["GET"])]


def operators_chat(door: Door) -> list[BaseRoute]:
    """The same, what tenants find below `/v1`, and the socket, for whom the door lets in."""

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

    def guarded(endpoint: Endpoint) -> Endpoint:
        async def answer(request: Request) -> ASGIApp:
            try:
                await door.holder(request.headers.get(OPERATOR, ""))
            except Exception as error:
                problem = as_problem(error)
                if problem is None:
                    raise
                return problem.response()
            return await endpoint(request)

        return answering(answer, "console")

    return [
        WebSocketRoute("/console/responses", chat),
        *(
            Route(path, guarded(endpoint), methods=[method])
            for method, path, endpoint in [("GET", "/console/me", whose), *_OF_TENANTS]
        ),
    ]


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
