"""Stored responses, over a real server."""

from __future__ import annotations

import pytest
import redis

from tenants.errors import InvalidField
from tests.tenants.conftest import Room, eventually, everything


@pytest.fixture(autouse=True)
async def tenants(room: Room) -> None:
    await room.store.create_tenant("acme")
    await room.store.create_tenant("umbra")


async def test_a_response_comes_back_as_it_was_saved(room: Room) -> None:
    blob = bytes(range(256)) * 100
    await room.conversations.save("acme", "resp_1", blob, 60)
    assert await room.conversations.load("acme", "resp_1") == blob
    await room.conversations.save("acme", "resp_1", b"newer", 60)
    assert await room.conversations.load("acme", "resp_1") == b"newer"


async def test_another_tenants_response_is_simply_not_there(room: Room) -> None:
    await room.conversations.save("acme", "resp_1", b"blob", 60)
    assert await room.conversations.load("umbra", "resp_1") is None
    await room.conversations.delete("umbra", "resp_1")
    assert await room.conversations.load("acme", "resp_1") == b"blob"


async def test_a_deleted_response_is_gone(room: Room) -> None:
    await room.conversations.save("acme", "resp_1", b"blob", 60)
    assert await room.conversations.delete("acme", "resp_1")
    assert await room.conversations.load("acme", "resp_1") is None
    assert not await room.conversations.delete("acme", "resp_1")


async def test_a_response_is_kept_for_its_time_only(room: Room, raw: redis.Redis) -> None:
    await room.conversations.save("acme", "resp_1", b"blob", 60)
    (key,) = raw.scan_iter("pw:{acme}:*resp_1")
    assert 0 < raw.pttl(key) <= 60_000
    await room.conversations.save("acme", "resp_2", b"blob", 0.05)

    async def gone() -> bool:
        return await room.conversations.load("acme", "resp_2") is None

    await eventually(gone)
    assert await room.conversations.load("acme", "resp_1") == b"blob"


async def test_nothing_is_kept_of_a_tenant_that_was_deleted_meanwhile(
    room: Room, raw: redis.Redis
) -> None:
    await room.store.delete_tenant("acme")
    await room.conversations.save("acme", "resp_1", b"blob", 60)
    assert not [key for key in everything(raw) if b"{acme}" in key]


@pytest.mark.parametrize("response_id", ["", "a" * 129, "a:b", "a b", "*", "}", "ä", "\ud800"])
async def test_an_id_that_cannot_be_is_not_found_and_not_saved(
    room: Room, response_id: str
) -> None:
    assert await room.conversations.load("acme", response_id) is None
    assert not await room.conversations.delete("acme", response_id)
    with pytest.raises(InvalidField) as caught:
        await room.conversations.save("acme", response_id, b"blob", 60)
    assert caught.value.field == "response_id"


@pytest.mark.parametrize("ttl_seconds", [0, -1, 0.0001])
async def test_a_response_cannot_be_kept_for_no_time(room: Room, ttl_seconds: float) -> None:
    with pytest.raises(InvalidField) as caught:
        await room.conversations.save("acme", "resp_1", b"blob", ttl_seconds)
    assert caught.value.field == "ttl_seconds"
