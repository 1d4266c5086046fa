"""What is made while its tenant is deleted opens no tenant that has the id later."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis
from msgspec.structs import replace

from tenants.at_rest.pepper import Peppers
from tenants.errors import TenantNotFound
from tenants.keys.operator_tokens import OperatorTokens
from tenants.writes.writes import Writes
from tests.tenants.conftest import OpenRoom, Room


@pytest.fixture
async def room(raw: redis.Redis, redis_url: str, open_room: OpenRoom) -> Room:
    return await open_room(redis_url, cache_seconds=0)


def once(
    monkeypatch: pytest.MonkeyPatch, writes: Writes, work: Callable[[], Awaitable[Any]]
) -> None:
    """Have `work` come in between what the next write has read, and its commit."""
    commit = writes.commit

    async def interrupted(*args: Any) -> bool:
        monkeypatch.setattr(writes, "commit", commit)
        await work()
        return await commit(*args)

    monkeypatch.setattr(writes, "commit", interrupted)


async def made_anew(other: Room) -> None:
    await other.store.delete_tenant("acme")
    await other.store.create_tenant("acme")


@pytest.mark.parametrize("verb", ["create", "rotate", "revoke"])
async def test_a_key_is_not_put_into_the_list_of_the_next_tenant(
    room: Room,
    redis_url: str,
    open_room: OpenRoom,
    monkeypatch: pytest.MonkeyPatch,
    verb: str,
) -> None:
    await room.store.create_tenant("acme")
    (first,) = await room.store.list_keys("acme")
    other = await open_room(redis_url, cache_seconds=0)
    once(monkeypatch, room.store._writes, lambda: made_anew(other))
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "create": lambda: room.store.create_key("acme", "late"),
        "rotate": lambda: room.store.rotate_key("acme", first.id),
        "revoke": lambda: room.store.revoke_key("acme", first.id),
    }
    with pytest.raises(TenantNotFound):
        await calls[verb]()
    (found,) = await room.store.list_keys("acme")
    assert found.name == "default"
    assert found.id != first.id


async def test_a_token_opens_the_tenant_that_it_was_made_for_alone(
    room: Room,
    redis_url: str,
    peppers: Peppers,
    open_room: OpenRoom,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await room.store.create_tenant("acme")
    tokens = OperatorTokens(room.redis, peppers)
    _, before = await tokens.create("ci", "admin", "acme")
    assert await tokens.find(before) is not None
    other = await open_room(redis_url, cache_seconds=0)
    once(monkeypatch, tokens._writes, lambda: made_anew(other))
    record, late = await tokens.create("late", "admin", "acme")
    assert await tokens.find(late) is None
    assert await tokens.find(before) is None
    _, new = await tokens.create("new", "admin", "acme")
    assert await tokens.find(new) is not None
    await room.store.delete_tenant("acme")
    assert await tokens.find(new) is None
    assert record.generation is not None


async def test_a_change_of_the_tenant_itself_keeps_its_keys_and_tokens(
    room: Room, peppers: Peppers
) -> None:
    _, key = await room.store.create_tenant("acme")
    tokens = OperatorTokens(room.redis, peppers)
    _, token = await tokens.create("ci", "admin", "acme")
    await room.store.update_tenant("acme", lambda one: replace(one, name="Acme", weight=2.0))
    await room.store.rotate_secret("acme")
    assert await room.store.authenticate(key) is not None
    assert await tokens.find(token) is not None
