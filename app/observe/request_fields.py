"""The HTTP request, or the socket, for which something is done: in every line that is logged then.

Its id is made here. One that a client has chosen stands beside it, so that nobody writes into the
log under another request's id.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from time import perf_counter

from starlette.datastructures import Headers
from starlette.types import Scope
from structlog.typing import EventDict, WrappedLogger

CLIENT_ID_HEADERS = ("x-client-request-id", "x-request-id")
_CLIENT_ID = re.compile(r"[!-~]{1,128}")
_MAX_PATH_CHARACTERS = 200
_SECRET = re.compile(
    r"(pw(?:admin)?_(?:[0-9a-f]{16}\.)?)[A-Za-z0-9_-]{24,}"  # an id may be told
    r"|(eyJ)[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*"  # a JSON Web Token
)
"""Keys and tokens that stand where none belongs, such as a path, are in no line of the log."""
_TRACE_PARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
_ABNORMAL_CLOSURE = 1006
_TRACE_HEADERS = ("traceparent", "tracestate")


@dataclass(kw_only=True)
class RequestContext:
    """One request or socket. `tenant` and `key` (an id) are known once it is authenticated."""

    id: str
    client_id: str | None
    method: str
    path: str
    trace: Mapping[str, str]
    """The headers by which it belongs to a trace (W3C)."""
    started: float = field(default_factory=perf_counter)
    tenant: str | None = None
    key: str | None = None
    code: str | None = None
    """Of the error that it was answered with."""
    num_generations: int = 0
    """That were begun for it; each has a line of its own."""
    num_refused: int = 0
    """Messages of a socket that came to nothing."""
    close_code: int = _ABNORMAL_CLOSURE
    """What it was closed with, by its client or here."""

    @property
    def trace_id(self) -> str | None:
        """Of the trace that its client has named."""
        found = _TRACE_PARENT.fullmatch(self.trace.get("traceparent", ""))
        return None if found is None else found[1]

    def fields(self) -> dict[str, str]:
        """What a line says of the request that it belongs to."""
        fields = {
            "request_id": self.id,
            "client_request_id": self.client_id,
            "trace_id": self.trace_id,
            "path": self.path,
            "tenant": self.tenant,
            "key": self.key,
        }
        return {name: value for name, value in fields.items() if value is not None}


_current: ContextVar[RequestContext | None] = ContextVar("request", default=None)


def new_request_id() -> str:
    """An id that nobody else has."""
    return f"req_{uuid.uuid4().hex}"


def begin_request(scope: Scope) -> RequestContext:
    """The context of an ASGI request or socket, from now on the current one of this task."""
    headers = Headers(scope=scope)
    ids = (headers.get(name) for name in CLIENT_ID_HEADERS)
    context = RequestContext(
        id=new_request_id(),
        client_id=next((one for one in ids if one and _CLIENT_ID.fullmatch(one)), None),
        method=scope.get("method", "GET"),
        path=masked(scope["path"])[:_MAX_PATH_CHARACTERS],
        trace={name: headers[name] for name in _TRACE_HEADERS if name in headers},
    )
    _current.set(context)
    return context


def current_request() -> RequestContext | None:
    """What this task serves; a task that it has begun serves the same."""
    return _current.get()


def note_principal(tenant: str, key: str) -> None:
    """The current request is this tenant's, with the key of this id."""
    context = _current.get()
    if context is not None:
        context.tenant, context.key = tenant, key


def note_error(code: str) -> None:
    """The current request is answered with this error."""
    context = _current.get()
    if context is not None:
        context.code = code


def masked(text: str) -> str:
    """`text` with `***` for the secret part of what looks like an API key or a token."""
    return _SECRET.sub(lambda found: f"{found[1] or found[2]}***", text)


def add_request(_: WrappedLogger, __: str, line: EventDict) -> EventDict:
    """Give a line the fields of the request that it belongs to."""
    context = _current.get()
    if context is not None:
        for name, value in context.fields().items():
            line.setdefault(name, value)
    return line
