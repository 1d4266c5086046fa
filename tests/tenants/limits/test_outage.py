"""Limits while the store is away: an estimate of one process, and back to the store by itself."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tenants.errors import StoreUnavailable
from tenants.limits.limiter import Admission, Limiter
from tenants.limits.local_estimate import LocalEstimate
from tenants.records import Tenant, TenantLimits
from tests.tenants.clock import Clock
from tests.tenants.conftest import OpenRoom, Room, eventually, listening, take
from tests.tenants.limits.conftest import exceeded
from tests.tenants.server import Server


async def opened(open_room: OpenRoom, server: Server, **limits: int) -> tuple[Room, Tenant]:
    room = await open_room(server.url)
    tenant, _ = await room.store.create_tenant(
        "acme", edit=lambda new: replace(new, limits=TenantLimits(**limits))
    )
    return room, tenant


async def back(room: Room) -> None:
    """Until the store answers again."""

    async def answers() -> bool:
        try:
            await room.store.ping()
        except StoreUnavailable:
            return False
        return True

    await eventually(answers)


async def test_without_the_store_every_limit_holds_within_the_process(
    server: Server, open_room: OpenRoom
) -> None:
    limits = {"requests_per_minute": 4, "tokens_per_minute": 100, "tokens_per_day": 150}
    room, tenant = await opened(open_room, server, concurrent_streams=2, sockets=1, **limits)
    clock = Clock(20_000 * 86400.0)
    limiter = Limiter(room.redis, clock=clock)
    server.kill()
    first = await take(limiter, tenant, "r1", 100)
    assert first.tokens is not None
    assert first.tokens.remaining == 0
    assert (await exceeded(take(limiter, tenant, "r2", 10))).limit == "tokens"
    await limiter.settle(first, 50)
    await limiter.settle(first, 0)
    second = await take(limiter, tenant, "r2", 25)
    third = await take(limiter, tenant, "r3", 25)
    clock.now += 60
    assert (await exceeded(take(limiter, tenant, "r4", 10))).limit == "streams"
    await limiter.settle(second, 25)
    await limiter.settle(third, 25)
    error = await exceeded(take(limiter, tenant, "r4", 51))
    assert error.limit == "tokens_per_day"
    assert error.retry_after_seconds == 86400 - 60
    for number in range(3):  # and the one just refused
        await limiter.settle(await take(limiter, tenant, f"s{number}", 10), 0)
    error = await exceeded(take(limiter, tenant, "r5", 1))
    assert (error.limit, error.retry_after_seconds) == ("requests", 15)
    clock.now += 86400
    await take(limiter, tenant, "r6", 100)
    await limiter.open_socket(tenant, "s1")
    assert (await exceeded(limiter.open_socket(tenant, "s2"))).limit == "sockets"
    await limiter.close_socket(tenant, "s1")
    await limiter.open_socket(tenant, "s2")


async def test_what_was_used_before_an_outage_counts_in_it(
    server: Server, open_room: OpenRoom
) -> None:
    room, tenant = await opened(open_room, server, tokens_per_minute=1000, sockets=1)
    limiter = Limiter(room.redis)
    await limiter.settle(await take(limiter, tenant, "r1", 1000), 700)
    await limiter.open_socket(tenant, "s1")
    server.kill()
    await exceeded(take(limiter, tenant, "r2", 500))
    await exceeded(limiter.open_socket(tenant, "s2"))
    await take(limiter, tenant, "r2", 300)


async def test_an_outage_finds_each_replica_with_its_share(
    server: Server, open_room: OpenRoom
) -> None:
    room, tenant = await opened(open_room, server, tokens_per_minute=1000, requests_per_minute=2)
    other = await open_room(server.url)
    limiter = Limiter(room.redis)
    async with listening(room), listening(other):
        await limiter.renew([])
    server.kill()
    assert (await take(limiter, tenant, "r1", 400)).day is None
    assert (await exceeded(take(limiter, tenant, "r2", 100))).limit == "requests"


async def test_a_request_larger_than_a_replicas_share_is_served_when_the_bucket_is_full(
    server: Server, open_room: OpenRoom
) -> None:
    room, tenant = await opened(open_room, server, tokens_per_minute=1000)
    other = await open_room(server.url)
    clock = Clock()
    limiter = Limiter(room.redis, clock=clock)
    async with listening(room), listening(other):
        await limiter.renew([])
    server.kill()
    large = await take(limiter, tenant, "r1", 900)
    await exceeded(take(limiter, tenant, "r2", 1))
    await limiter.settle(large, 100)
    await exceeded(take(limiter, tenant, "r3", 900))
    await take(limiter, tenant, "r4", 400)
    clock.now += 60
    await take(limiter, tenant, "r5", 900)


async def test_what_was_used_in_an_outage_is_charged_once_when_the_store_is_back(
    server: Server, open_room: OpenRoom
) -> None:
    room, tenant = await opened(open_room, server, tokens_per_day=1000, concurrent_streams=9)
    limiter = Limiter(room.redis)
    before = await take(limiter, tenant, "r1", 500)
    server.kill()
    within = await take(limiter, tenant, "r2", 400)
    await limiter.settle(before, 100)
    await limiter.settle(within, 200)
    running = await take(limiter, tenant, "r3", 100)
    server.start()
    await back(room)
    for _ in range(3):
        await limiter.renew([running])
    await limiter.settle(running, 50)
    await limiter.settle(running, 50)
    another = Limiter(room.redis)  # knows only what the store knows: 350 are used
    await exceeded(take(another, tenant, "r4", 651))
    assert (await take(another, tenant, "r5", 650)).day is not None


async def test_an_answer_that_is_lost_takes_and_gives_nothing_twice(
    server: Server, open_room: OpenRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    room, tenant = await opened(open_room, server, tokens_per_day=1000)
    limiter = Limiter(room.redis)
    real = room.redis.run_script

    async def lose_the_answer(*arguments: object) -> object:
        await real(*arguments)  # type: ignore[arg-type]
        raise StoreUnavailable("timeout")

    monkeypatch.setattr(room.redis, "run_script", lose_the_answer)
    admission: Admission = await take(limiter, tenant, "r1", 600)
    assert admission.day is None
    await limiter.settle(admission, 100)
    monkeypatch.undo()
    await limiter.renew([])
    await exceeded(take(limiter, tenant, "r2", 901))
    known = await take(limiter, tenant, "r2", 900)
    monkeypatch.setattr(room.redis, "run_script", lose_the_answer)
    await limiter.settle(known, 400)
    monkeypatch.undo()
    await limiter.renew([])
    await exceeded(take(limiter, tenant, "r3", 501))
    await take(limiter, tenant, "r3", 500)


async def test_what_cannot_be_settled_in_time_is_let_go(
    server: Server, open_room: OpenRoom
) -> None:
    room, tenant = await opened(open_room, server, tokens_per_day=1000)
    clock = Clock()
    limiter = Limiter(room.redis, clock=clock)
    admission = await take(limiter, tenant, "r1", 600)
    server.kill()
    await limiter.settle(admission, 0)
    clock.now += 601
    server.start()
    await back(room)
    await limiter.renew([])
    await exceeded(take(limiter, tenant, "r2", 401))


def test_a_tenant_that_is_idle_for_a_day_is_forgotten() -> None:
    clock = Clock()
    limits = TenantLimits(tokens_per_minute=100, tokens_per_day=100)
    local = LocalEstimate(clock)
    for name in ("acme", "umbra"):
        local.note_admitted(name, limits, ["r1"])
        local.note_reserved(name, limits, {"r1": 100})
    local.note_settled("acme", "r1", 100)
    local.forget_idle()
    assert local.reserve("acme", limits, {"r2": 1}, 1).limited
    clock.now += 86400
    local.forget_idle()
    assert sorted(local._tenants) == ["umbra"]  # it has a request that runs
