"""Budgets of a month: never overdrawn, by however many processes, and back in the next month."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, date, datetime

import pytest
from msgspec.structs import replace

from tenants import redis_keys
from tenants.limits import budgets as module
from tenants.limits.budgets import Budgets, Hold
from tenants.limits.limiter import Limiter
from tenants.limits.verdict import LimitExceeded
from tenants.records import Tenant, TenantLimits
from tenants.storage.outbox import Outbox
from tenants.usage.meter import UsageMeter
from tenants.usage.prices import Prices
from tenants.usage.usage import DayUsage
from tests.tenants.clock import Clock
from tests.tenants.conftest import OpenRoom, Room
from tests.tenants.server import Server

PRICES = Prices(currency="EUR", input=1, cached=1, written=1, output=1)
NOVEMBER = datetime(2026, 11, 29, 12, tzinfo=UTC).timestamp()


class Process:
    """One service process' part of it."""

    def __init__(self, room: Room, clock: Clock, outbox: Outbox | None = None) -> None:
        self.meter = UsageMeter(room.redis, clock=clock)
        self.budgets = Budgets(room.redis, Limiter(room.redis), clock, outbox)

    async def take(self, tenant: Tenant, name: str, nanos: int) -> tuple[Hold, str | None]:
        hold = self.budgets.hold(tenant, name, nanos)
        assert hold is not None
        return hold, await self.budgets.reserve(tenant, [hold], PRICES)

    def settle(self, hold: Hold, nanos: int) -> None:
        self.meter.add(hold.tenant_id, cost_nanos=nanos)
        self.meter.release(hold.tenant_id, hold.name)
        self.budgets.settle(hold, nanos)


@pytest.fixture
def clock() -> Clock:
    return Clock(NOVEMBER)


async def tenant_of(room: Room, **limits: int) -> Tenant:
    tenant, _ = await room.store.create_tenant(
        "acme", edit=lambda new: replace(new, limits=TenantLimits(**limits))
    )
    return tenant


async def refused(process: Process, tenant: Tenant, nanos: int) -> LimitExceeded:
    with pytest.raises(LimitExceeded) as caught:
        await process.take(tenant, "refused", nanos)
    assert caught.value.limit == "budget"
    return caught.value


async def test_what_runs_and_what_was_spent_leave_the_rest_until_the_next_month(
    room: Room, clock: Clock
) -> None:
    process = Process(room, clock)
    tenant = await tenant_of(room, hard_budget_micros=10)
    first, _ = await process.take(tenant, "a", 6000)
    error = await refused(process, tenant, 4001)
    assert error.retry_after_seconds == 36 * 3600
    assert "0.000010000 EUR for 2026-11" in str(error)
    assert "2026-12-01T00:00:00Z" in str(error)
    process.settle(first, 5000)
    await refused(process, tenant, 4001)  # it is still reserved: nothing is booked yet
    await process.meter.flush()
    await process.take(tenant, "b", 5000)
    await refused(process, tenant, 1)
    clock.now += 2 * 86400
    await process.take(tenant, "c", 5000)  # what runs on counts to the month that it is booked in


async def test_a_spent_soft_budget_is_a_warning(room: Room, clock: Clock) -> None:
    process, tenant = Process(room, clock), await tenant_of(room, soft_budget_micros=1)
    hold, warning = await process.take(tenant, "a", 10**9)
    assert warning is None
    process.settle(hold, 1000)
    await process.meter.flush()
    _, warning = await process.take(tenant, "b", 10**9)
    assert warning == "the soft budget of 0.000001000 EUR for 2026-11 is spent"
    assert process.budgets.hold(replace(tenant, limits=TenantLimits()), "c", 1) is None


async def test_a_budget_counts_as_told_only_once_there_was_room_for_the_message(
    room: Room, clock: Clock
) -> None:
    outbox = Outbox(room.redis, max_messages=1)
    process, tenant = Process(room, clock, outbox), await tenant_of(room, hard_budget_micros=1)
    await outbox.put("another", b"{}")
    await refused(process, tenant, 1001)
    await outbox.done("another")
    assert await outbox.take() is None
    await refused(process, tenant, 1001)
    message = await outbox.take()
    assert message is not None
    assert message.id == f"budget-acme-{tenant.created_at:.0f}-2026-11-hard-1"
    await outbox.done(message.id)
    await refused(process, tenant, 1001)
    assert await outbox.take() is None
    new = replace(tenant, created_at=tenant.created_at + 1)
    # As deleting the tenant does.
    await room.redis.execute("DEL", redis_keys.budget_told("acme"), redis_keys.generation("acme"))
    await refused(process, new, 1001)
    other = await outbox.take()
    assert other is not None
    assert other.id != message.id


async def test_the_part_of_a_groups_prompts_counts(room: Room, clock: Clock) -> None:
    await room.groups.create("law")
    process, tenant = Process(room, clock), await tenant_of(room, hard_budget_micros=10)
    process.meter.add_shared("@law", cost_nanos=9000, user="acme", used_tokens=5)
    await process.meter.flush()
    await refused(process, tenant, 1001)
    await process.take(tenant, "a", 1000)


async def test_several_processes_never_spend_more_than_there_is(
    room: Room, redis_url: str, open_room: OpenRoom, clock: Clock
) -> None:
    tenant = await tenant_of(room, hard_budget_micros=100)
    processes = [Process(await open_room(redis_url), clock) for _ in range(3)]
    rng, spent, refusals = random.Random(5), 0, 0

    async def serve(process: Process, number: int) -> None:
        nonlocal spent, refusals
        for turn in range(12):
            most = rng.randrange(1, 9000)
            try:
                hold, _ = await process.take(tenant, f"{number}.{turn}", most)
            except LimitExceeded:
                refusals += 1
                continue
            await asyncio.sleep(0)
            cost = rng.randrange(most + 1)
            spent += cost
            process.settle(hold, cost)
            if rng.random() < 0.5:
                await process.meter.flush()

    await asyncio.gather(*(serve(one, index) for index in range(4) for one in processes))
    for process in processes:
        await process.meter.flush()
    assert refusals > 0
    assert 80_000 < spent <= 100_000
    await processes[0].take(tenant, "rest", 100_000 - spent)
    await refused(processes[1], tenant, 1)


async def test_reservations_of_a_dead_process_are_spent_unless_they_are_renewed(
    room: Room, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LEASE_SECONDS", 0.2)
    process, tenant = Process(room, clock), await tenant_of(room, hard_budget_micros=10)
    hold, _ = await process.take(tenant, "a", 10_000)
    monkeypatch.setattr(module, "LEASE_SECONDS", 60.0)
    await process.budgets.renew([hold])
    await asyncio.sleep(0.25)
    await refused(process, tenant, 1)
    monkeypatch.setattr(module, "LEASE_SECONDS", 0.0)
    await process.budgets.renew([hold])
    await asyncio.sleep(0.002)
    await refused(process, tenant, 1)
    (today,) = await usage_of(process)
    assert today.cost_nanos == 10_000
    assert await room.redis.execute("ZCARD", redis_keys.spending("acme")) == 0
    clock.now += 2 * 86400  # and nothing of the next month
    await process.take(tenant, "b", 10_000)


async def test_what_an_expired_reservation_truly_cost_takes_the_place_of_what_it_reserved(
    room: Room, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LEASE_SECONDS", 0.0)
    process, tenant = Process(room, clock), await tenant_of(room, hard_budget_micros=10)
    hold, _ = await process.take(tenant, "a", 10_000)
    await asyncio.sleep(0.002)
    monkeypatch.setattr(module, "LEASE_SECONDS", 60.0)
    for _ in range(2):
        assert sum(day.cost_nanos for day in await usage_of(process)) == 10_000
    process.settle(hold, 700)
    await process.meter.flush()
    for _ in range(2):
        assert sum(day.cost_nanos for day in await usage_of(process)) == 700
        await process.meter.flush()
    await process.take(tenant, "b", 9300)
    await refused(process, tenant, 1)


async def usage_of(process: Process) -> list[DayUsage]:
    return await process.meter.read("acme", date.min, date.max)


async def test_without_the_store_a_process_gives_out_what_was_left_when_it_last_knew(
    server: Server, open_room: OpenRoom, clock: Clock
) -> None:
    room = await open_room(server.url)
    process, tenant = Process(room, clock), await tenant_of(room, hard_budget_micros=10)
    hold, _ = await process.take(tenant, "a", 4000)
    server.kill()
    await refused(process, tenant, 6001)
    other, _ = await process.take(tenant, "b", 6000)
    await refused(process, tenant, 1)
    process.settle(hold, 1000)
    process.settle(other, 6000)
    await process.take(tenant, "c", 3000)
    await refused(process, tenant, 1)
    clock.now += 2 * 86400
    await process.take(tenant, "d", 10_000)
    unknown = Process(room, clock)
    await unknown.take(tenant, "e", 10_000)
    await refused(unknown, tenant, 1)


async def test_a_new_tenant_of_a_deleted_ones_name_has_spent_nothing(
    server: Server, open_room: OpenRoom, clock: Clock
) -> None:
    room = await open_room(server.url)
    await room.groups.create("law")
    process, tenant = Process(room, clock), await tenant_of(room, hard_budget_micros=10)
    process.meter.add_shared("@law", cost_nanos=9000, user="acme", used_tokens=5)
    await process.meter.flush()
    await process.take(tenant, "a", 1000)
    await room.store.delete_tenant("acme")
    tenant = await tenant_of(room, hard_budget_micros=10)
    hold, _ = await process.take(tenant, "b", 10_000)
    process.settle(hold, 10_000)
    await process.meter.flush()
    await refused(process, tenant, 1)
    await room.store.delete_tenant("acme")
    tenant = await tenant_of(room, hard_budget_micros=10)
    server.kill()
    await process.take(tenant, "c", 10_000)
    await refused(process, tenant, 1)


async def test_what_nobody_here_wrote_is_neither_spent_nor_reserved(
    room: Room, clock: Clock
) -> None:
    process, tenant = Process(room, clock), await tenant_of(room, hard_budget_micros=1)
    spending, usage = redis_keys.spending("acme"), redis_keys.usage("acme")
    await room.redis.execute("ZADD", spending, 0, "junk", 2**50, b"\xff", 2**50, "junk:x")
    for field in ("junk", b"\xff", "2026-11-28:cost_nanos", "2026-02-30:requests", "2026-11-28:"):
        await room.redis.execute("HSET", usage, field, "junk")
    hold, _ = await process.take(tenant, "request", 900)
    assert (await refused(process, tenant, 200)).limit == "budget"
    process.settle(hold, 300)
    await process.meter.flush()
    days = await process.meter.read("acme", date.min, date.max)
    assert [day.cost_nanos for day in days if day.cost_nanos] == [300]
