"""What a list is asked with, `limit`, `order`, `after` and `include`, and a page of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request

from app.wire.errors import invalid_request
from app.wire.responses import INCLUDABLE

_MOST = 100
_USUAL = 20


def take_include(query: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """A query without what is to be included: all that is kept is, always.

    Raises `ApiError` for what this service does not have.
    """
    rest = []
    for name, value in query:
        if name not in ("include", "include[]"):
            rest.append((name, value))
        elif value not in INCLUDABLE:
            raise invalid_request(f"There is no '{value}' to include.", "include")
    return rest


def page(request: Request, items: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The part of `items`, oldest first, that a request's query asks for. Raises `ApiError`."""
    query = dict(take_include(request.query_params.multi_items()))
    order, after = query.pop("order", "desc"), query.pop("after", None)
    limit = query.pop("limit", str(_USUAL))
    for name in query:
        raise invalid_request(f"Unknown parameter: '{name}'.", name, "unknown_parameter")
    if order not in ("asc", "desc"):
        raise invalid_request("'order' is 'asc' or 'desc'.", "order")
    if not (limit.isascii() and limit.isdigit() and len(limit) < 4 and 1 <= int(limit) <= _MOST):
        raise invalid_request(f"'limit' is a number from 1 to {_MOST}.", "limit")
    ordered = list(items) if order == "asc" else list(reversed(items))
    if after is not None:
        ids = [item["id"] for item in ordered]
        if after not in ids:
            raise invalid_request(f"There is no item '{after}' in this list.", "after")
        ordered = ordered[ids.index(after) + 1 :]
    data = ordered[: int(limit)]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": len(ordered) > len(data),
    }
