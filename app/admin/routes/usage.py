"""`/admin/tenants/{tenant}/usage`: what a tenant used, by day, as JSON or CSV; also by adapter.

And `/admin/prices`.
"""

from __future__ import annotations

import re
from datetime import date
from http import HTTPStatus
from typing import Annotated, Any, Literal

from fastapi import Request, Response
from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from app.admin.documents import AdapterUsageDay, Document, UsageDay, usage_csv
from app.admin.lists import Query
from app.admin.parameters import InQuery, Served, TenantId
from app.admin.route import operations
from app.context import Service
from tenants.usage.prices import TOKENS_PRICED, Prices, shown

router = operations("Usage")

_CSV = "text/csv"
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
