"""What a list is asked with, `limit`, `order`, `after` and `include`, and a page of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from app.wire.errors import ApiError, invalid_request
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


@dataclass(frozen=True)
class PageQuery:
    """The part of a list that is asked for: so many behind the item `after`."""

    limit: int
    newest_first: bool
    after: str | None


def take_page(
    query: list[tuple[str, str]],
    usual_order: Literal["asc", "desc"] = "desc",
    usual: int = _USUAL,
    most: int = _MOST,
) -> PageQuery:
    """What a query asks for that has nothing else left. Raises `ApiError`."""
    given = dict(query)
    order, after = given.pop("order", usual_order), given.pop("after", None)
    limit = given.pop("limit", str(usual))
    refuse_others(list(given.items()))
    if order not in ("asc", "desc"):
        raise invalid_request("'order' is 'asc' or 'desc'.", "order")
    if not (limit.isascii() and limit.isdigit() and len(limit) < 6 and 1 <= int(limit) <= most):
        raise invalid_request(f"'limit' is a number from 1 to {most}.", "limit")
    return PageQuery(int(limit), order == "desc", after)


def refuse_others(query: list[tuple[str, str]]) -> None:
    """Raises `ApiError` for a query that has anything left."""
    for name, _ in query:
        raise invalid_request(f"Unknown parameter: '{name}'.", name, "unknown_parameter")


def page(query: PageQuery, items: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The part of `items`, oldest first, that a query asks for. Raises `ApiError`."""
    ordered = list(reversed(items)) if query.newest_first else list(items)
    if query.after is not None:
        ids = [item["id"] for item in ordered]
        if query.after not in ids:
            raise not_listed(query.after)
        ordered = ordered[ids.index(query.after) + 1 :]
    return first_of(query, ordered)


def first_of(query: PageQuery, items: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """As many of `items` as a query asks for; more of them say that there are more."""
    data = [(item["id"], item) for item in items[: query.limit]]
    return listed(data, has_more=len(items) > len(data))


def listed(items: Sequence[tuple[str, Any]], *, has_more: bool = False) -> dict[str, Any]:
    """A list of items, which come with their ids."""
    return {
        "object": "list",
        "data": [item for _, item in items],
        "first_id": items[0][0] if items else None,
        "last_id": items[-1][0] if items else None,
        "has_more": has_more,
    }


def not_listed(item_id: str) -> ApiError:
    """A 400 for a list that is asked for behind what is not in it."""
    return invalid_request(f"There is no item '{item_id}' in this list.", "after")
