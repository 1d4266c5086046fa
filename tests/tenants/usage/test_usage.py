"""What tenants used: every bit of it once, whatever happens to the store in between."""

from __future__ import annotations

import asyncio
from datetime import UTC, date, datetime

import pytest
import redis

from tenants.at_rest.pepper import Peppers
from tenants.errors import InvalidField, StoreUnavailable
from tenants.store import TenantStore
from tenants.usage.meter import UsageMeter
from tenants.usage.usage import AdapterUsage, DayUsage
from tests.tenants.clock import Clock
from tests.tenants.conftest import OpenRoom, Room, cut_off, eventually, everything, listening
from tests.tenants.server import Server

MONDAY, TUESDAY = date(2026, 3, 2), date(2026, 3, 3)


def noon(day: date) -> float:
    return datetime(day.year, day.month, day.day, 12, tzinfo=UTC).timestamp()


@pytest.fixture
def clock() -> Clock:
    return Clock(noon(MONDAY))


@pytest.fixture
async def meter(room: Room, clock: Clock) -> UsageMeter:
    await room.store.create_tenant("acme")
    await room.store.create_tenant("umbra")
    return UsageMeter(room.redis, clock=clock)


async def test_usage_adds_up_by_tenant_and_utc_day(meter: UsageMeter, clock: Clock) -> None:
    meter.add("acme", requests=1, prompt_tokens=100, cached_tokens=64, stream_seconds=0.25)
    meter.add("acme", requests=1, prompt_tokens=50, output_tokens=7, stream_seconds=1.5)
    meter.add("umbra", requests=1, output_tokens=3)
    clock.now = noon(TUESDAY)
    meter.add("acme", output_tokens=9)
    await meter.flush()
    monday = DayUsage(
        day=MONDAY,
        requests=2,
        prompt_tokens=150,
        cached_tokens=64,
        output_tokens=7,
        stream_seconds=1.75,
    )
    tuesday = DayUsage(day=TUESDAY, output_tokens=9)
    assert await meter.read("acme", date.min, date.max) == [monday, tuesday]
    assert await meter.read("acme", MONDAY, MONDAY) == [monday]
    assert await meter.read("acme", TUESDAY, date.max) == [tuesday]
    assert await meter.read("umbra", MONDAY, TUESDAY) == [
        DayUsage(day=MONDAY, requests=1, output_tokens=3)
    ]
    assert await meter.read("acme", date(2026, 3, 4), date.max) == []
    with pytest.raises(InvalidField) as caught:
        await meter.read("acme", TUESDAY, MONDAY)
    assert caught.value.field == "until"


async def test_what_adapters_had_of_it_is_told_apart(meter: UsageMeter, clock: Clock) -> None:
    meter.add("acme", requests=1, prompt_tokens=100, output_tokens=5)
    for adapter in ("support", "support", "@guild/support"):
        meter.add(
            "acme",
            adapter=adapter,
            requests=1,
            prompt_tokens=50,
            cached_tokens=16,
            cache_write_tokens=32,
            computed_tokens=34,
            output_tokens=7,
            stream_seconds=0.5,
            cost_nanos=9,
        )
    clock.now = noon(TUESDAY)
    meter.add("acme", adapter="support", output_tokens=1)
    await meter.flush()
    once = {
        "requests": 1,
        "prompt_tokens": 50,
        "cached_tokens": 16,
        "cache_write_tokens": 32,
        "computed_tokens": 34,
        "output_tokens": 7,
        "cost_nanos": 9,
    }
    twice = {name: 2 * amount for name, amount in once.items()}
    shared = AdapterUsage(day=MONDAY, adapter="@guild/support", stream_seconds=0.5, **once)
    own = AdapterUsage(day=MONDAY, adapter="support", stream_seconds=1.0, **twice)
    tuesday = AdapterUsage(day=TUESDAY, adapter="support", output_tokens=1)
    assert await meter.read_by_adapter("acme", date.min, date.max) == [shared, own, tuesday]
    assert await meter.read_by_adapter("acme", MONDAY, MONDAY) == [shared, own]
    assert await meter.read_by_adapter("umbra", date.min, date.max) == []
    monday = (await meter.read("acme", MONDAY, MONDAY))[0]
    assert (monday.requests, monday.prompt_tokens, monday.output_tokens) == (4, 250, 26)
    with pytest.raises(InvalidField):
        await meter.read_by_adapter("acme", TUESDAY, MONDAY)


async def test_what_adapters_had_is_gone_with_their_tenant(
    meter: UsageMeter, room: Room, raw: redis.Redis
) -> None:
    for tenant in ("acme", "umbra"):
        meter.add(tenant, adapter="support", requests=1)
    await meter.flush()
    await room.store.delete_tenant("acme")
    meter.add("acme", generation="another", adapter="support", requests=1)
    await meter.flush()
    assert not [key for key in everything(raw) if b"{acme}" in key]
    await room.store.create_tenant("acme")
    assert await meter.read_by_adapter("acme", date.min, date.max) == []
    assert len(await meter.read_by_adapter("umbra", date.min, date.max)) == 1


async def test_several_processes_add_to_one_sum(
    meter: UsageMeter, redis_url: str, open_room: OpenRoom, clock: Clock
) -> None:
    meters = [meter, *[UsageMeter((await open_room(redis_url)).redis, clock=clock) for _ in "ab"]]
    for _ in range(5):
        for one in meters:
            one.add("acme", requests=1)
        await asyncio.gather(*(one.flush() for one in meters))
    assert await meter.read("acme", MONDAY, MONDAY) == [DayUsage(day=MONDAY, requests=15)]


async def test_a_batch_whose_answer_was_lost_is_not_counted_twice(
    meter: UsageMeter, room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = room.redis.run_script_on_each

    async def lose_the_answer(*arguments: object) -> object:
        await real(*arguments)  # type: ignore[arg-type]
        raise StoreUnavailable("timeout")

    meter.add("acme", requests=1)
    monkeypatch.setattr(room.redis, "run_script_on_each", lose_the_answer)
    for _ in range(3):
        await meter.flush()
        meter.add("acme", output_tokens=10)
    monkeypatch.undo()
    for _ in range(2):
        await meter.flush()
    assert await meter.read("acme", MONDAY, MONDAY) == [
        DayUsage(day=MONDAY, requests=1, output_tokens=30)
    ]


async def test_the_usage_of_many_tenants_is_handed_in_together(
    meter: UsageMeter, room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"tenant-{number}" for number in range(300)]
    for name in names:
        await room.store.create_tenant(name)
        meter.add(name, requests=1)
    left = cut_off(room, monkeypatch, after=10)
    await meter.flush()
    assert left[0] >= 5
    monkeypatch.undo()
    for name in names:
        assert await meter.read(name, MONDAY, MONDAY) == [DayUsage(day=MONDAY, requests=1)]


async def test_usage_is_kept_while_the_store_is_away(
    server: Server, open_room: OpenRoom, clock: Clock
) -> None:
    room = await open_room(server.url)
    await room.store.create_tenant("acme")
    meter = UsageMeter(room.redis, flush_seconds=0.01, clock=clock)
    running = asyncio.create_task(meter.run())
    meter.add("acme", requests=1)

    async def read() -> list[DayUsage]:
        try:
            return await meter.read("acme", MONDAY, MONDAY)
        except StoreUnavailable:
            return []

    async def counted() -> bool:
        return await read() == [DayUsage(day=MONDAY, requests=1)]

    await eventually(counted)
    server.kill()
    for _ in range(20):
        meter.add("acme", requests=1)
        await asyncio.sleep(0.01)
    server.start()

    async def all_counted() -> bool:
        return await read() == [DayUsage(day=MONDAY, requests=21)]

    await eventually(all_counted)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_what_is_left_is_handed_in_at_the_end(meter: UsageMeter) -> None:
    running = asyncio.create_task(meter.run())
    await asyncio.sleep(0)
    meter.add("acme", requests=1)
    assert await meter.read("acme", MONDAY, MONDAY) == []
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert await meter.read("acme", MONDAY, MONDAY) == [DayUsage(day=MONDAY, requests=1)]


async def test_deleting_a_tenant_returns_all_its_usage_with_what_comes_in_late(
    meter: UsageMeter, room: Room, peppers: Peppers, clock: Clock, raw: redis.Redis
) -> None:
    store = TenantStore(room.redis, peppers, flush_grace_seconds=1)
    meter.add("acme", requests=1)
    await meter.flush()
    clock.now = noon(TUESDAY)
    meter.add("acme", requests=2)
    meter.add("umbra", requests=4)
    async with listening(room) as heard:
        deletion = asyncio.create_task(store.delete_tenant("acme"))
        change = await asyncio.wait_for(heard.get(), 20)
        assert (change.kind, change.tenant_id) == ("deleted", "acme")
        await meter.flush()
        used = await deletion
    assert used == [DayUsage(day=MONDAY, requests=1), DayUsage(day=TUESDAY, requests=2)]
    meter.add("acme", requests=1)
    await meter.flush()
    assert not [key for key in everything(raw) if b"{acme}" in key]
    assert await meter.read("umbra", MONDAY, TUESDAY) == [DayUsage(day=TUESDAY, requests=4)]


async def test_a_deletion_cut_off_before_its_answer_still_knows_the_usage(
    meter: UsageMeter, room: Room, peppers: Peppers
) -> None:
    meter.add("acme", requests=1)
    await meter.flush()
    slow = TenantStore(room.redis, peppers, flush_grace_seconds=60)
    async with listening(room) as heard:
        deletion = asyncio.create_task(slow.delete_tenant("acme"))
        await asyncio.wait_for(heard.get(), 20)
        deletion.cancel()
        await asyncio.gather(deletion, return_exceptions=True)
    assert [tenant.id for tenant in await room.store.list_tenants()] == ["umbra"]
    assert await room.store.delete_tenant("acme") == [DayUsage(day=MONDAY, requests=1)]


async def test_a_deletion_waits_for_nobody_where_nobody_serves(
    meter: UsageMeter, room: Room, peppers: Peppers
) -> None:
    meter.add("acme", requests=1)
    await meter.flush()
    slow = TenantStore(room.redis, peppers, flush_grace_seconds=3600)
    async with asyncio.timeout(30):
        assert await slow.delete_tenant("acme") == [DayUsage(day=MONDAY, requests=1)]


async def test_what_lies_under_one_tenants_keys_keeps_no_others_usage_back(
    meter: UsageMeter, raw: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    for key in ("pw:{acme}:spending", "pw:{acme}:usage", "pw:{acme}:generation"):
        raw.delete(key)
        raw.rpush(key, "junk")
        for tenant in ("acme", "umbra"):
            meter.add(tenant, requests=1)
            meter.release(tenant, "request:5")
        assert await meter.flush() == ([] if key.endswith("generation") else ["acme"])
        assert set(await meter.generations(["acme", "umbra"])) >= {"umbra"}
        raw.delete(key)
    (day,) = await meter.read("umbra", date.min, date.max)
    assert day.requests == 3
    assert "the store refuses" in caplog.text
    assert await meter.flush() == []
    assert meter.has_all_in
    (day,) = await meter.read("acme", date.min, date.max)
    assert day.requests == 3, "it is kept until it can be booked"


@pytest.mark.parametrize("junk", ["x", "9223372036854775807", "1.5"])
async def test_what_cannot_be_added_as_a_whole_is_not_added_in_part(
    meter: UsageMeter, raw: redis.Redis, junk: str
) -> None:
    raw.hset("pw:{acme}:usage", "2026-03-02:output_tokens", junk)
    meter.add("acme", requests=1, output_tokens=5)
    for _ in range(3):
        assert await meter.flush() == ["acme"]
    assert raw.hget("pw:{acme}:usage", "2026-03-02:requests") is None
    raw.hdel("pw:{acme}:usage", "2026-03-02:output_tokens")
    assert await meter.flush() == []
    (day,) = await meter.read("acme", date.min, date.max)
    assert (day.requests, day.output_tokens) == (1, 5)
