"""`/admin/tenants/{tenant}/usage`: what a tenant used, by day, as JSON or CSV; also by adapter.

`/admin/usage` has the sums of all tenants, `/admin/prices` what tokens cost.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from http import HTTPStatus
from typing import Annotated, Any, Literal

from fastapi import Request, Response
from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from app.admin.documents import (
    AdapterUsageDay,
    Document,
    Id,
    TenantUsage,
    UsageDay,
    usage_csv,
)
from app.admin.lists import Next, Query, page
from app.admin.parameters import InQuery, Served, TenantId
from app.admin.route import operations
from app.context import Service
from tenants.usage.prices import TOKENS_PRICED, Prices, shown
from tenants.usage.totals import MAX_DAYS

router = operations("Usage")

_CSV = "text/csv"
_MOST_TENANTS = 10_000
_IN_CSV: Any = {HTTPStatus.OK: {"content": {_CSV: {"schema": {"type": "string"}}}}}


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


class UsageByAdapter(Document):
    """What a tenant used with adapters: a line for each day and adapter.

    What its requests without any used is the rest of its usage.
    """

    tenant: str
    currency: str | None = Field(description="Of `cost`; null without prices.")
    usage: list[AdapterUsageDay]


class TotalsQuery(UsageQuery):
    """Which days, of which tenants, and in which format."""

    since: Annotated[
        Day | None,
        Field(description=f"First day (UTC), up to {MAX_DAYS} before the last; the month's first."),
    ] = None
    after: Annotated[Id | None, Field(description="Those behind this id.")] = None
    limit: Annotated[
        int, Field(ge=1, le=_MOST_TENANTS, description="How many tenants are summed, at most.")
    ] = _MOST_TENANTS


class UsageByTenant(Document):
    """What tenants used over some days: a line for each that used anything."""

    since: date
    until: date
    currency: str | None = Field(description="Of `cost`; null without prices.")
    usage: list[TenantUsage]
    next: Next


class TokenPrices(Document):
    """Those of tokens, in units of the currency."""

    input: str = Field(description="A million prompt tokens that are computed and not written.")
    cached: str = Field(description="A million that are found in the cache.")
    written: str = Field(description="A million that are computed and left in the cache.")
    output: str = Field(description="A million output tokens.")


class PricesDocument(TokenPrices):
    """What the model that this replica serves costs, in units of the currency.

    All are zero, and the currency null, without a price file.
    """

    model: str
    currency: str | None
    block_hours: str = Field(description="A million KV blocks, leased for an hour.")
    adapters: dict[str, TokenPrices] = Field(
        description="Those of requests with an adapter, by its owner and name (OWNER/NAME); '*' is "
        "any other one."
    )


@router.get("/tenants/{tenant}/usage", response_model=Usage, responses=_IN_CSV)
async def show_usage(
    tenant: TenantId, query: InQuery[UsageQuery], service: Served, request: Request
) -> Usage | Response:
    """Show what a tenant used, by day."""
    await service.stores.tenants.get_tenant(tenant)
    used = await service.stores.usage.read(tenant, query.since or date.min, query.until or date.max)
    days = [UsageDay.of(day) for day in used]
    if _is_csv(query, request):
        return _file(f"{tenant}-usage", usage_csv(UsageDay, days))
    return Usage(tenant=tenant, currency=_currency(service), usage=days)


@router.get("/tenants/{tenant}/usage/adapters", response_model=UsageByAdapter, responses=_IN_CSV)
async def show_usage_by_adapter(
    tenant: TenantId, query: InQuery[UsageQuery], service: Served, request: Request
) -> UsageByAdapter | Response:
    """Show what a tenant used with its adapters, and its share group's, by day."""
    await service.stores.tenants.get_tenant(tenant)
    since, until = query.since or date.min, query.until or date.max
    used = await service.stores.usage.read_by_adapter(tenant, since, until)
    days = [AdapterUsageDay.of(one) for one in used]
    if _is_csv(query, request):
        return _file(f"{tenant}-usage-by-adapter", usage_csv(AdapterUsageDay, days))
    return UsageByAdapter(tenant=tenant, currency=_currency(service), usage=days)


@router.get("/usage", response_model=UsageByTenant, responses=_IN_CSV)
async def list_usage(
    query: InQuery[TotalsQuery], service: Served, request: Request
) -> UsageByTenant | Response:
    """List what tenants used over some days, with their parts of their share groups'.

    One request tells it of all; behind 10,000 tenants one goes on with `next`.
    """
    stores = service.stores
    until = query.until or datetime.now(UTC).date()
    since = query.since or until.replace(day=1)
    found = await stores.tenants.tenant_ids(query.after, query.limit + 1)
    tenants, after = page(found, query.limit, str)
    groups = [f"@{one}" for one in await stores.groups.ids(_MOST_TENANTS)]
    used = await stores.usage.read_totals(tenants, groups, since, until)
    lines = [TenantUsage.of(one) for one in used]
    if _is_csv(query, request):
        return _file(f"usage-{since}-{until}", usage_csv(TenantUsage, lines))
    return UsageByTenant(
        since=since, until=until, currency=_currency(service), usage=lines, next=after
    )


@router.get("/prices")
async def show_prices(service: Served) -> PricesDocument:
    """Show what tokens cost; the settings say so, in the price file."""
    prices = service.prices
    return PricesDocument(
        model=service.names.model_id,
        currency=_currency(service),
        block_hours=shown(prices.model.block_hour * TOKENS_PRICED),
        adapters={name: TokenPrices(**_of_tokens(own)) for name, own in prices.adapters.items()},
        **_of_tokens(prices.model),
    )


def _of_tokens(prices: Prices) -> dict[str, str]:
    names = TokenPrices.model_fields
    return {name: shown(getattr(prices, name) * TOKENS_PRICED) for name in names}


def _currency(service: Service) -> str | None:
    return service.prices.model.currency or None


def _file(name: str, content: str) -> Response:
    disposition = {"content-disposition": f'attachment; filename="{name}.csv"'}
    return Response(content, headers=disposition, media_type=_CSV)


def _is_csv(query: UsageQuery, request: Request) -> bool:
    return query.format == "csv" or (query.format is None and _prefers_csv(request))


def _prefers_csv(request: Request) -> bool:
    """Whether `Accept` names CSV, and JSON not before it."""
    kinds = [one.partition(";")[0].strip() for one in request.headers.get("accept", "").split(",")]
    return _CSV in kinds and "application/json" not in kinds[: kinds.index(_CSV)]
