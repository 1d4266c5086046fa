"""The tenant store as the service and the command line open it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from app.settings import Settings
from app.settings.kinds import paths
from tenants.adapters.adapters import Adapters
from tenants.adapters.room import MostAdapters
from tenants.at_rest.pepper import Peppers, load_peppers, pepper_path
from tenants.backup import Backup
from tenants.demonstrations import Demonstrations
from tenants.errors import StoreUnavailable, TenantExists
from tenants.groups import ShareGroups
from tenants.idempotency import Idempotency
from tenants.keyring import Keyring
from tenants.keys.operator_tokens import OperatorTokens
from tenants.limits.budgets import Budgets
from tenants.limits.limiter import NO_LIMITS, Limiter
from tenants.prompts.system_prompts import SystemPrompts
from tenants.records import Principal, TenantLimits
from tenants.rotation.rotation import Rotation
from tenants.rotation.sealing import Sealing
from tenants.storage import slots
from tenants.storage.connection import GuardedRedis, open_redis
from tenants.storage.embedded import EmbeddedStore, attach_or_start
from tenants.storage.outbox import Outbox
from tenants.storage.schema import check_schema
from tenants.store import TenantStore
from tenants.stored.files import StoredFiles
from tenants.stored.objects import EditedObjects, StoredObjects, SuspendedResponses
from tenants.stored.running import RunningResponses
from tenants.usage.journal import FileJournal, Journal
from tenants.usage.meter import UsageMeter
from tenants.writes.audit import MAX_ENTRIES, UNTRIMMED, Audit, AuditKeeper

DEMO_TENANT = "demo"
_PATIENCE_SECONDS = 30.0
_RETRY_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class Stores:
    """Everything that is kept in one Redis."""

    tenants: TenantStore
    operator_tokens: OperatorTokens
    groups: ShareGroups
    prompts: SystemPrompts
    adapters: Adapters
    audit: Audit
    audit_keeper: AuditKeeper
    idempotency: Idempotency
    responses: StoredObjects
    conversations: EditedObjects
    completions: EditedObjects
    files: StoredFiles
    suspended: SuspendedResponses
    running: RunningResponses
    rotation: Rotation
    sealing: Sealing
    backup: Backup
    limiter: Limiter
    budgets: Budgets
    outbox: Outbox
    usage: UsageMeter
    demonstrations: Demonstrations

    @classmethod
    def over(
        cls,
        redis: GuardedRedis,
        peppers: Peppers,
        *,
        tenant_store: type[TenantStore] = TenantStore,
        audit_max_entries: int = MAX_ENTRIES,
        default_limits: TenantLimits = NO_LIMITS,
        tells_budgets: bool = False,
        journal: Journal | None = None,
        audit_file: Path | None = None,
    ) -> Stores:
        """The stores of one service process or command.

        Where it `tells_budgets`, the outbox has each that is reached. Usage that Redis has not
        taken is in `journal`. What the audit has goes to `audit_file` before it may go.
        """
        kept_entries = audit_max_entries
        audit_max_entries = kept_entries if audit_file is None else UNTRIMMED
        most = default_limits.stored_bytes
        limiter, outbox = Limiter(redis, defaults=default_limits), Outbox(redis)
        keyring = Keyring(redis, peppers)
        tenants = tenant_store(redis, peppers, audit_max_entries=audit_max_entries)
        prompts = SystemPrompts(
            redis,
            keyring,
            audit_max_entries=audit_max_entries,
            most_bytes=partial(_most_bytes, tenants, default_limits),
        )
        return cls(
            tenants=tenants,
            operator_tokens=OperatorTokens(redis, peppers, audit_max_entries=audit_max_entries),
            groups=ShareGroups(redis, peppers, audit_max_entries=audit_max_entries),
            prompts=prompts,
            adapters=Adapters(
                redis,
                keyring,
                audit_max_entries=audit_max_entries,
                most=partial(_most_adapters, tenants, default_limits),
            ),
            audit=Audit(redis),
            audit_keeper=AuditKeeper(redis, kept_entries, audit_file),
            idempotency=Idempotency(redis, peppers),
            responses=StoredObjects(redis, keyring, "response", most),
            conversations=EditedObjects(redis, keyring, "conversation", most),
            completions=EditedObjects(redis, keyring, "completion", most),
            files=StoredFiles(redis, keyring, default_limits),
            suspended=SuspendedResponses(redis, keyring, most),
            running=RunningResponses(redis, keyring),
            rotation=Rotation(redis, peppers, keyring, tenants, prompts),
            sealing=Sealing(redis, peppers, keyring),
            backup=Backup(redis, peppers),
            limiter=limiter,
            budgets=Budgets(redis, limiter, outbox=outbox if tells_budgets else None),
            outbox=outbox,
            usage=UsageMeter(redis, journal),
            demonstrations=Demonstrations(redis),
        )


async def _most_bytes(tenants: TenantStore, defaults: TenantLimits, owner: str) -> int | None:
    """How much may be stored of an owner."""
    return (await _limits(tenants, defaults, owner)).stored_bytes


async def _most_adapters(tenants: TenantStore, defaults: TenantLimits, owner: str) -> MostAdapters:
    """How many adapters an owner may have."""
    limits = await _limits(tenants, defaults, owner)
    return MostAdapters(limits.adapters, limits.adapter_bytes)


async def _limits(tenants: TenantStore, defaults: TenantLimits, owner: str) -> TenantLimits:
    """What holds for an owner; a share group has the defaults."""
    if owner.startswith("@"):
        return defaults
    return (await tenants.get_tenant(owner)).limits.over(defaults)


class PublicTenantStore(TenantStore):
    """Tenants as a network may use them: the demo tenant is none of them."""

    async def authenticate(self, api_key: str) -> Principal | None:
        """See `TenantStore.authenticate`."""
        principal = await super().authenticate(api_key)
        if principal is not None and principal.tenant.id == DEMO_TENANT:
            return None
        return principal


def has_pepper(settings: Settings) -> bool:
    """Whether there is one; a start makes one where there is none."""
    return settings.pepper_file is not None or pepper_path(settings.data_dir).exists()


def known_peppers(settings: Settings) -> Peppers:
    """The pepper, made if there is none, and the others. Raises `InvalidField` and `OSError`."""
    others = paths(settings.other_pepper_files)
    return load_peppers(settings.data_dir, settings.pepper_file, others)


@contextlib.asynccontextmanager
async def open_stores(
    settings: Settings,
    *,
    owner: bool,
    tenant_store: type[TenantStore] = TenantStore,
    is_restored: bool = False,
    is_sealed: bool = True,
) -> AsyncIterator[Stores]:
    """The stores at `redis_url`, else in the embedded store of `data_dir`.

    The service owns its embedded store; a command borrows it from a running service or starts it
    for as long as it takes. Only the service has a journal of its usage. One that `is_restored` is
    to have the pepper of its backup, whatever pepper was tried on it before. One that is not known
    to be sealed may have records of an older version. Raises `StoreError`.
    """
    async with contextlib.AsyncExitStack() as stack:
        url = settings.store_url
        if url is None and owner:
            embedded = EmbeddedStore(settings.data_dir, max_memory_bytes=settings.store_memory)
            url = stack.enter_context(embedded).url
        elif url is None:
            url = stack.enter_context(attach_or_start(settings.data_dir))
        redis = await open_redis(url)
        stack.push_async_callback(redis.close)
        journal = FileJournal(settings.data_dir / "usage") if owner else None
        stores = Stores.over(
            redis,
            known_peppers(settings),
            tenant_store=tenant_store,
            audit_max_entries=settings.audit_max_entries,
            default_limits=settings.default_limits,
            tells_budgets=settings.webhook_url is not None,
            journal=journal,
            audit_file=settings.audit_file,
        )
        stack.callback(stores.usage.close)
        await check_schema(redis, accepts_older=is_restored or not is_sealed)
        if not is_restored:
            await stores.tenants.check_pepper()
        if owner:
            await slots.finish_all(redis)
        yield stores


async def demo_tenant(tenants: TenantStore, first_start: bool) -> tuple[str | None, str | None]:
    """The demo tenant's id, if there is one, and its API key where this start created it.

    It is created on the first start, or in an empty store: an operator who deleted it later does
    not want it back. A store that does not answer at once is asked again, since a start on a busy
    machine should not fail; raises `StoreUnavailable` after half a minute.
    """
    give_up = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            return await _demo_tenant(tenants, first_start)
        except StoreUnavailable:
            if time.monotonic() > give_up:
                raise
        except TenantExists:  # by an attempt that was not answered
            return DEMO_TENANT, None
        await asyncio.sleep(_RETRY_SECONDS)


async def _demo_tenant(tenants: TenantStore, first_start: bool) -> tuple[str | None, str | None]:
    ids = [tenant.id for tenant in await tenants.list_tenants()]
    if DEMO_TENANT in ids:
        return DEMO_TENANT, None
    if ids and not first_start:
        return None, None
    _, api_key = await tenants.create_tenant(DEMO_TENANT)
    return DEMO_TENANT, api_key
