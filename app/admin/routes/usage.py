"""`/admin/tenants/{tenant}/usage`: what a tenant used, by day, as JSON or CSV; `/admin/prices`."""

from __future__ import annotations

import re
from datetime import date
from http import HTTPStatus
from typing import Annotated, Literal

from fastapi import Request, Response
from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from app.admin.documents import Document, UsageDay, usage_csv
from app.admin.lists import Query
from app.admin.parameters import InQuery, Served, TenantId
from app.admin.route import operations
from tenants.usage.prices import TOKENS_PRICED, shown

router = operations("Usage")

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
    currency: str | None = Field(description="Of `cost`; null without prices.")
    usage: list[UsageDay]


class PricesDocument(Document):
    """What the model that this replica serves costs, in units of the currency.

    All are zero, and the currency null, without a price file.
    """

    model: str
    currency: str | None
    input: str = Field(description="A million prompt tokens that are computed and not written.")
    cached: str = Field(description="A million that are found in the cache.")
    written: str = Field(description="A million that are computed and left in the cache.")
    output: str = Field(description="A million output tokens.")
    block_hours: str = Field(description="A million KV blocks, leased for an hour.")


@router.get(
    "/tenants/{tenant}/usage",
    response_model=Usage,
    responses={HTTPStatus.OK: {"content": {_CSV: {"schema": {"type": "string"}}}}},
)
async def show_usage(
    tenant: TenantId, query: InQuery[UsageQuery], service: Served, request: Request
) -> Usage | Response:
    """Show what a tenant used, by day."""
    await service.stores.tenants.get_tenant(tenant)
    used = await service.stores.usage.read(tenant, query.since or date.min, query.until or date.max)
    days = [UsageDay.of(day) for day in used]
    if query.format == "csv" or (query.format is None and _prefers_csv(request)):
        name = f'attachment; filename="{tenant}-usage.csv"'
        return Response(usage_csv(days), headers={"content-disposition": name}, media_type=_CSV)
    return Usage(tenant=tenant, currency=service.prices.currency or None, usage=days)


@router.get("/prices")
async def show_prices(service: Served) -> PricesDocument:
    """Show what tokens cost; the settings say so, in the price file."""
    prices = service.prices
    return PricesDocument(
        model=service.names.model_id,
        currency=prices.currency or None,
        input=shown(prices.input * TOKENS_PRICED),
        cached=shown(prices.cached * TOKENS_PRICED),
        written=shown(prices.written * TOKENS_PRICED),
        output=shown(prices.output * TOKENS_PRICED),
        block_hours=shown(prices.block_hour * TOKENS_PRICED),
    )


def _prefers_csv(request: Request) -> bool:
    """Whether `Accept` names CSV, and JSON not before it."""
    kinds = [one.partition(";")[0].strip() for one in request.headers.get("accept", "").split(",")]
    return _CSV in kinds and "application/json" not in kinds[: kinds.index(_CSV)]
