"""The stores as a start of the service opens them."""

from __future__ import annotations

from pathlib import Path

from app.settings import load_settings
from app.stores import DEMO_TENANT, demo_tenant, open_stores
from tenants.errors import StoreUnavailable
from tenants.records import Tenant
from tenants.store import TenantStore


class BusyStore(TenantStore):
    """It answers the second time that it is asked, and does what it was asked the first time."""

    asked = 0

    async def create_tenant(self, *arguments: object, **named: object) -> tuple[Tenant, str]:
        created = await super().create_tenant(*arguments, **named)  # type: ignore[arg-type]
        raise StoreUnavailable(f"Redis does not answer: {created[0].id}")

    async def list_tenants(
        self, after: str | None = None, limit: int | None = None
    ) -> list[Tenant]:
        self.asked += 1
        if self.asked == 1:
            raise StoreUnavailable("Redis does not answer: timeout")
        return await super().list_tenants(after, limit)


async def test_a_start_waits_for_a_store_that_does_not_answer_at_once(tmp_path: Path) -> None:
    settings = load_settings(data_dir=tmp_path)
    async with open_stores(settings, owner=True, tenant_store=BusyStore) as stores:
        # That the tenant is there is found, though nobody was told; its key is another matter.
        assert await demo_tenant(stores.tenants, first_start=True) == (DEMO_TENANT, None)
    async with open_stores(settings, owner=True) as stores:
        assert [tenant.id for tenant in await stores.tenants.list_tenants()] == [DEMO_TENANT]
