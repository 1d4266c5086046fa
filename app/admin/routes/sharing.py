"""`/admin/sharing`: what it was worth that prompts were found, and who pushed out whom."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Self

from pydantic import Field

from app.admin.documents import Cost, Document, Moment
from app.admin.lists import Query
from app.admin.ops import engine_stats
from app.admin.parameters import InQuery, Served
from app.admin.route import operations
from app.observe.sharing import MOST_NAMES, NOW_SECONDS, Row, Saved
from engine.api import Evicted, Loss
from tenants.usage.prices import shown

router = operations("Live view")


class SharingQuery(Query):
    """How much of it."""

    most: Annotated[
        int,
        Field(
            ge=1, le=MOST_NAMES, description="Tenants, and prompts, that are told of each alone."
        ),
    ] = 20


class Savings(Document):
    """What some requests saved as tokens of their prompts were found."""

    requests: int
    prompt_tokens: int
    found_tokens: int = Field(description="Of these: found, so that they were not computed.")
    hit_rate: float | None = Field(description="The part that was found; null of nothing.")
    seconds: float = Field(
        description="Of the engine's computing, which finding them saved: what its steps have "
        "taught that they take, less copying them from host memory."
    )
    worth: Cost = Field(description="What they would cost as prompt tokens that are computed.")
    discount: Cost = Field(description="Of that: what tenants did not pay for them.")

    @classmethod
    def of(cls, record: Saved, **own: Any) -> Self:
        """See `Document`."""
        money = {"worth": shown(record.worth_nanos), "discount": shown(record.discount_nanos)}
        return super().of(record, **money, **own)


class SavingsOf(Document):
    """Those of one tenant's requests, or of a registered prompt in all requests under it."""

    name: str | None = Field(description="A prompt's is OWNER/NAME; null: all others together.")
    now: Savings
    today: Savings


class Eviction(Document):
    """How many of a tenant's KV blocks went for another's, or its own, requests."""

    tenant: str = Field(description="Whose they were; 'other': of several together.")
    by: Loss
    taken_by: str | None = Field(description="Whose request got their memory; null: deleted.")
    last_minute: int
    blocks: int = Field(description="Since the engine's start.")


class Sharing(Document):
    """What sharing was worth: in the last seconds, and today."""

    since: Moment = Field(description="When today's counts began: at midnight, or at the start.")
    now_seconds: int = Field(description="Those that `now` is of.")
    currency: str | None = Field(description="Of what is saved; null without prices.")
    total: SavingsOf
    tenants: list[SavingsOf] = Field(description="Who saved most today first, then the others.")
    prompts: list[SavingsOf] = Field(
        description="The same of registered prompts: of their own tokens, without what follows."
    )
    evictions: list[Eviction] | None = Field(
        description="Pairs of whom most was evicted in the last minute first; null while the "
        "engine does not answer."
    )


@router.get("/sharing")
async def show_sharing(query: InQuery[SharingQuery], service: Served) -> Sharing:
    """Show what was saved as prompts were found in the cache, by tenant and registered prompt.

    Of the requests that this service has served; evictions are those of all engines behind it.
    """
    stats, told = await engine_stats(service), service.metrics.sharing.told(query.most)
    return Sharing(
        since=datetime.fromtimestamp(int(told.since), UTC),
        now_seconds=NOW_SECONDS,
        currency=service.prices.model.currency or None,
        total=_told(told.total),
        tenants=list(map(_told, told.tenants)),
        prompts=list(map(_told, told.prompts)),
        evictions=None if stats is None else [_eviction(one) for one in stats.evicted],
    )


def _told(row: Row) -> SavingsOf:
    return SavingsOf(name=row.name, now=Savings.of(row.now), today=Savings.of(row.today))


def _eviction(one: Evicted) -> Eviction:
    return Eviction(
        tenant=one.owner,
        by=one.why,
        taken_by=one.by or None,
        last_minute=one.lately,
        blocks=one.blocks,
    )
