"""What registered prompts take is bounded: names, versions, and bytes with all that is stored."""

from __future__ import annotations

import asyncio

import pytest

from tenants import redis_keys
from tenants.errors import PromptsExceeded, TooLargeToStore
from tenants.prompts import room as prompt_room
from tenants.prompts.system_prompts import SystemPrompts
from tenants.stored.objects import StoredObjects
from tests.tenants.conftest import Room

MOST = 10_000


async def most_bytes(owner: str) -> int | None:
    return {"acme": MOST}.get(owner)


@pytest.fixture
async def prompts(room: Room) -> SystemPrompts:
    await room.store.create_tenant("acme")
    await room.store.create_tenant("umbra")
    return SystemPrompts(room.redis, room.keyring, most_bytes=most_bytes)


async def taken(room: Room) -> int:
    return int(await room.redis.execute("HGET", redis_keys.prompt_bytes("acme"), ":total"))


async def test_versions_and_prompts_fill_the_bytes_of_their_owner_alone(
    prompts: SystemPrompts, room: Room
) -> None:
    for number in range(3):
        await prompts.put("acme", f"p{number % 2}", f"{number}" * 2488)
    assert await taken(room) == 9000
    with pytest.raises(PromptsExceeded, match="stored_bytes are 10000"):
        await prompts.put("acme", "p0", "x" * 2488)
    await prompts.put("acme", "p0", "2" * 2488)  # which is there
    await prompts.put("umbra", "p0", "x" * 20_000)
    await prompts.delete("acme", "p0")
    assert await taken(room) == 3000
    await prompts.put("acme", "p0", "x" * 6488)
    assert await taken(room) == MOST


async def test_prompts_that_are_put_at_once_do_not_pass_it(
    prompts: SystemPrompts, room: Room
) -> None:
    puts = (prompts.put("acme", f"p{number}", "x" * 2488) for number in range(8))
    outcomes = await asyncio.gather(*puts, return_exceptions=True)
    assert sum(isinstance(one, PromptsExceeded) for one in outcomes) == 5
    assert await taken(room) == 9000


async def test_names_and_versions_are_bounded(
    prompts: SystemPrompts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_room, "MAX_PROMPTS", 3)
    monkeypatch.setattr(prompt_room, "MAX_VERSIONS", 2)
    for number in range(3):
        await prompts.put("acme", f"p{number}", "one")
    with pytest.raises(PromptsExceeded, match="no other name"):
        await prompts.put("acme", "p3", "one")
    await prompts.put("acme", "p0", "two")
    with pytest.raises(PromptsExceeded, match="2 versions"):
        await prompts.put("acme", "p0", "three")
    await prompts.delete("acme", "p0")
    assert (await prompts.put("acme", "p0", "three")).version == 3


async def test_responses_have_the_bytes_that_prompts_leave(
    prompts: SystemPrompts, room: Room
) -> None:
    responses = StoredObjects(room.redis, room.keyring)
    await responses.save("acme", "r1", b"x" * 3000, 60, MOST)
    await prompts.put("acme", "law", "x" * 5000)
    await responses.save("acme", "r2", b"x" * 3000, 60, MOST)
    assert await responses.load("acme", "r1") is None
    with pytest.raises(TooLargeToStore):
        await responses.save("acme", "r3", b"x" * 5000, 60, MOST)


async def test_prompts_of_an_earlier_version_count_with_the_next_one(
    prompts: SystemPrompts, room: Room
) -> None:
    for number in range(3):
        await prompts.put("acme", f"p{number}", f"{number}" * 1000)
    await room.redis.execute("DEL", redis_keys.prompt_bytes("acme"))
    await prompts.delete("acme", "p2")
    await prompts.put("acme", "p3", "x" * 1000)
    assert 3 * 1512 <= await taken(room) <= 3 * 1512 + 300  # sealed texts are a little longer
