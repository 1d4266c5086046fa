"""Streams and sockets count while they run, or until nobody renews what they hold."""

from __future__ import annotations

import redis

from tenants.limits.limiter import Limiter
from tests.tenants.conftest import Room, take
from tests.tenants.limits.conftest import MakeTenant, age, exceeded


async def test_streams_count_while_they_run(limiter: Limiter, make: MakeTenant) -> None:
    tenant = await make(concurrent_streams=2)
    first = await take(limiter, tenant, "r1", 10)
    await take(limiter, tenant, "r2", 10)
    error = await exceeded(take(limiter, tenant, "r3", 10))
    assert error.limit == "streams"
    await limiter.settle(first, 10)
    await take(limiter, tenant, "r3", 10)


async def test_a_lease_lasts_as_long_as_it_is_renewed(
    limiter: Limiter, make: MakeTenant, raw: redis.Redis
) -> None:
    tenant = await make(concurrent_streams=1, sockets=1)
    running = await take(limiter, tenant, "r1", 10)
    await limiter.open_socket(tenant, "s1")
    for _ in range(3):
        age(raw, 20)
        await limiter.renew([running])
    await exceeded(take(limiter, tenant, "r2", 10))
    await exceeded(limiter.open_socket(tenant, "s2"))
    age(raw, 31)  # the replica has died
    await take(limiter, tenant, "r2", 10)
    await limiter.open_socket(tenant, "s2")


async def test_an_expired_lease_can_still_be_settled(
    limiter: Limiter, make: MakeTenant, raw: redis.Redis
) -> None:
    tenant = await make(tokens_per_day=100, concurrent_streams=1)
    late = await take(limiter, tenant, "r1", 100)
    age(raw, 31)
    await limiter.settle(late, 40)
    await take(limiter, tenant, "r2", 60)


async def test_a_settled_request_is_not_brought_back_by_a_late_heartbeat(
    limiter: Limiter, make: MakeTenant
) -> None:
    tenant = await make(concurrent_streams=1)
    admission = await take(limiter, tenant, "r1", 10)
    await limiter.settle(admission, 10)
    await limiter.renew([admission])
    await take(limiter, tenant, "r2", 10)


async def test_sockets_count_while_they_are_open(
    limiter: Limiter, make: MakeTenant, room: Room
) -> None:
    tenant = await make(sockets=2)
    other = Limiter(room.redis)
    await limiter.open_socket(tenant, "s1")
    await other.open_socket(tenant, "s2")
    error = await exceeded(limiter.open_socket(tenant, "s3"))
    assert (error.limit, error.retry_after_seconds) == ("sockets", 1)
    await limiter.close_socket(tenant, "s3")
    await exceeded(other.open_socket(tenant, "s3"))
    await other.close_socket(tenant, "s2")
    await limiter.open_socket(tenant, "s3")


async def test_a_tenant_that_may_have_no_socket_gets_none(
    limiter: Limiter, make: MakeTenant
) -> None:
    await exceeded(limiter.open_socket(await make(sockets=0), "s1"))
