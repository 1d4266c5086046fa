"""What a share group's members are charged for its prompts: all of it, and by their use."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, date, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tenants.errors import StoreConflict
from tenants.usage.meter import UsageMeter
from tenants.usage.usage import USED_BY, DayUsage, charges, split
from tests.tenants.clock import Clock
from tests.tenants.conftest import OpenRoom, Room, cut_off

MONDAY, TUESDAY = date(2026, 3, 2), date(2026, 3, 3)
MEMBERS = ("acme", "nova", "umbra")
amounts = st.integers(0, 10**18)
uses = st.dictionaries(st.sampled_from(MEMBERS), st.integers(0, 10**12))


def noon(day: date) -> float:
    return datetime(day.year, day.month, day.day, 12, tzinfo=UTC).timestamp()


@given(amounts, uses)
def test_the_parts_sum_up_to_the_amount_and_each_is_its_share_but_for_less_than_one(
    amount: int, uses: dict[str, int]
) -> None:
    parts, total = split(amount, uses), sum(uses.values())
    if not total:
        assert parts == {}
        return
    assert sum(parts.values()) == amount
    for name, use in uses.items():
        assert -total < parts[name] * total - amount * use < total


days = st.dictionaries(
    st.dates(date(2026, 1, 1), date(2026, 1, 9)).map(str), st.tuples(amounts, amounts, uses)
)


@given(days)
def test_the_members_are_charged_what_was_computed_up_to_the_last_day_of_use(
    days: dict[str, tuple[int, int, dict[str, int]]],
) -> None:
    counted = {
        day: {"computed_tokens": computed, "cost": cost}
        | {f"{USED_BY}{member}": use for member, use in used.items()}
        for day, (computed, cost, used) in days.items()
    }
    last = max((day for day, (_, _, used) in days.items() if any(used.values())), default="")
    charged: Counter[str] = Counter()
    for member, by_day in charges(counted, ["computed_tokens", "cost"]).items():
        for day, part in by_day.items():
            assert days[day][2][member] > 0
            charged.update(part)
    computed = sum(computed for day, (computed, _, _) in days.items() if day <= last)
    assert charged["computed_tokens"] == computed
    assert charged["cost"] == sum(cost for day, (_, cost, _) in days.items() if day <= last)


@pytest.fixture
def clock() -> Clock:
    return Clock(noon(MONDAY))


@pytest.fixture
async def meter(room: Room, clock: Clock) -> UsageMeter:
    await room.groups.create("law")
    for name in MEMBERS:
        await room.store.create_tenant(name)
        await join(room, name, "law")
    return UsageMeter(room.redis, clock=clock)


async def join(room: Room, tenant_id: str, group: str | None) -> None:
    await room.store.update_tenant(tenant_id, lambda tenant: replace(tenant, share_group=group))


async def computed(meter: UsageMeter, tenant_id: str) -> dict[date, int]:
    days = await meter.read(tenant_id, date.min, date.max)
    return {day.day: day.computed_tokens for day in days}


async def test_what_is_warmed_for_a_group_is_charged_to_who_uses_it(
    meter: UsageMeter, room: Room, redis_url: str, open_room: OpenRoom, clock: Clock
) -> None:
    meter.add_shared("@law", computed_tokens=1001)
    await meter.flush()
    clock.now = noon(TUESDAY)
    other = UsageMeter((await open_room(redis_url)).redis, clock=clock)
    meter.add("acme", requests=1, computed_tokens=7)
    meter.add_shared("@law", user="acme", used_tokens=200)
    other.add_shared("@law", user="umbra", used_tokens=100)
    await asyncio.gather(meter.flush(), other.flush())
    assert await computed(meter, "acme") == {TUESDAY: 7 + 667}
    assert await computed(meter, "umbra") == {TUESDAY: 334}
    assert await computed(meter, "nova") == {}


async def test_who_has_left_the_group_is_charged_for_what_it_used(
    meter: UsageMeter, room: Room
) -> None:
    meter.add_shared("@law", computed_tokens=50, user="acme", used_tokens=50)
    await join(room, "acme", None)
    meter.add_shared("@law", user="umbra", used_tokens=50)
    await meter.flush()
    assert [await computed(meter, name) for name in MEMBERS] == [{MONDAY: 25}, {}, {MONDAY: 25}]


async def test_a_deleted_group_leaves_its_charges_behind(
    meter: UsageMeter, room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, tokens in zip(MEMBERS, (1, 2, 4), strict=True):
        meter.add_shared("@law", computed_tokens=100, user=name, used_tokens=tokens)
    await meter.flush()
    before = [await computed(meter, name) for name in MEMBERS]
    assert sum(day[MONDAY] for day in before) == 300
    with pytest.raises(StoreConflict):
        await room.groups.delete("law")
    for name in MEMBERS:
        await join(room, name, None)
    for calls in range(3, 15):  # cut off at every step, and done again
        with monkeypatch.context() as patch:
            cut_off(room, patch, after=calls)
            await asyncio.gather(room.groups.delete("law"), return_exceptions=True)
    assert [await computed(meter, name) for name in MEMBERS] == before
    assert await room.groups.list() == []
    await room.groups.create("law")
    await join(room, "acme", "law")
    meter.add_shared("@law", computed_tokens=5, user="acme", used_tokens=5)
    await meter.flush()
    await join(room, "acme", None)
    await room.groups.delete("law")
    assert await computed(meter, "acme") == {MONDAY: before[0][MONDAY] + 5}


async def test_a_tenant_pays_nothing_for_an_earlier_one_of_its_name(
    meter: UsageMeter, room: Room, clock: Clock
) -> None:
    meter.add_shared("@law", computed_tokens=100, user="acme", used_tokens=10)
    meter.add_shared("@law", user="umbra", used_tokens=10)
    await meter.flush()
    assert await room.store.delete_tenant("acme") == [DayUsage(day=MONDAY, computed_tokens=50)]
    await room.store.create_tenant("acme")
    clock.now = noon(TUESDAY)
    meter.add_shared("@law", user="acme", used_tokens=10)
    await meter.flush()
    assert await computed(meter, "acme") == {TUESDAY: 0}
    assert await computed(meter, "umbra") == {MONDAY: 50}
    for name in MEMBERS:
        await join(room, name, None)
    await room.groups.delete("law")
    assert await computed(meter, "acme") == {TUESDAY: 0}
