"""`/v1/messages`, as Anthropic's clients speak it: made, as JSON or as events, and counted."""

from __future__ import annotations

import re
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from app.context import identified
from app.messages.message import Answer
from app.messages.parse import generation_request
from app.observe.request_fields import current_request
from app.prompt.sealing import encrypt_thought
from app.transport.http import json_response, unless_gone
from app.transport.server_sent_events import EventStream, sse_event
from app.wire.errors import ApiError, invalid_request
from app.wire.events import encode_json
from app.wire.message_events import PING, message_error
from app.wire.messages import CountBody, MessagesBody

_VERSION = re.compile(r"20\d\d-\d\d-\d\d")
_PING = sse_event(PING, b"ping")


async def create_message(request: Request) -> ASGIApp:
    """Answer the last turn of a conversation."""
    service, principal = await identified(request)
    _check_version(request)
    body = await service.bodies.read(request, MessagesBody, principal)
    asked = generation_request(body)
    generation = await unless_gone(request, service.generations.begin(principal, asked))
    answer = Answer(
        generation,
        service.names.shown(body.model),
        service.metrics,
        _request_id(),
        partial(encrypt_thought, principal.tenant),
        is_marked=asked.cache.lease_seconds is not None,
        shows_thinking=body.thinking is None or body.thinking.display != "omitted",
    )
    sent = {**generation.ticket.headers, **headers()}
    if body.stream:
        close, bounds = generation.close, service.bounds
        return EventStream(answer.events(), close, bounds, sent, comment=_PING)
    try:
        return json_response(await unless_gone(request, answer.whole()), headers=sent)
    finally:
        await generation.close()


async def count_message(request: Request) -> ASGIApp:
    """`POST /v1/messages/count_tokens`: the prompt's length, were a message made so."""
    service, principal = await identified(request)
    _check_version(request)
    body = await service.bodies.read(request, CountBody, principal)
    asked = generation_request(body)
    count = await unless_gone(request, service.generations.count(principal, asked))
    return json_response({"input_tokens": count}, headers=headers())


async def refuse_batches(request: Request) -> ASGIApp:
    """`/v1/messages/batches`: there are none."""
    await identified(request)
    message = "Batches of messages are not served: send each as a message of its own."
    raise ApiError(404, message, code="unsupported_endpoint")


def message_refusal(error: ApiError) -> Response:
    """An error in the shape of this API."""
    body = encode_json(message_error(error, _request_id()))
    return json_response(body, error.status, {**error.headers, **headers()})


def is_message_client(request: Request) -> bool:
    """Whether a request of several APIs is one of this. Raises `ApiError` for no version of it."""
    _check_version(request)
    return "anthropic-version" in request.headers


def _check_version(request: Request) -> None:
    """Raises `ApiError` for what is no version of the API: all that there were are alike here."""
    version = request.headers.get("anthropic-version")
    if version is not None and not _VERSION.fullmatch(version):
        message = f"'{version}' is no version of this API: versions are dates, as 2023-06-01."
        raise invalid_request(message, "anthropic-version", "unsupported_value")


def _request_id() -> str | None:
    current = current_request()
    return None if current is None else current.id


def headers() -> dict[str, str]:
    """By which its clients tell requests apart."""
    request_id = _request_id()
    return {} if request_id is None else {"request-id": request_id}
