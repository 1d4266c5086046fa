"""Responses that run somewhere: found by every process, for as long as somebody runs them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from tenants import redis_keys
from tenants.errors import StoreUnavailable
from tenants.stored import running
from tenants.stored.running import Found, RunningResponses
from tests.tenants.conftest import Room


@pytest.fixture(autouse=True)
async def acme(room: Room) -> None:
    await room.store.create_tenant("acme")


@contextlib.asynccontextmanager
async def a_process(room: Room, lease_seconds: float) -> AsyncIterator[RunningResponses]:
    responses = RunningResponses(room.redis, room.keyring, lease_seconds, lease_seconds)
    loop = asyncio.create_task(responses.run())
    yield responses
    loop.cancel()
    await asyncio.wait({loop})


async def shown(
    responses: RunningResponses, response_id: str, tenant: str = "acme"
) -> bytes | None:
    """What is to be shown of a response that runs."""
    found = await responses.find(tenant, response_id)
    return found.content if found is not None and found.runs else None


async def until(responses: RunningResponses, response_id: str, record: bytes | None) -> None:
    async with asyncio.timeout(5):
        while await shown(responses, response_id) != record:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_what_runs_is_found_by_others_until_it_ends(room: Room) -> None:
    elsewhere = RunningResponses(room.redis, room.keyring)
    async with a_process(room, 30.0) as here:
        here.note_begin("acme", "resp_1", b"one")
        here.note_begin("acme", "resp_2", b"two")
        await until(elsewhere, "resp_1", b"one")
        await until(elsewhere, "resp_2", b"two")
        assert await shown(elsewhere, "resp_1", "umbra") is None
        here.note_end("acme", "resp_1")
        await until(elsewhere, "resp_1", None)
        assert await shown(elsewhere, "resp_2") == b"two"


async def test_what_has_ended_is_not_found_here_though_redis_has_it_still(room: Room) -> None:
    here, there = (RunningResponses(room.redis, room.keyring) for _ in range(2))
    here.note_begin("acme", "resp_1", b"running")
    assert await here._write()
    assert await shown(here, "resp_1") == b"running"
    here.note_end("acme", "resp_1")
    assert await shown(there, "resp_1") == b"running"
    assert await shown(here, "resp_1") is None
    assert await here._write()
    assert not here._ended
    assert await shown(there, "resp_1") is None


async def test_what_ends_with_its_process_is_written_last(room: Room) -> None:
    async with a_process(room, 30.0) as here:
        here.note_begin("acme", "resp_1", b"one")
        await until(here, "resp_1", b"one")
        here.note_end("acme", "resp_1")
    elsewhere = RunningResponses(room.redis, room.keyring)
    assert await shown(elsewhere, "resp_1") is None


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_RENEW_SECONDS", 0.01)
    monkeypatch.setattr(running, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(running, "_GONE_SECONDS", 0.2)


@pytest.mark.usefixtures("quick")
async def test_what_a_dead_process_ran_is_known_to_have_nobody_and_what_goes_on_to_run(
    room: Room,
) -> None:
    async with a_process(room, 0.5) as alive:
        alive.note_begin("acme", "alive", b"one")
        async with a_process(room, 0.5) as dying:
            dying.note_begin("acme", "dead", b"two")
            await until(alive, "dead", b"two")
        assert await alive.find("acme", "dead") == Found(b"two", runs=False)
        await asyncio.sleep(0.5)
        assert await shown(alive, "alive") == b"one"
        await alive.forget("acme", "dead")
        assert await alive.find("acme", "dead") is None


@pytest.mark.usefixtures("quick")
async def test_what_another_process_goes_on_with_meanwhile_is_not_lost(room: Room) -> None:
    dead = RunningResponses(room.redis, room.keyring, process_seconds=0.001)
    dead.note_begin("acme", "resp_1", b"one")
    assert await dead._write()
    async with a_process(room, 30.0) as here:
        looking = asyncio.create_task(here.find("acme", "resp_1"))
        await asyncio.sleep(0.05)
        assert not looking.done()
        here.note_begin("acme", "resp_1", b"two")
        assert await looking == Found(b"two", runs=True)


@pytest.mark.usefixtures("quick")
async def test_a_process_that_redis_has_forgotten_is_not_gone_if_it_says_so_again(
    room: Room,
) -> None:
    elsewhere = RunningResponses(room.redis, room.keyring, 0.5)
    async with a_process(room, 0.5) as here:
        here.note_begin("acme", "resp_1", b"one")
        await until(elsewhere, "resp_1", b"one")
        for _ in range(20):
            await room.redis.execute("DEL", redis_keys.process(here._owner))
            assert await shown(elsewhere, "resp_1") == b"one"


async def test_a_conversation_is_claimed_by_one_response(room: Room) -> None:
    here, elsewhere = (
        RunningResponses(room.redis, room.keyring),
        RunningResponses(room.redis, room.keyring),
    )
    assert await here.claim("acme", "conv_1", "resp_1")
    assert not await here.claim("acme", "conv_1", "resp_2")
    assert not await elsewhere.claim("acme", "conv_1", "resp_2")
    assert await elsewhere.claim("acme", "conv_2", "resp_2")
    assert await elsewhere.claim("umbra", "conv_1", "resp_2")
    await here.release("acme", "conv_1", "resp_2")
    assert not await elsewhere.claim("acme", "conv_1", "resp_2")
    await here.release("acme", "conv_1", "resp_1")
    assert await elsewhere.claim("acme", "conv_1", "resp_2")


async def test_a_claim_is_renewed_and_ends_with_its_process(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "_RENEW_SECONDS", 0.05)
    elsewhere = RunningResponses(room.redis, room.keyring)
    async with a_process(room, 0.5) as here:
        assert await here.claim("acme", "conv_1", "resp_1")
        for _ in range(8):
            await asyncio.sleep(0.1)
            assert not await elsewhere.claim("acme", "conv_1", "resp_2")
    async with asyncio.timeout(5):
        while not await elsewhere.claim("acme", "conv_1", "resp_2"):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_the_late_end_of_a_claim_does_not_end_the_next_one(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def down(*_: object) -> None:
        raise StoreUnavailable("it does not answer")

    here, elsewhere = (
        RunningResponses(room.redis, room.keyring),
        RunningResponses(room.redis, room.keyring),
    )
    with monkeypatch.context() as outage:
        outage.setattr(room.redis, "execute", down)
        assert await here.claim("acme", "conv_1", "resp_1")
        await here.release("acme", "conv_1", "resp_1")
    assert await here.claim("acme", "conv_1", "resp_2")
    loop = asyncio.create_task(here.run())
    here.note_begin("acme", "resp_2", b"two")
    await until(here, "resp_2", b"two")
    assert not await elsewhere.claim("acme", "conv_1", "resp_3")
    loop.cancel()
    await asyncio.wait({loop})


async def test_nobody_ends_or_renews_what_another_has_claimed_since(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "_RENEW_SECONDS", 0.01)
    key = redis_keys.claimed("acme", "conv_1")
    elsewhere = RunningResponses(room.redis, room.keyring)
    async with a_process(room, 0.5) as here:
        assert await here.claim("acme", "conv_1", "resp_1")
        await room.redis.execute("DEL", key)  # it has run out meanwhile
        assert await elsewhere.claim("acme", "conv_1", "resp_2")
        await asyncio.sleep(0.1)
        assert await room.redis.execute("GET", key) == b"resp_2"
        assert await room.redis.execute("PTTL", key) > 1000
        await here.release("acme", "conv_1", "resp_1")
        assert await room.redis.execute("GET", key) == b"resp_2"


async def test_a_claim_that_redis_has_lost_is_made_again(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "_RENEW_SECONDS", 0.01)
    key = redis_keys.claimed("acme", "conv_1")
    async with a_process(room, 0.5) as here:
        assert await here.claim("acme", "conv_1", "resp_1")
        await room.redis.execute("DEL", key)
        async with asyncio.timeout(5):
            while await room.redis.execute("GET", key) != b"resp_1":  # noqa: ASYNC110
                await asyncio.sleep(0.005)
