"""Writes that are safe to send again: under one `Idempotency-Key` one is done, and answered."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Annotated

import msgspec
from fastapi import Depends, Header
from pydantic import WithJsonSchema
from starlette.requests import Request
from starlette.responses import Response

from app.admin.problems import Complaint, clash, complaint, invalid
from tenants.errors import InvalidField, StoreUnavailable
from tenants.idempotency import Idempotency

_log = logging.getLogger(__name__)

_HEADER = "Idempotency-Key"
_KEY = re.compile(r"[!-~]{1,255}")
_KEPT_HEADERS = ("content-type", "etag")


async def _checked(
    idempotency_key: Annotated[
        str | None,
        Header(
            alias=_HEADER,
            description="A new name for a new write: what comes again under the same name within a "
            "day is not done again, but has the same answer.",
        ),
        WithJsonSchema({"type": "string", "pattern": f"^{_KEY.pattern}$"}),
    ] = None,
) -> str | None:
    if idempotency_key is not None and not _KEY.fullmatch(idempotency_key):
        raise invalid(Complaint(field=_HEADER, detail="1 to 255 visible ASCII characters"))
    return idempotency_key


IdempotencyKey = Annotated[str | None, Depends(_checked)]
"""The key that the sender chose, if any. Raises `Problem` 422."""


class _Kept(msgspec.Struct, frozen=True, array_like=True):
    """An answer that may be asked for again."""

    status: int
    headers: dict[str, str]
    body: bytes


async def once(
    store: Idempotency,
    caller: str,
    key: str,
    request: Request,
    perform: Callable[[], Awaitable[Response]],
) -> Response:
    """The answer that the caller's first request under `key` had, or this one, as the first."""
    try:
        begun = await store.begin(caller, key, await _fingerprint(request))
    except InvalidField as error:
        # A key that names another request already: what is there does not allow this one.
        raise clash(complaint(error)) from error
    if isinstance(begun, bytes):
        return _replayed(begun)
    # Deleting twice is deleting once, and a deletion that was cut off must be able to go on.
    repeatable = request.method == "DELETE"
    try:
        with contextlib.nullcontext() if repeatable else begun.guarding():
            response = await perform()
    except BaseException:
        # Nothing was done, or nobody heard of it: what was made stays made.
        with contextlib.suppress(StoreUnavailable):
            await store.abandon(begun)
        raise
    try:
        await store.finish(begun, _kept(response))
    except StoreUnavailable:
        # It is done all the same, and its answer may hold a secret that is shown but once.
        _log.warning("an answer could not be kept: a retry of it will not find it")
    return response


async def _fingerprint(request: Request) -> bytes:
    """What must be the same for a request to be the same as an earlier one."""
    url, expected = request.url, request.headers.get("if-match")
    parts = [request.method, url.path, url.query, expected, await request.body()]
    return sha256(msgspec.msgpack.encode(parts)).digest()


def _kept(response: Response) -> bytes:
    kept = {name: response.headers[name] for name in _KEPT_HEADERS if name in response.headers}
    return msgspec.msgpack.encode(_Kept(response.status_code, kept, bytes(response.body)))


def _replayed(blob: bytes) -> Response:
    kept = msgspec.msgpack.decode(blob, type=_Kept)
    return Response(kept.body, kept.status, kept.headers | {"idempotency-replayed": "true"})
