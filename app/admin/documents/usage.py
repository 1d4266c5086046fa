"""What an operator sees of usage, in `/admin` and on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Annotated, Any, Self, TypeVar

from pydantic import Field

from app.admin.documents.records import Document
from tenants.usage.prices import shown
from tenants.usage.totals import TotalUsage
from tenants.usage.usage import AdapterUsage, DayUsage

Cost = Annotated[
    str,
    Field(
        pattern=r"^[0-9]+\.[0-9]{9}$",
        description="What it cost, in units of the currency, at the prices of the time.",
    ),
]


class Used(Document):
    """What a tenant used."""

    requests: int
    prompt_tokens: int
    cached_tokens: int = Field(
        description="Of the prompt's: found in the cache, which spared computing them."
    )
    cache_write_tokens: int = Field(description="Computed, and left in the cache.")
    computed_tokens: int = Field(
        description="Prompt tokens computed for it: of its requests, of its registered prompts, "
        "and its part of what was computed of its share group's, by what each member used of them "
        "that day."
    )
    output_tokens: int
    lease_block_seconds: int = Field(description="KV blocks that it leased, times seconds.")
    stream_seconds: float
    cost: Cost

    @classmethod
    def of(cls, record: DayUsage | TotalUsage, **own: Any) -> Self:
        """See `Document`."""
        return super().of(record, cost=shown(record.cost_nanos), **own)


class _OfDay(Document):
    day: date


class _OfTenant(Document):
    tenant: str


# The fields of the last base come first, in CSV as well.
class UsageDay(Used, _OfDay):
    """What a tenant used on one day (UTC)."""


class TenantUsage(Used, _OfTenant):
    """What a tenant used over some days."""


class AdapterUsageDay(Document):
    """What a tenant's requests with one adapter used on one day (UTC): a part of its `UsageDay`."""

    day: date
    adapter: str = Field(
        description="Its name, or '@', the share group and '/' before it, as it is the group's."
    )
    requests: int
    prompt_tokens: int
    cached_tokens: int = Field(description="Of the prompt's: found in the cache.")
    cache_write_tokens: int = Field(description="Computed, and left in the cache.")
    computed_tokens: int = Field(description="Prompt tokens computed for it.")
    output_tokens: int
    stream_seconds: float
    cost: Cost

    @classmethod
    def of(cls, record: AdapterUsage, **own: Any) -> Self:
        """See `Document`."""
        return super().of(record, cost=shown(record.cost_nanos), **own)


_Line = TypeVar("_Line", UsageDay, AdapterUsageDay, TenantUsage)


def usage_csv(kind: type[_Line], lines: Sequence[_Line]) -> str:
    """Usage as RFC 4180 lines under a header; no value needs quotes."""
    rows = [list(kind.model_fields)]
    rows += (list(line.model_dump(mode="json").values()) for line in lines)
    return "".join(",".join(map(str, row)) + "\r\n" for row in rows)
