"""Whose limits hold: a tenant's own or the service's, and none of another tenant's."""

from __future__ import annotations

import pytest
import redis
from msgspec.structs import replace

from tenants.errors import StoreUnavailable
from tenants.limits.limiter import Limiter, Quota
from tenants.records import UNLIMITED, TenantLimits
from tests.tenants.conftest import Room, admit, everything, reserve, take
from tests.tenants.limits.conftest import MakeTenant, exceeded

DEFAULTS = TenantLimits(requests_per_minute=3, concurrent_streams=2, sockets=1)


async def test_a_tenant_without_limits_costs_no_round_trip(
    limiter: Limiter, room: Room, make: MakeTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = await make(context_tokens=10, blocks=5)
    monkeypatch.setattr(room.redis, "execute", None)
    admission = await take(limiter, tenant, "r1", 10**9)
    assert (admission.requests, admission.tokens) == (None, None)
    await limiter.settle(admission, 5)
    await limiter.open_socket(tenant, "s1")
    await limiter.close_socket(tenant, "s1")


async def test_one_tenants_use_is_not_anothers(limiter: Limiter, make: MakeTenant) -> None:
    acme = await make("acme", tokens_per_minute=100, concurrent_streams=1)
    umbra = await make("umbra", tokens_per_minute=100, concurrent_streams=1)
    await take(limiter, acme, "r1", 100)
    await exceeded(take(limiter, acme, "r2", 100))
    await take(limiter, umbra, "r2", 100)


async def test_a_deleted_tenant_leaves_nothing_of_its_limits(
    limiter: Limiter, make: MakeTenant, room: Room, raw: redis.Redis
) -> None:
    tenant = await make(tokens_per_minute=100, concurrent_streams=1, sockets=1)
    admission = await take(limiter, tenant, "r1", 100)
    await limiter.open_socket(tenant, "s1")
    await room.store.delete_tenant("acme")
    await limiter.settle(admission, 5)
    await limiter.settle(replace(admission, request_id="r0", day=None), 5)
    await take(limiter, tenant, "r2", 100)
    await limiter.open_socket(tenant, "s2")
    assert not [key for key in everything(raw) if b"{acme}" in key]


async def test_a_raised_limit_counts_from_the_next_request(
    limiter: Limiter, make: MakeTenant
) -> None:
    tenant = await make(tokens_per_minute=100)
    await take(limiter, tenant, "r1", 100)
    raised = replace(tenant, limits=TenantLimits(tokens_per_minute=100, tokens_per_day=150))
    await exceeded(take(limiter, raised, "r2", 51))
    await take(limiter, replace(tenant, limits=TenantLimits()), "r3", 10**6)


async def test_a_tenant_without_limits_has_the_services_defaults_and_costs_no_round_trip(
    room: Room, make: MakeTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = await make(context_tokens=10)
    limiter = Limiter(room.redis, defaults=DEFAULTS)
    monkeypatch.setattr(room.redis, "execute", None)
    first = await take(limiter, tenant, "r1", 10**9)
    assert first.requests is not None
    assert (first.requests.limit, first.requests.remaining) == (3, 2)
    await take(limiter, tenant, "r2", 10)
    error = await exceeded(admit(limiter, tenant, "r3"))
    assert (error.limit, error.retry_after_seconds) == ("streams", 1)
    await limiter.settle(first, 5)
    await take(limiter, tenant, "r3", 10)
    error = await exceeded(admit(limiter, tenant, "r4"))
    assert error.limit == "requests"
    assert error.retry_after_seconds is not None
    await limiter.open_socket(tenant, "s1")
    assert (await exceeded(limiter.open_socket(tenant, "s2"))).limit == "sockets"
    await limiter.close_socket(tenant, "s1")
    await limiter.open_socket(tenant, "s2")


async def test_a_tenants_own_limits_go_before_the_defaults(room: Room, make: MakeTenant) -> None:
    limiter = Limiter(room.redis, defaults=DEFAULTS)
    free = await make(
        "free",
        requests_per_minute=UNLIMITED,
        concurrent_streams=UNLIMITED,
        sockets=UNLIMITED,
    )
    wide = await make("wide", requests_per_minute=5, sockets=2)
    for number in range(10):
        assert (await admit(limiter, free, f"r{number}")).requests is None
        await limiter.open_socket(free, f"s{number}")
    running = [await admit(limiter, wide, f"w{number}") for number in range(2)]
    assert (await exceeded(admit(limiter, wide, "w2"))).limit == "streams"
    await limiter.settle(running[0], 0)
    assert (await admit(limiter, wide, "w2")).requests == Quota(5, 2, pytest.approx(36, abs=2))
    for number in range(2):
        await limiter.open_socket(wide, f"s{number}")
    await exceeded(limiter.open_socket(wide, "s2"))


async def test_tokens_of_a_deleted_tenant_are_not_charged_to_the_new_one(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = TenantLimits(tokens_per_minute=100)
    old, _ = await room.store.create_tenant("acme", edit=lambda one: replace(one, limits=limited))
    limiter = Limiter(room.redis)
    admission = await admit(limiter, old, "a")
    with monkeypatch.context() as patched:  # as in an outage: it was taken here alone

        async def away(*_: object) -> object:
            raise StoreUnavailable("away")

        patched.setattr(room.redis, "run_script", away)
        admission = await reserve(limiter, admission, 100)
    await room.store.delete_tenant("acme")
    new, _ = await room.store.create_tenant("acme", edit=lambda one: replace(one, limits=limited))
    await limiter.settle(admission, 100)
    assert (await take(Limiter(room.redis), new, "b", 100)).taken_tokens == 100
