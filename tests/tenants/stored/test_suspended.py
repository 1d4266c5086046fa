"""Responses left behind by a service that stopped: one other goes on with each."""

from __future__ import annotations

import asyncio

import pytest
import redis

from tenants.errors import InvalidField
from tenants.stored.objects import SuspendedResponses
from tests.tenants.conftest import OpenRoom, Room, everything


@pytest.fixture
async def suspended(room: Room) -> SuspendedResponses:
    await room.store.create_tenant("acme")
    await room.store.create_tenant("umbra")
    return SuspendedResponses(room.redis, room.keyring)


async def test_a_suspended_response_is_taken_once(
    suspended: SuspendedResponses, redis_url: str, open_room: OpenRoom
) -> None:
    blob = bytes(range(256)) * 100
    await suspended.save("acme", "resp_1", blob, 60)
    rooms = [await open_room(redis_url) for _ in range(3)]
    replicas = [SuspendedResponses(one.redis, one.keyring) for one in rooms]
    taken = await asyncio.gather(*(one.take("acme", "resp_1") for one in (suspended, *replicas)))
    assert sorted(taken, key=lambda one: one or b"") == [None, None, None, blob]


async def test_another_tenant_cannot_take_it(suspended: SuspendedResponses) -> None:
    await suspended.save("acme", "resp_1", b"blob", 60)
    assert await suspended.take("umbra", "resp_1") is None
    assert await suspended.take("acme", "resp_1") == b"blob"


async def test_it_is_kept_for_its_time_and_as_long_as_its_tenant(
    suspended: SuspendedResponses, room: Room, raw: redis.Redis
) -> None:
    await suspended.save("acme", "resp_1", b"blob", 60)
    (key,) = raw.scan_iter("pw:{acme}:suspended:*")
    assert 0 < raw.pttl(key) <= 60_000
    await room.store.delete_tenant("acme")
    await suspended.save("acme", "resp_2", b"blob", 60)
    assert not [name for name in everything(raw) if b"{acme}" in name]


@pytest.mark.parametrize("response_id", ["", "a:b", "a" * 129, "\ud800"])
async def test_an_id_that_cannot_be_is_not_found_and_not_saved(
    suspended: SuspendedResponses, response_id: str
) -> None:
    assert await suspended.take("acme", response_id) is None
    with pytest.raises(InvalidField) as caught:
        await suspended.save("acme", response_id, b"blob", 60)
    assert caught.value.field == "id"
