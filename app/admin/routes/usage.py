"""`/admin/tenants/{tenant}/usage`: what a tenant used, by day, as JSON or CSV."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError
from starlette.responses import Response

from app.admin.declaration import endpoint
from app.admin.documents import Document, UsageDay, usage_csv
from app.admin.endpoint import Call
from app.admin.lists import Query

_CSV = "text/csv"


def _iso_date(text: str) -> str:
    # Left alone, pydantic takes a number for seconds since 1970.
    if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
        raise PydanticCustomError("date_format", "a date as YYYY-MM-DD")
    return text


Day = Annotated[date, BeforeValidator(_iso_date)]


class UsageQuery(Query):
    """Which days, and in which format."""

    since: Annotated[Day | None, Field(description="First day (UTC); the first one used.")] = None
    until: Annotated[Day | None, Field(description="Last day (UTC); today.")] = None
    format: Annotated[
        Literal["json", "csv"] | None, Field(description="By default what `Accept` asks for.")
    ] = None


class Usage(Document):
    """What a tenant used: a line for each day on which it used anything."""

    tenant: str
    usage: list[UsageDay]


@endpoint("GET", "/tenants/{tenant}/usage", "Usage", other_content={_CSV: str})
async def show_usage(call: Call[None, UsageQuery]) -> Usage | Response:
    """Show what a tenant used, by day."""
    tenant = await call.service.stores.tenants.get_tenant(call.path["tenant"])
    query = call.query
    used = await call.service.stores.usage.read(
        tenant.id, query.since or date.min, query.until or date.max
    )
    days = [UsageDay.of(day) for day in used]
    if query.format == "csv" or (query.format is None and _prefers_csv(call.headers)):
        name = f'attachment; filename="{tenant.id}-usage.csv"'
        return Response(usage_csv(days), headers={"content-disposition": name}, media_type=_CSV)
    return Usage(tenant=tenant.id, usage=days)


def _prefers_csv(headers: Mapping[str, str]) -> bool:
    """Whether `Accept` names CSV, and JSON not before it."""
    kinds = [one.partition(";")[0].strip() for one in headers.get("accept", "").split(",")]
    return _CSV in kinds and "application/json" not in kinds[: kinds.index(_CSV)]


ENDPOINTS = [show_usage]
