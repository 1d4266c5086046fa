"""Answers to what is no request that an application could be given."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from app.observe.log_lines import log_refusal
from app.observe.request_fields import new_request_id
from app.wire.errors import ApiError


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
