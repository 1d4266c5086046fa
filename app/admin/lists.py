"""Lists in pages: `limit` items from behind `after`, and `next` to go on with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field

MAX_LIMIT = 1000

Item = TypeVar("Item")

Next = Annotated[str | None, Field(description="`after` of the next page; null on the last one.")]


class Query(BaseModel):
    """Parameters in a query: text, read as what it shall be."""

    model_config = ConfigDict(extra="forbid")


class PageQuery(Query):
    """Which part of a list."""

    limit: Annotated[int, Field(ge=1, le=MAX_LIMIT, description="How many, at most.")] = 100


def page(
    items: Sequence[Item], limit: int, cursor: Callable[[Item], Any]
) -> tuple[Sequence[Item], str | None]:
    """The first `limit` of items, and the cursor to go on with if there are more."""
    if len(items) <= limit:
        return items, None
    return items[:limit], str(cursor(items[limit - 1]))
