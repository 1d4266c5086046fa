from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import redis
from msgspec.structs import replace

from tenants.limits.limiter import Limiter, LimitExceeded
from tenants.records import Tenant, TenantLimits
from tests.tenants.conftest import Room

MakeTenant = Callable[..., Awaitable[Tenant]]


@pytest.fixture
def limiter(room: Room) -> Limiter:
    return Limiter(room.redis)


@pytest.fixture
def make(room: Room) -> MakeTenant:
    """Makes a tenant with the given limits."""

    async def made(tenant_id: str = "acme", **limits: int) -> Tenant:
        tenant, _ = await room.store.create_tenant(
            tenant_id, edit=lambda new: replace(new, limits=TenantLimits(**limits))
        )
        return tenant

    return made


async def exceeded(refused: Awaitable[object]) -> LimitExceeded:
    with pytest.raises(LimitExceeded) as caught:
        await refused
    return caught.value


def age(raw: redis.Redis, seconds: float) -> None:
    """Let so much time have passed for acme's buckets and leases."""
    for field in ("requests", "tokens", "used"):
        if raw.hexists("pw:{acme}:limits", field):
            raw.hincrby("pw:{acme}:limits", field, -int(seconds * 1e6))
    for name in ("streams", "sockets"):
        for member in raw.zrange(f"pw:{{acme}}:{name}", 0, -1):
            raw.zincrby(f"pw:{{acme}}:{name}", -int(seconds * 1e6), member)
