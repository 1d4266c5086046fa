"""`/admin/tenants/{tenant}/cache`: what a tenant has in the cache, by conversation and prompt."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any, Final, Self

from pydantic import Field

from app.admin.documents import Document
from app.admin.lists import Next, PageQuery, page
from app.admin.parameters import InQuery, Served, TenantId
from app.admin.route import operations
from app.context import Service
from engine.api import ChainState
from tenants.prompts.index import engine_fingerprint
from tenants.records import Tenant
from tenants.usage.usage import DayUsage

_DAYS: Final = 31

router = operations("Live view")


class CacheQuery(PageQuery):
    """A page of what is in the cache."""

    after: Annotated[int | None, Field(ge=1, description="What was used before that.")] = None


class CachedPrompt(Document):
    """A registered prompt."""

    owner: str = Field(description="A tenant's id, or '@' and a share group's.")
    name: str
    version: int


class Cached(Document):
    """What a conversation's last request has left, or what requests have used of a registered
    prompt; tokens are those of full blocks.
    """

    conversation: str | None = Field(
        description="A conversation's id, or that of the last response or completion in one that "
        "has none; null: it is a registered prompt's."
    )
    prompt: CachedPrompt | None = Field(
        description="The registered prompt that it begins with, unless that was deleted."
    )
    tokens: int
    shared_tokens: int = Field(description="Of these: the registered prompt's.")
    found_tokens: int = Field(description="Of these: still found.")
    host_tokens: int = Field(description="Of those found: in host memory.")
    references: int = Field(description="Running sequences and pins that hold the last block.")
    leased_tokens: int = Field(description="Those that the tenant leases.")
    lease_seconds: float = Field(description="How long the longest of these leases still lasts.")
    age_seconds: float = Field(description="Since the end of the first request.")
    idle_seconds: float = Field(description="Since the end of the last one.")
    requests: int
    hits: int = Field(
        description="Requests that found all of the registered prompt; of a conversation: "
        "something behind it."
    )


class CacheDay(Document):
    """What a tenant's requests found on one day (UTC), over all replicas."""

    day: date
    prompt_tokens: int
    cached_tokens: int
    hit_ratio: float | None = Field(description="One over the other.")

    @classmethod
    def of(cls, record: DayUsage, **own: Any) -> Self:
        """See `Document`."""
        asked, found = record.prompt_tokens, record.cached_tokens
        return super().of(record, hit_ratio=found / asked if asked else None, **own)


class TenantCache(Document):
    """What a tenant has in this replica's cache, the last used first, and what it found by day."""

    tenant: str
    block_size: int = Field(description="Tokens in a block.")
    chains: list[Cached]
    next: Next
    days: list[CacheDay]


@router.get("/tenants/{tenant}/cache")
async def show_tenant_cache(
    tenant: TenantId, query: InQuery[CacheQuery], service: Served
) -> TenantCache:
    """Show what a tenant has in this replica's cache.

    By conversation and by registered prompt, its own and those of its share group that it has used,
    as far as this replica remembers their last use. And which part of its prompts' tokens was found
    on each of the last 31 days.
    """
    record = await service.stores.tenants.get_tenant(tenant)
    found = await _chains(service, tenant, query.after, query.limit + 1)
    chains, after = page(found, query.limit, lambda chain: chain.number)
    prompts = await _prompts(service, record) if any(one.prompt for one in chains) else {}
    today = datetime.now(UTC).date()
    days = await service.stores.usage.read(tenant, today - timedelta(_DAYS - 1), today)
    return TenantCache(
        tenant=tenant,
        block_size=service.engine.info.block_size,
        chains=[Cached.of(chain, prompt=prompts.get(chain.prompt)) for chain in chains],
        next=after,
        days=[CacheDay.of(day) for day in days],
    )


async def _chains(
    service: Service, tenant_id: str, before: int | None, count: int
) -> list[ChainState]:
    """So many of a tenant's chains that were used before that number, or all; in several turns of
    the engine, which looks at a part of them at a time.
    """
    found: list[ChainState] = []
    while True:
        part = await service.engine.chains(tenant_id, before)
        found += part.chains
        before = part.next
        if before is None or len(found) >= count:
            return found[:count]


async def _prompts(service: Service, tenant: Tenant) -> dict[bytes, CachedPrompt]:
    """The registered prompts that a tenant may use, by the hash of their last full block."""
    engine = engine_fingerprint(service.engine.info)
    owners = [tenant.id] if tenant.share_group is None else [f"@{tenant.share_group}", tenant.id]
    return {
        index.block_hashes[-1]: CachedPrompt(owner=owner, name=index.name, version=index.version)
        for owner in owners
        for index in await service.stores.prompts.indexes(owner, engine)
        if index.block_hashes
    }
