"""The headers that make writes safe: `Idempotency-Key` on all of them, `If-Match` on patches."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import StringConstraints
from starlette.requests import Request

from app.admin.openapi import Parameter
from app.admin.problems import Complaint, invalid

_KEY = re.compile(r"[!-~]{1,255}")

IDEMPOTENCY_KEY = Parameter(
    name="Idempotency-Key",
    place="header",
    type=Annotated[str, StringConstraints(pattern=f"^{_KEY.pattern}$")],
    description="A new name for a new write: what comes again under the same name within a day is "
    "not done again, but has the same answer.",
)
IF_MATCH = Parameter(
    name="If-Match",
    place="header",
    type=str,
    description="The ETag of a read, or '*': 412 where something has changed since.",
)


def idempotency_key(request: Request) -> str | None:
    """The key that the sender chose, if any. Raises `Problem` 422."""
    value = request.headers.get(IDEMPOTENCY_KEY.name)
    if value is not None and not _KEY.fullmatch(value):
        detail = "1 to 255 visible ASCII characters"
        raise invalid(Complaint(field=IDEMPOTENCY_KEY.name, detail=detail))
    return value


def if_match(request: Request) -> frozenset[str] | None:
    """The ETags that the sender expects, `*` for any; `None` without the header."""
    value = request.headers.get(IF_MATCH.name)
    return None if value is None else frozenset(part.strip() for part in value.split(","))
