"""Stored responses, over a real server."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
import redis

from tenants import redis_keys
from tenants.errors import InvalidField, TooLargeToStore
from tenants.storage.connection import GuardedRedis
from tenants.stored.objects import StoredObjects, SuspendedResponses
from tests.tenants.conftest import Room, eventually, everything


@pytest.fixture(autouse=True)
async def tenants(room: Room) -> None:
    await room.store.create_tenant("acme")
    await room.store.create_tenant("umbra")


async def test_a_response_comes_back_as_it_was_saved(room: Room) -> None:
    blob = bytes(range(256)) * 100
    await room.responses.save("acme", "resp_1", blob, 60)
    assert await room.responses.load("acme", "resp_1") == blob
    await room.responses.save("acme", "resp_1", b"newer", 60)
    assert await room.responses.load("acme", "resp_1") == b"newer"


async def test_another_tenants_response_is_simply_not_there(room: Room) -> None:
    await room.responses.save("acme", "resp_1", b"blob", 60)
    assert await room.responses.load("umbra", "resp_1") is None
    await room.responses.delete("umbra", "resp_1")
    assert await room.responses.load("acme", "resp_1") == b"blob"


async def test_a_deleted_response_is_gone(room: Room) -> None:
    await room.responses.save("acme", "resp_1", b"blob", 60)
    assert await room.responses.delete("acme", "resp_1")
    assert await room.responses.load("acme", "resp_1") is None
    assert not await room.responses.delete("acme", "resp_1")


async def test_a_response_is_kept_for_its_time_only(room: Room, raw: redis.Redis) -> None:
    await room.responses.save("acme", "resp_1", b"blob", 60)
    (key,) = raw.scan_iter("pw:{acme}:*resp_1")
    assert 0 < raw.pttl(key) <= 60_000
    await room.responses.save("acme", "resp_2", b"blob", 0.05)

    async def gone() -> bool:
        return await room.responses.load("acme", "resp_2") is None

    await eventually(gone)
    assert await room.responses.load("acme", "resp_1") == b"blob"


async def test_nothing_is_kept_of_a_tenant_that_was_deleted_meanwhile(
    room: Room, raw: redis.Redis
) -> None:
    await room.store.delete_tenant("acme")
    await room.responses.save("acme", "resp_1", b"blob", 60)
    assert not [key for key in everything(raw) if b"{acme}" in key]


@pytest.mark.parametrize("response_id", ["", "a" * 129, "a:b", "a b", "*", "}", "ä", "\ud800"])
async def test_an_id_that_cannot_be_is_not_found_and_not_saved(
    room: Room, response_id: str
) -> None:
    assert await room.responses.load("acme", response_id) is None
    assert not await room.responses.delete("acme", response_id)
    with pytest.raises(InvalidField) as caught:
        await room.responses.save("acme", response_id, b"blob", 60)
    assert caught.value.field == "id"


@pytest.mark.parametrize("ttl_seconds", [0, -1, 0.0001])
async def test_a_response_cannot_be_kept_for_no_time(room: Room, ttl_seconds: float) -> None:
    with pytest.raises(InvalidField) as caught:
        await room.responses.save("acme", "resp_1", b"blob", ttl_seconds)
    assert caught.value.field == "ttl_seconds"


async def test_the_oldest_responses_make_room_for_new_ones(room: Room) -> None:
    small = StoredObjects(room.redis, room.keyring, default_bytes=10_000)
    for number in range(5):
        await small.save("acme", f"resp_{number}", b"x" * 2500, 60 + number)
        await small.save("umbra", f"resp_{number}", b"x" * 500, 60)
    kept = [number for number in range(5) if await small.load("acme", f"resp_{number}")]
    assert kept == [2, 3, 4]
    assert all([await small.load("umbra", f"resp_{number}") for number in range(5)])
    # What is given back, or replaced, is room again.
    assert await small.delete("acme", "resp_2")
    for _ in range(3):
        await small.save("acme", "resp_4", b"y" * 2500, 60)
    await small.save("acme", "resp_5", b"x" * 2500, 60)
    assert all([await small.load("acme", f"resp_{number}") for number in (3, 4, 5)])


async def test_a_tenants_own_limit_of_stored_bytes_goes_before_the_default(room: Room) -> None:
    store = StoredObjects(room.redis, room.keyring, default_bytes=1000)
    with pytest.raises(TooLargeToStore):
        await store.save("acme", "resp_1", b"x" * 2000, 60)
    await store.save("acme", "resp_1", b"x" * 2000, 60, max_bytes=5000)
    with pytest.raises(TooLargeToStore):
        await store.save("acme", "resp_2", b"x" * 2000, 60, max_bytes=0)
    assert await store.load("acme", "resp_1") is not None


async def test_a_call_drops_a_few_responses_however_many_have_expired(
    room: Room, raw: redis.Redis
) -> None:
    store = StoredObjects(room.redis, room.keyring, default_bytes=10_000_000)
    await store.save("acme", "resp_1", b"blob", 60)
    stored, sizes = redis_keys.stored("acme"), redis_keys.stored_bytes("acme")
    expired = [f"expired-{number}" for number in range(1000)]
    raw.zadd(stored, dict.fromkeys(expired, 1))
    raw.hset(sizes, mapping=dict.fromkeys(expired, 1000) | {"total": 1_000_554})
    left = [len(expired) + 1]
    while left[-1] > 1:
        await store.save("acme", "resp_1", b"blob", 60)
        left.append(int(raw.zcard(stored)))  # type: ignore[arg-type]
    assert [before - after for before, after in pairwise(left)] == [256, 256, 256, 232]
    assert raw.hget(sizes, "total") == b"554"


async def test_room_is_made_by_several_calls_where_it_takes_many_responses(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = StoredObjects(room.redis, room.keyring, default_bytes=300 * 650)
    for number in range(300):
        await store.save("acme", f"resp_{number}", b"x" * 100, 60 + number)
    calls: list[int] = []
    run_script = GuardedRedis.run_script

    async def counted(self: GuardedRedis, *given: Any) -> Any:
        calls.append(1)
        return await run_script(self, *given)

    monkeypatch.setattr(GuardedRedis, "run_script", counted)
    await store.save("acme", "resp_large", b"x" * 191_000, 600)
    assert len(calls) == 2
    assert await store.load("acme", "resp_large") is not None
    assert await store.load("acme", "resp_290") is None
    assert await store.load("acme", "resp_299") is not None


async def test_what_has_expired_takes_no_room(room: Room) -> None:
    store = StoredObjects(room.redis, room.keyring, default_bytes=10_000)
    await store.save("acme", "resp_old", b"x" * 4000, 60)
    for number in range(3):
        await store.save("acme", f"resp_{number}", b"x" * 4000, 0.05)

        async def gone(number: int = number) -> bool:
            return await store.load("acme", f"resp_{number}") is None

        await eventually(gone)
    assert await store.load("acme", "resp_old") is not None


async def test_nobody_passes_the_limit_of_stored_bytes_however_many_save_at_once(
    room: Room, raw: redis.Redis
) -> None:
    most = 20_000
    stores = (
        StoredObjects(room.redis, room.keyring, default_bytes=most),
        SuspendedResponses(room.redis, room.keyring, most),
    )
    await asyncio.gather(
        *(store.save("acme", f"r{n}", b"x" * 1000, 60) for n in range(100) for store in stores)
    )
    held = sum(raw.strlen(key) for key in raw.scan_iter("pw:{acme}:[rs]*:*"))
    assert 10_000 < held <= 20_000


async def test_what_a_deleted_tenant_would_keep_late_is_not_the_new_ones(room: Room) -> None:
    old = await room.store.get_tenant("acme")
    await room.store.delete_tenant("acme")
    new, _ = await room.store.create_tenant("acme")
    for tenant in (old, new):
        name = tenant.generation
        await room.responses.save("acme", f"r-{tenant is new}", b"text", 60, generation=name)
    assert await room.responses.load("acme", "r-False") is None
    assert await room.responses.load("acme", "r-True") == b"text"
