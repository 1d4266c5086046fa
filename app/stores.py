"""The tenant store as the service and the command line open it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from tenants.connection import open_redis
from tenants.conversations import Conversations
from tenants.embedded import EmbeddedStore, attach_or_start
from tenants.pepper import load_or_create_pepper
from tenants.records import Tenant
from tenants.store import TenantStore
from tenants.system_prompts import SystemPrompts

DEMO_TENANT = "demo"


@dataclass(frozen=True)
class Stores:
    """Everything that is kept in one Redis."""

    tenants: TenantStore
    prompts: SystemPrompts
    conversations: Conversations


class PublicTenantStore(TenantStore):
    """Tenants as a network may use them: the demo tenant is none of them."""

    async def authenticate(self, api_key: str) -> Tenant | None:
        """See `TenantStore.authenticate`."""
        tenant = await super().authenticate(api_key)
        return None if tenant is not None and tenant.id == DEMO_TENANT else tenant


@contextlib.asynccontextmanager
async def open_stores(
    redis_url: str | None,
    data_dir: Path,
    pepper_file: Path | None,
    *,
    owner: bool,
    tenant_store: type[TenantStore] = TenantStore,
) -> AsyncIterator[Stores]:
    """The store at `redis_url`, else the embedded one of `data_dir`.

    The service owns its embedded store; a command borrows it from a running service or starts it
    for as long as it takes. Raises `StoreError`.
    """
    async with contextlib.AsyncExitStack() as stack:
        if redis_url is None and owner:
            redis_url = stack.enter_context(EmbeddedStore(data_dir)).url
        elif redis_url is None:
            redis_url = stack.enter_context(attach_or_start(data_dir))
        redis = await open_redis(redis_url)
        stack.push_async_callback(redis.close)
        tenants = tenant_store(redis, load_or_create_pepper(data_dir, pepper_file))
        await tenants.check_pepper()
        yield Stores(tenants, SystemPrompts(redis), Conversations(redis))
