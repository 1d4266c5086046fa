"""What the store holds, as immutable values. Times are Unix seconds."""

from __future__ import annotations

import math
import re
import time
from typing import Literal, TypeVar

import msgspec

from engine.blocks.hashing import derive_key
from tenants.errors import InvalidField, StoreConflict

SECRET_BYTES = 32
MAX_FORMER_SECRETS = 4
MAX_LIMIT = 10**12
"""The greatest limit: what a double, all that Lua knows, still counts exactly."""
UNLIMITED = MAX_LIMIT
"""Set on a tenant, this says that it has no such limit, not even the service's default one."""
MAX_WEIGHT = 1000.0
_END_OF_TIME = 253402300799.0  # of the year 9999: what a date can still say
ID_PATTERN = r"[a-z0-9-]{1,63}"
PROMPT_NAME_PATTERN = r"[A-Za-z0-9_-]{1,64}"
NAME_PATTERN = r"[^\x00-\x1f\x7f-\x9f\u2028\u2029]{1,200}"
"""Anything on one line: no control characters, no line separators."""
_ID = re.compile(ID_PATTERN)
_PROMPT_NAME = re.compile(PROMPT_NAME_PATTERN)
# Lone surrogates come from a command line with broken UTF-8, and cannot be written.
_NAME = re.compile(rf"(?!.*[\ud800-\udfff]){NAME_PATTERN}")
# A tenant may be kept from these; nothing at all of the rest is `status: disabled`.
_MAY_BE_ZERO = frozenset(
    {"sockets", "pinned_blocks", "leased_blocks", "stored_bytes", "lease_seconds"}
    | {"adapters", "adapter_bytes", "images", "files", "file_bytes"}
)


class TenantLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a tenant may take; `None` is the service's default, where it has one, else no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    """Prompt and output tokens together; a bucket of this size that refills at this rate."""
    tokens_per_day: int | None = None
    concurrent_streams: int | None = None
    sockets: int | None = None
    queued_requests: int | None = None
    """Requests that wait for their first token, in one replica."""
    context_tokens: int | None = None
    """Prompt plus output of one request."""
    output_tokens: int | None = None
    blocks: int | None = None
    """KV blocks that running requests may hold, in one replica."""
    pinned_blocks: int | None = None
    leased_blocks: int | None = None
    """KV blocks that requests have asked to be kept, in one replica; the default is the engine's
    `lease_share`."""
    stored_bytes: int | None = None
    """Of responses that are kept to go on from; the oldest make room for new ones."""
    adapters: int | None = None
    """Names of adapters that it may have at once."""
    adapter_bytes: int | None = None
    """Of the files of all their versions."""
    images: int | None = None
    """Pictures that a conversation shows the model."""
    files: int | None = None
    """Files that its clients have uploaded, and it has at once."""
    file_bytes: int | None = None
    """Of all these."""
    lease_seconds: int | None = None
    """For how long its requests may lease what they use of the cache, whatever they ask for."""
    soft_budget_micros: int | None = None
    """Millionths of the currency that may be spent in a month (UTC) before a warning."""
    hard_budget_micros: int | None = None
    """Those that may be spent at all."""

    def over(self, defaults: TenantLimits) -> TenantLimits:
        """What holds: these, and `defaults` where nothing is set; `None` is now no limit."""
        found = {
            name: default if mine is None else None if mine == UNLIMITED else mine
            for name in self.__struct_fields__
            for mine, default in [(getattr(self, name), getattr(defaults, name))]
        }
        return TenantLimits(**found)


DEFAULTED = frozenset(
    {"requests_per_minute", "concurrent_streams", "sockets", "queued_requests", "stored_bytes"}
    | {"adapters", "adapter_bytes", "images", "files", "file_bytes"}
)
"""The limits that a service has defaults for."""


class FormerSecret(msgspec.Struct, frozen=True, kw_only=True):
    """A namespace secret that another took the place of: what it encrypted can still be read."""

    secret: bytes
    replaced_at: float


class _Owner(msgspec.Struct, frozen=True, kw_only=True):
    """What may have prompts."""

    id: str
    name: str
    namespace_secret: bytes
    created_at: float
    revision: int = 1
    former_secrets: tuple[FormerSecret, ...] = ()

    @property
    def generation(self) -> str:
        """What tells it from others that had its id, or will have it."""
        return repr(self.created_at)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(id={self.id!r}, name={self.name!r})"


class Tenant(_Owner, frozen=True, kw_only=True):
    """A customer.

    `namespace_secret` decides who may share its blocks, and never leaves the service. `revision`
    grows with every change. `weight` is its share of the engine beside others; cached blocks up to
    `reserved_blocks` are never evicted for others. With `cache` off its requests neither find
    blocks nor leave any. `share_group` is the group whose prompts and adapters it may use.
    `adapter` names the one that is meant where neither a request nor its prompt names any.
    `unknown_fields` says what becomes of them in its requests; `None`: what the service does.
    """

    status: Literal["active", "disabled"] = "active"
    weight: float = 1.0
    reserved_blocks: int = 0
    cache: Literal["on", "off"] = "on"
    share_group: str | None = None
    adapter: str | None = None
    unknown_fields: Literal["refuse", "ignore"] | None = None
    limits: TenantLimits = TenantLimits()

    @property
    def owner(self) -> str:
        """What says whose something is: the id."""
        return self.id

    @property
    def namespace_key(self) -> bytes:
        """The key of what all of the tenant's end users share: its registered system prompts."""
        return derive_key(self.namespace_secret, "tenant")

    @property
    def known_namespace_keys(self) -> list[bytes]:
        """`namespace_key`, and what it was before."""
        former = [derive_key(one.secret, "tenant") for one in self.former_secrets]
        return [self.namespace_key, *former]

    def user_key(self, user: str) -> bytes:
        """The key of one end user's conversations."""
        return derive_key(self.namespace_secret, "user", user)


class ShareGroup(_Owner, frozen=True, kw_only=True):
    """Tenants that share prompts and adapters: those of the group, and nothing else.

    These are kept like a tenant's, under `owner`, which no tenant can be called.
    """

    @property
    def owner(self) -> str:
        """What takes the place of a tenant's id wherever the group's prompts are kept."""
        return f"@{self.id}"

    @property
    def namespace_key(self) -> bytes:
        """The key under which the blocks of the group's prompts are hashed."""
        return derive_key(self.namespace_secret, "group")


Rotated = TypeVar("Rotated", Tenant, ShareGroup)


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """An API key as the store knows it: `digest` in place of the key, see `tenants.at_rest.pepper`.

    `replaced_by` is the id of the key that a rotation put in its place. `pepper_id` names the
    pepper of the digest; versions before this left it out.
    """

    id: str
    tenant_id: str
    digest: bytes
    created_at: float
    name: str = ""
    expires_at: float | None = None
    replaced_by: str | None = None
    pepper_id: bytes | None = None

    def is_live(self, now: float) -> bool:
        """Whether the key may be used at `now`."""
        return self.expires_at is None or now < self.expires_at


TokenRole = Literal["admin", "read"]


class OperatorToken(msgspec.Struct, frozen=True, kw_only=True):
    """An operator's token as the store knows it, see `tenants.keys.operator_tokens`.

    Its holder may do everything, or only read; where there is a `tenant`, of that one alone, and
    of none that has its id later: `generation` is that of the tenant.
    """

    id: str
    name: str
    role: TokenRole
    tenant: str | None
    created_at: float
    expires_at: float | None
    digest: bytes
    generation: str | None = None

    def is_live(self, now: float) -> bool:
        """Whether the token may be used at `now`."""
        return self.expires_at is None or now < self.expires_at


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """Whom a key belongs to: what a request may do follows from this and nothing else."""

    tenant: Tenant
    key: ApiKey
    group: ShareGroup | None = None


class SystemPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a registered system prompt. A version's text never changes.

    The active version is what a request gets that names none. A pinned prompt's active version
    keeps its blocks in memory. `adapter` names the one that is meant where a request names none.
    """

    name: str
    version: int
    text: str
    created_at: float
    active: bool = True
    pinned: bool = False
    adapter: str | None = None


class AdapterRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One version of an adapter (LoRA) of a tenant's or a share group's, which never changes.

    `digest` is of all in its files that acts; `num_bytes` are of the file of its weights; `rank` is
    the largest, and `targets` the last parts of the names of what it changes. It acts behind the
    tokens of its `invocation`, or everywhere where there are none. `files` names where its files
    are kept, in so many `pieces`. The active version is what is meant by the name alone; a pinned
    adapter's active version stays in memory.
    """

    owner: str
    name: str
    version: int
    digest: bytes
    num_bytes: int
    rank: int
    targets: tuple[str, ...]
    invocation: tuple[int, ...]
    created_at: float
    files: str
    pieces: int
    active: bool = False
    pinned: bool = False

    def called_by(self, tenant_id: str) -> str:
        """What a tenant's usage calls it: by its name, with its owner before that if it is another.

        No name has a slash, and no owner.
        """
        return self.name if self.owner == tenant_id else f"{self.owner}/{self.name}"


class PromptIndex(msgspec.Struct, frozen=True, kw_only=True):
    """The blocks of a prompt version, as one kind of engine hashes them.

    `engine` is the fingerprint of whatever changes block hashes besides the tokens.
    """

    name: str
    version: int
    engine: str
    token_count: int
    block_hashes: list[bytes]
    warmed_at: float


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A notice that something was written.

    `tenant_id` is the owner of what changed: a tenant's id, or for "prompts" and "adapters" perhaps
    a group's owner name. `name` is the prompt's or adapter's, or for "group" the group's id.
    `cancel` is no change of the store: whoever runs the tenant's response `name` is to end it.
    `forget` says that this response is deleted, or was replaced.
    `resync` says that notices may have been missed: look at everything again. It names no tenant.
    """

    kind: Literal[
        "tenant", "deleted", "keys", "prompts", "adapters", "group", "resync", "cancel", "forget"
    ]
    tenant_id: str = ""
    name: str = ""


def is_id(text: str) -> bool:
    """Whether `text` may name a tenant or a share group."""
    return _ID.fullmatch(text) is not None


def is_owner(owner: str) -> bool:
    """Whether `owner` may own prompts: a tenant's id, or a share group's owner name."""
    return is_id(owner.removeprefix("@"))


def check_id(text: str) -> None:
    """Raises `InvalidField` unless `text` may name a tenant or a share group."""
    if not is_id(text):
        raise InvalidField("id", "1 to 63 characters out of a-z, 0-9 and '-'")


def check_name(name: str) -> None:
    """Raises `InvalidField` unless `name` may be shown as the name of anything."""
    if not _NAME.fullmatch(name):
        raise InvalidField("name", "1 to 200 characters on one line, no control characters")


def end_of(lifetime_seconds: int | None) -> float | None:
    """When what is made now ends; `None`: never."""
    return None if lifetime_seconds is None else time.time() + lifetime_seconds


def check_expiry(expires_at: float | None) -> None:
    """Raises `InvalidField` unless a key or a token may end then."""
    if expires_at is not None and not time.time() < expires_at <= _END_OF_TIME:
        raise InvalidField("expires_at", "a time in the future, before the year 10000")


def check_tenant(tenant: Tenant) -> None:
    """Raises `InvalidField` that names the first field (as "limits.sockets") that cannot be."""
    check_id(tenant.id)
    check_name(tenant.name)
    if not (math.isfinite(tenant.weight) and 0 < tenant.weight <= MAX_WEIGHT):
        raise InvalidField("weight", f"greater than 0, and at most {MAX_WEIGHT:.0f}")
    _check_range("reserved_blocks", tenant.reserved_blocks, 0)
    if tenant.status not in ("active", "disabled"):
        raise InvalidField("status", "'active' or 'disabled'")
    if tenant.cache not in ("on", "off"):
        raise InvalidField("cache", "'on' or 'off'")
    if tenant.adapter is not None:
        check_prompt_name(tenant.adapter, "adapter")
    if tenant.unknown_fields not in (None, "refuse", "ignore"):
        raise InvalidField("unknown_fields", "'refuse', 'ignore' or nothing")
    for name in tenant.limits.__struct_fields__:
        limit = getattr(tenant.limits, name)
        if limit is not None:
            _check_range(f"limits.{name}", limit, 0 if name in _MAY_BE_ZERO else 1)


def is_prompt_name(name: str) -> bool:
    """Whether `name` may name a system prompt, or an adapter."""
    return _PROMPT_NAME.fullmatch(name) is not None


def check_prompt_name(name: str, field: str = "name") -> None:
    """Raises `InvalidField` unless `name` may name a system prompt, or an adapter."""
    if not is_prompt_name(name):
        raise InvalidField(field, "1 to 64 characters out of A-Z, a-z, 0-9, '_' and '-'")


def _check_range(field: str, value: int, minimum: int) -> None:
    if not minimum <= value <= MAX_LIMIT:
        raise InvalidField(field, f"{minimum} to {MAX_LIMIT}")


def with_new_secret(record: Rotated, secret: bytes, now: float) -> Rotated:
    """A tenant or a group under another namespace secret; what it had stays known.

    Raises `StoreConflict` for one that has too many.
    """
    former = (FormerSecret(secret=record.namespace_secret, replaced_at=now), *record.former_secrets)
    if len(former) > MAX_FORMER_SECRETS:
        raise StoreConflict(
            f"{record.owner!r} has {MAX_FORMER_SECRETS} former secrets; first have what they "
            "encrypt rewritten: partywall store rotate"
        )
    return msgspec.structs.replace(
        record, namespace_secret=secret, former_secrets=former, revision=record.revision + 1
    )
