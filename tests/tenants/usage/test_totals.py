"""What all tenants used, in one go: the sums of what each is told by day."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta

import pytest
import redis
from msgspec.structs import replace

from tenants.errors import InvalidField
from tenants.usage.meter import UsageMeter
from tenants.usage.totals import MAX_DAYS, TotalUsage
from tests.tenants.clock import Clock
from tests.tenants.conftest import Room

FIRST = date(2026, 3, 2)
TENANTS = ("acme", "nova", "umbra", "idle")
GROUPS = ("@law", "@guild")


def day(number: int) -> date:
    return FIRST + timedelta(days=number)


def noon(day: date) -> float:
    return datetime(day.year, day.month, day.day, 12, tzinfo=UTC).timestamp()


@pytest.fixture
def clock() -> Clock:
    return Clock(noon(FIRST))


@pytest.fixture
async def meter(room: Room, clock: Clock) -> UsageMeter:
    for group in GROUPS:
        await room.groups.create(group[1:])
    for name in TENANTS:
        await room.store.create_tenant(name)
    return UsageMeter(room.redis, clock=clock)


async def summed(meter: UsageMeter, tenant: str, since: date, until: date) -> TotalUsage:
    days = await meter.read(tenant, since, until)
    total = TotalUsage(tenant=tenant)
    for name in TotalUsage.__struct_fields__[1:-2]:
        setattr(total, name, sum(getattr(one, name) for one in days))
    total.cost_nanos = sum(one.cost_nanos for one in days)
    total.stream_milliseconds = sum(round(one.stream_seconds * 1000) for one in days)
    return total


async def test_each_total_is_the_sum_of_the_days_with_the_parts_of_groups(
    meter: UsageMeter, clock: Clock
) -> None:
    seeded = random.Random(30)
    for number in range(8):
        clock.now = noon(day(number))
        for name in TENANTS[:-1]:
            if seeded.random() < 0.7:
                counts = {"requests": 1, "prompt_tokens": seeded.randrange(9_000)}
                costs = {"stream_seconds": 0.125, "cost_nanos": seeded.randrange(10**17)}
                meter.add(name, **counts, **costs)  # type: ignore[arg-type]
            group = seeded.choice(GROUPS)
            used = {"computed_tokens": seeded.randrange(900), "cost_nanos": seeded.randrange(10**9)}
            is_used = seeded.random() < 0.6
            by = {"user": name, "used_tokens": seeded.randrange(1, 99)} if is_used else {}
            meter.add_shared(group, **used, **by)  # type: ignore[arg-type]
    await meter.flush()
    for since, until in ((day(0), day(7)), (day(2), day(5)), (day(6), day(6))):
        found = await meter.read_totals(TENANTS, GROUPS, since, until)
        wanted = [await summed(meter, name, since, until) for name in TENANTS]
        assert found == [one for one in wanted if one.is_any]
        assert found


async def test_who_has_left_a_group_or_is_another_by_now_has_what_is_theirs(
    meter: UsageMeter, room: Room
) -> None:
    for name in ("acme", "nova"):
        await room.store.update_tenant(name, lambda one: replace(one, share_group="law"))
        meter.add_shared("@law", computed_tokens=50, user=name, used_tokens=10)
    await meter.flush()
    await room.store.update_tenant("acme", lambda one: replace(one, share_group=None))
    await room.store.delete_tenant("nova")
    await room.store.create_tenant("nova")
    found = await meter.read_totals(TENANTS, GROUPS, FIRST, FIRST)
    assert {one.tenant: one.computed_tokens for one in found} == {"acme": 50}


async def test_what_no_partywall_put_there_keeps_nobody_elses_from_being_told(
    meter: UsageMeter, raw: redis.Redis
) -> None:
    meter.add("acme", requests=3)
    meter.add("nova", requests=2)
    await meter.flush()
    raw.hset("pw:{acme}:usage", f"{FIRST}:output_tokens", "many")
    raw.delete("pw:{nova}:usage")
    raw.set("pw:{nova}:usage", "nothing")
    found = await meter.read_totals(TENANTS, GROUPS, FIRST, FIRST)
    assert found == [TotalUsage(tenant="acme", requests=3)]


async def test_only_so_many_days_are_summed(meter: UsageMeter) -> None:
    last = FIRST + timedelta(days=MAX_DAYS - 1)
    assert await meter.read_totals(TENANTS, GROUPS, FIRST, last) == []
    for since, until, field in (
        (FIRST, last + timedelta(days=1), "since"),
        (date.min, date.max, "since"),
        (last, FIRST, "until"),
    ):
        with pytest.raises(InvalidField) as caught:
            await meter.read_totals(TENANTS, GROUPS, since, until)
        assert caught.value.field == field
