"""One line for every request, and one for every socket, at its end: figures, and no texts.

What a client has written is in none of them: errors are told by their codes, and the fields that
they name by the first part of their names.
"""

from __future__ import annotations

import logging
from time import perf_counter
from typing import TYPE_CHECKING, Any

from app.observe.request_fields import RequestContext
from app.wire.errors import ApiError

if TYPE_CHECKING:
    from app.generation.generation import Generation

_log = logging.getLogger("app.requests")
_PROBES = ("/healthz", "/readyz", "/health", "/metrics")
_OF_ANY_NAME = ("unknown_parameter", "invalid_json")
"""Errors whose fields have names that a client has made up."""


def log_generation(generation: Generation, context: RequestContext | None) -> None:
    """The line of a request that came to the engine; `context` is where it came from."""
    error = generation.failure if generation.outcome == "error" else None
    level = _level(None if error is None else error.status)
    if not _log.isEnabledFor(level):
        return
    request, timeline = generation.request, generation.timeline
    fields: dict[str, Any] = {
        "response_id": request.request_id,
        "tenant": request.tenant,
        **({} if generation.asked.adapter is None else {"adapter": generation.asked.adapter}),
        "finish": generation.outcome or "abandoned",
        "prompt_tokens": len(request.prompt),
        "cached_tokens": generation.cached_tokens,
        "output_tokens": generation.output_tokens,
        "queue_ms": _ms(timeline.queue_seconds),
        "ttft_ms": _ms(timeline.time_to_first_token),
        "itl_ms": _ms(timeline.inter_token_latency),
        "duration_ms": _ms(perf_counter() - timeline.started),
        **({} if error is None else _why(error)),
    }
    _write(level, "request", context, fields)


def log_answer(context: RequestContext, status: int | None) -> None:
    """The line of an HTTP request for which nothing was generated; `None`: it got no answer."""
    is_probe = context.path in _PROBES and status is not None and status < 400
    level = logging.DEBUG if is_probe else _level(status)
    if not _log.isEnabledFor(level):
        return
    fields = {
        "method": context.method,
        "status": status,
        "code": context.code,
        "duration_ms": _ms(perf_counter() - context.started),
    }
    _write(level, "request", context, fields)


def log_refusal(error: ApiError, context: RequestContext | None, **fields: str) -> None:
    """The line of a request that was refused on a socket, or before it was one."""
    if context is not None:
        context.num_refused += 1
    level = _level(error.status)
    if _log.isEnabledFor(level):
        _write(level, "request", context, {"status": error.status, **_why(error), **fields})


def log_socket(context: RequestContext) -> None:
    """The line of a socket."""
    if not _log.isEnabledFor(logging.INFO):
        return
    fields = {
        "close_code": context.close_code,
        "responses": context.num_generations,
        "refused": context.num_refused,
        "duration_ms": _ms(perf_counter() - context.started),
    }
    _write(logging.INFO, "socket", context, fields)


def _level(status: int | None) -> int:
    return logging.WARNING if status is not None and status >= 500 else logging.INFO


def _why(error: ApiError) -> dict[str, str | None]:
    named = error.param if error.code not in _OF_ANY_NAME else None
    field = None if named is None else named.partition(".")[0].partition("[")[0]
    return {"code": error.code, "field": field}


def _write(level: int, event: str, context: RequestContext | None, fields: dict[str, Any]) -> None:
    # Not left to the current context alone: one task may end what another one has begun.
    told = fields if context is None else context.fields() | fields
    _log.log(level, event, extra={name: one for name, one in told.items() if one is not None})


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 2)
