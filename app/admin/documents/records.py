"""What an operator sees of the store, and sets of a tenant, in `/admin` and on the command line.

No secret is in it.
"""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Annotated, Any, Literal, Self

import msgspec
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints
from typing_extensions import TypedDict

from tenants.records import (
    DEFAULTED,
    ID_PATTERN,
    MAX_LIMIT,
    MAX_WEIGHT,
    NAME_PATTERN,
    PROMPT_NAME_PATTERN,
    UNLIMITED,
    AdapterRecord,
    ApiKey,
    OperatorToken,
    PromptIndex,
    SystemPrompt,
    Tenant,
    TenantLimits,
    TokenRole,
)
from tenants.writes.audit import AuditEntry

_ETAG_BYTES = 12
YEAR_SECONDS = 366 * 24 * 3600


def _whole(value: Any) -> Any:
    """JSON knows one kind of number: 5.0 is an integer there."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _moment(value: Any) -> Any:
    """A Unix time in whole seconds, UTC."""
    return datetime.fromtimestamp(math.floor(value), UTC) if isinstance(value, float) else value


WHOLE = BeforeValidator(_whole)
Moment = Annotated[datetime, BeforeValidator(_moment)]
Id = Annotated[str, StringConstraints(pattern=f"^{ID_PATTERN}$")]
Name = Annotated[str, StringConstraints(pattern=f"^{NAME_PATTERN}$")]
PromptName = Annotated[str, StringConstraints(pattern=f"^{PROMPT_NAME_PATTERN}$")]
Blocks = Annotated[int, Field(ge=0, le=MAX_LIMIT), WHOLE]
Weight = Annotated[float, Field(gt=0, le=MAX_WEIGHT)]
Limit = Annotated[int, Field(ge=1, le=MAX_LIMIT), WHOLE]
LimitOrNone = Annotated[int, Field(ge=0, le=MAX_LIMIT), WHOLE]
Unlimited = Literal["unlimited"]
Lifetime = Annotated[
    Annotated[int, Field(ge=1, le=100 * YEAR_SECONDS), WHOLE] | None,
    Field(description="From now; null is for ever."),
]
Status = Literal["active", "disabled"]
Cache = Literal["on", "off"]
UnknownFields = Literal["refuse", "ignore"]


class Document(BaseModel):
    """Something that is shown; times are ISO 8601 in UTC."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @classmethod
    def of(cls, record: Any, **own: Any) -> Self:
        """What a record says of the fields; of its `own` ones it says nothing, or another thing."""
        told = {name: getattr(record, name) for name in cls.model_fields if name not in own}
        return cls(**told, **own)


class Versioned(Document):
    """Something that may be changed by several at once."""

    def etag(self) -> str:
        """The HTTP entity tag of this state of it; the same whether its secret is shown or not."""
        state = self.model_dump_json(exclude={"api_key"}).encode()
        return f'"{blake2b(state, digest_size=_ETAG_BYTES).hexdigest()}"'


class Limits(Document):
    """What a tenant may take.

    Null is the service's default where it has one (requests, streams, sockets, queued requests,
    stored bytes, adapters and their bytes; "unlimited" has none there either), else no limit.
    """

    requests_per_minute: Limit | Unlimited | None = None
    tokens_per_minute: Limit | None = Field(
        None, description="Prompt and output tokens together; also the most that one request takes."
    )
    tokens_per_day: Limit | None = Field(None, description="The day begins at midnight UTC.")
    concurrent_streams: Limit | Unlimited | None = None
    sockets: LimitOrNone | Unlimited | None = None
    queued_requests: Limit | Unlimited | None = Field(
        None, description="Requests that wait for their first token, in one replica."
    )
    context_tokens: Limit | None = Field(None, description="Prompt plus output of one request.")
    output_tokens: Limit | None = Field(None, description="Output of one request.")
    blocks: Limit | None = Field(
        None, description="KV blocks that running requests may hold, in one replica."
    )
    pinned_blocks: LimitOrNone | None = Field(
        None, description="KV blocks that pinned prompts may hold, in one replica."
    )
    leased_blocks: LimitOrNone | None = Field(
        None,
        description="KV blocks that are kept because requests have asked for it, in one replica; "
        "null is the part of all blocks that the service lets a tenant lease.",
    )
    stored_bytes: LimitOrNone | Unlimited | None = Field(
        None, description="Kept of its responses; the oldest make room for new ones."
    )
    adapters: LimitOrNone | Unlimited | None = Field(
        None, description="Adapters that it may have at once."
    )
    adapter_bytes: LimitOrNone | Unlimited | None = Field(
        None, description="Of the files of all their versions."
    )
    images: LimitOrNone | Unlimited | None = Field(
        None, description="Pictures that a conversation shows the model."
    )
    files: LimitOrNone | Unlimited | None = Field(
        None, description="Files that its clients have uploaded, and it has at once."
    )
    file_bytes: LimitOrNone | Unlimited | None = Field(None, description="Of all these.")
    lease_seconds: LimitOrNone | None = Field(
        None, description="For how long its requests may lease cached KV blocks, at most."
    )
    soft_budget_micros: Limit | None = Field(
        None,
        description="Millionths of the currency that it may spend in a month (UTC) before answers "
        "carry a warning.",
    )
    hard_budget_micros: Limit | None = Field(
        None, description="Those that it may spend; what could cost more is refused until the next."
    )

    @classmethod
    def of(cls, record: TenantLimits, **own: Any) -> Self:
        """See `Document`."""
        unlimited = {name for name in DEFAULTED if getattr(record, name) == UNLIMITED}
        return super().of(record, **dict.fromkeys(unlimited, "unlimited"), **own)


class TenantDocument(Versioned):
    """A customer."""

    id: Id
    name: Name
    created_at: Moment
    revision: int = Field(description="Grows with every change.")
    status: Status
    weight: Weight = Field(description="Its share of the engine beside other tenants.")
    reserved_blocks: Blocks = Field(
        description="So many of its cached KV blocks are never evicted for other tenants."
    )
    cache: Cache = Field(description="Off: its requests neither find KV blocks nor leave any.")
    share_group: Id | None = Field(description="The group whose prompts and adapters it may use.")
    adapter: PromptName | None = Field(description="Meant where neither request nor prompt says.")
    unknown_fields: UnknownFields | None = Field(
        description="Of its requests: refused or ignored; null is as the service has it."
    )
    limits: Limits

    @classmethod
    def of(cls, record: Tenant, **own: Any) -> Self:
        """See `Document`."""
        return super().of(record, limits=Limits.of(record.limits), **own)


class TenantPatch(TypedDict, total=False):
    """What shall be changed, and nothing else; of `limits`, too, only those that are named."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)  # type: ignore[misc]

    name: Annotated[Name, Field(description="For people; the id by default.")]
    status: Annotated[Status, Field(description="Disabled: every request is refused with 403.")]
    weight: Annotated[Weight, Field(description="Its share of the engine beside others.")]
    reserved_blocks: Annotated[
        Blocks, Field(description="Cached KV blocks that are never evicted for other tenants.")
    ]
    cache: Annotated[
        Cache, Field(description="Off: its requests neither find KV blocks nor leave any.")
    ]
    share_group: Annotated[
        Id | None, Field(description="The group whose prompts and adapters it may use.")
    ]
    adapter: Annotated[
        PromptName | None, Field(description="Meant where neither request nor prompt says.")
    ]
    unknown_fields: Annotated[
        UnknownFields | None,
        Field(description="Of its requests: refused or ignored; null is as the service has it."),
    ]
    limits: Limits


def edited(tenant: Tenant, patch: TenantPatch) -> Tenant:
    """The tenant with the patch applied."""
    changes: dict[str, Any] = {
        name: value for name, value in patch.items() if name not in ("id", "limits")
    }
    if "limits" in patch:
        given = patch["limits"].model_dump(exclude_unset=True)
        limits = {name: UNLIMITED if one == "unlimited" else one for name, one in given.items()}
        changes["limits"] = msgspec.structs.replace(tenant.limits, **limits)
    return msgspec.structs.replace(tenant, **changes)


class KeyDocument(Versioned):
    """An API key without its secret."""

    id: str
    name: str
    created_at: Moment
    expires_at: Moment | None
    live: bool = Field(description="Whether it may be used now.")
    replaced_by: str | None = Field(description="The key that a rotation put in its place.")

    @classmethod
    def of(cls, record: ApiKey, **own: Any) -> Self:
        """See `Document`."""
        return super().of(record, live=record.is_live(time.time()), **own)


class TokenDocument(Document):
    """An admin token without its secret."""

    id: str
    name: str
    role: TokenRole
    tenant: str | None
    created_at: Moment
    expires_at: Moment | None
    live: bool = Field(description="Whether it may be used now.")

    @classmethod
    def of(cls, record: OperatorToken, **own: Any) -> Self:
        """See `Document`."""
        return super().of(record, live=record.is_live(time.time()), **own)


class GroupDocument(Versioned):
    """Tenants that share prompts and adapters: those that were put into it with `share_group`."""

    id: Id
    name: Name
    created_at: Moment
    revision: int = Field(description="Grows with every change.")


class PromptDocument(Document):
    """A version of a system prompt; tokens, blocks and warmed_at are null until it is warm."""

    name: PromptName
    version: int
    active: bool = Field(description="Whether requests get it that name no version.")
    pinned: bool = Field(description="Whether the active version's blocks stay in memory.")
    adapter: PromptName | None = Field(description="Meant where a request with it names none.")
    characters: int
    created_at: Moment
    tokens: int | None
    blocks: int | None
    warmed_at: Moment | None

    @classmethod
    def with_index(cls, prompt: SystemPrompt, index: PromptIndex | None) -> Self:
        """A prompt, and what is known of its blocks."""
        return cls.of(
            prompt,
            characters=len(prompt.text),
            tokens=None if index is None else index.token_count,
            blocks=None if index is None else len(index.block_hashes),
            warmed_at=None if index is None else index.warmed_at,
        )


class PromptWithText(PromptDocument):
    """A version of a system prompt, and its text."""

    text: str


class PromptIndexDocument(Document):
    """The KV blocks of a warm prompt."""

    name: PromptName
    version: int
    engine: str = Field(description="Fingerprint of the weights, dtype and block size.")
    tokens: int
    blocks: int
    block_hashes: list[str] = Field(description="Hashes of the blocks, in hexadecimal.")
    warmed_at: Moment

    @classmethod
    def of(cls, record: PromptIndex, **own: Any) -> Self:
        """See `Document`."""
        hashes = [one.hex() for one in record.block_hashes]
        return super().of(
            record, tokens=record.token_count, blocks=len(hashes), block_hashes=hashes, **own
        )


class AdapterDocument(Document):
    """A version of an adapter (LoRA)."""

    name: PromptName
    version: int
    active: bool = Field(description="Whether its name means this one.")
    pinned: bool = Field(description="Whether the active version stays in memory.")
    digest: str = Field(description="Of all that acts; equal ones answer alike.")
    bytes: int = Field(description="Of its weights.")
    rank: int = Field(description="The largest.")
    targets: list[str] = Field(description="Ends of the names of the layers that it changes.")
    invocation: list[int] = Field(
        description="Tokens behind which it acts (activated LoRA); without any, everywhere."
    )
    created_at: Moment

    @classmethod
    def of(cls, record: AdapterRecord, **own: Any) -> Self:
        """See `Document`."""
        return super().of(
            record,
            digest=record.digest.hex(),
            bytes=record.num_bytes,
            targets=list(record.targets),
            invocation=list(record.invocation),
            **own,
        )


class AuditDocument(Document):
    """A write that happened: who did what to whom, and what it changed."""

    id: str
    at: datetime
    actor: str
    action: str
    owner: str = Field(description="A tenant's id, or '@' and a share group's; empty of a token.")
    target: str = Field(description="The key, prompt, adapter or token; empty for the owner.")
    before: dict[str, Any] | None
    after: dict[str, Any] | None

    @classmethod
    def of(cls, record: AuditEntry, **own: Any) -> Self:
        """See `Document`; its time is in milliseconds."""
        return super().of(record, at=datetime.fromtimestamp(record.at, UTC), **own)
