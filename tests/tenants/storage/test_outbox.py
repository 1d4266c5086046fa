"""The outbox: a message comes up again until it is delivered, or was tried often enough."""

from __future__ import annotations

import asyncio

from tenants import redis_keys
from tenants.storage.outbox import MAX_ATTEMPTS, Outbox
from tests.tenants.conftest import OpenRoom, Room


async def test_a_message_comes_up_again_later_until_it_is_done(room: Room) -> None:
    box = Outbox(room.redis, retry_seconds=0.05)
    assert await box.put("a", b"one")
    assert await box.put("a", b"another one")  # the same message
    first = await box.take()
    assert first is not None
    assert (first.id, first.body, first.attempt) == ("a", b"one", 1)
    assert await box.take() is None
    await asyncio.sleep(0.06)
    again = await box.take()
    assert again is not None
    assert again.attempt == 2
    await asyncio.sleep(0.06)
    assert await box.take() is None  # it waits four times as long now
    await box.done("a")
    await asyncio.sleep(0.2)
    assert await box.take() is None
    assert await room.redis.execute("KEYS", "pw:outbox:*") == []


async def test_a_message_is_given_up_after_so_many_attempts(room: Room) -> None:
    box = Outbox(room.redis, retry_seconds=0.0)
    await box.put("a", b"one")
    taken = [await box.take() for _ in range(MAX_ATTEMPTS + 1)]
    assert [one.attempt for one in taken if one is not None] == list(range(1, MAX_ATTEMPTS + 1))
    assert taken[-1] is None
    assert await room.redis.execute("KEYS", "pw:outbox:*") == []


async def test_the_queue_is_bounded(room: Room) -> None:
    box = Outbox(room.redis, max_messages=2)
    assert [await box.put(name, b"x") for name in ("a", "b", "c", "a")] == [True, True, False, True]


async def test_of_several_processes_one_has_a_message(
    room: Room, redis_url: str, open_room: OpenRoom
) -> None:
    boxes = [Outbox((await open_room(redis_url)).redis) for _ in range(3)]
    await asyncio.gather(*(box.put("a", b"one") for box in boxes))
    taken = await asyncio.gather(*(box.take() for box in boxes))
    assert sum(one is not None for one in taken) == 1


async def test_what_nobody_here_put_keeps_no_message_back(room: Room) -> None:
    box = Outbox(room.redis)
    due, messages = redis_keys.OUTBOX_DUE, redis_keys.OUTBOX_MESSAGES
    for name in (b"\xff", b"a\r\nb: c", b"missing"):
        await room.redis.execute("ZADD", due, 0, name)
        await room.redis.execute("HSET", messages, name + b":attempts", "junk")
    await room.redis.execute("HSET", messages, b"\xff", "one", b"a\r\nb: c", "two")
    await box.put("a", b"three")
    taken = await box.take()
    assert taken is not None
    assert (taken.id, taken.attempt) == ("a", 1)
    await box.done("a")
    assert await room.redis.execute("KEYS", "pw:outbox:*") == []
