"""Writes that are sent twice are made once."""

from __future__ import annotations

import asyncio

import pytest
import redis

from tenants.at_rest.pepper import Peppers
from tenants.errors import InvalidField, SealBroken, StoreConflict
from tenants.idempotency import Attempt, Idempotency
from tests.tenants.conftest import Room, everything

WRITE, OTHER_WRITE = b"w" * 32, b"o" * 32


@pytest.fixture
def idempotency(room: Room, peppers: Peppers) -> Idempotency:
    return Idempotency(room.redis, peppers)


async def first(idempotency: Idempotency, actor: str, key: str, write: bytes = WRITE) -> Attempt:
    """The attempt of a write that nobody has made."""
    begun = await idempotency.begin(actor, key, write)
    assert isinstance(begun, Attempt)
    return begun


async def test_the_second_of_two_equal_writes_finds_the_answer_of_the_first(
    idempotency: Idempotency, room: Room, peppers: Peppers
) -> None:
    await idempotency.finish(await first(idempotency, "ann", "k1"), b"answer \x00\xff")
    for process in (idempotency, Idempotency(room.redis, peppers)):
        assert await process.begin("ann", "k1", WRITE) == b"answer \x00\xff"
    await first(idempotency, "ann", "k2")


async def test_another_write_under_the_same_key_is_refused_by_name(
    idempotency: Idempotency,
) -> None:
    attempt = await first(idempotency, "ann", "k1")
    for _ in range(2):
        with pytest.raises(InvalidField) as caught:
            await idempotency.begin("ann", "k1", OTHER_WRITE)
        assert caught.value.field == "Idempotency-Key"
        await idempotency.finish(attempt, b"answer")
    assert await idempotency.begin("ann", "k1", WRITE) == b"answer"


async def test_of_several_equal_writes_at_once_one_is_made(idempotency: Idempotency) -> None:
    outcomes = await asyncio.gather(
        *(idempotency.begin("ann", "k1", WRITE) for _ in range(10)), return_exceptions=True
    )
    assert sum(isinstance(outcome, Attempt) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, StoreConflict) for outcome in outcomes) == 9


async def test_a_write_that_was_not_made_can_be_tried_again(idempotency: Idempotency) -> None:
    attempt = await first(idempotency, "ann", "k1")
    with pytest.raises(StoreConflict):
        await idempotency.begin("ann", "k1", WRITE)
    await idempotency.abandon(attempt)
    again = await first(idempotency, "ann", "k1")
    await idempotency.abandon(attempt)  # it has its key no more
    with pytest.raises(StoreConflict):
        await idempotency.begin("ann", "k1", WRITE)
    await idempotency.finish(attempt, b"too late")
    await idempotency.finish(again, b"answer")
    assert await idempotency.begin("ann", "k1", WRITE) == b"answer"


async def test_a_write_whose_reply_is_lost_stays_made(
    idempotency: Idempotency, room: Room, raw: redis.Redis
) -> None:
    attempt = await first(idempotency, "ann", "k1")
    with attempt.guarding():
        await room.store.create_tenant("acme")
    await idempotency.abandon(attempt)  # for all that its maker knows
    with pytest.raises(StoreConflict, match="has made its change"):
        attempt = await first(idempotency, "ann", "k1")
    (key,) = raw.scan_iter("pw:idempotency:*")
    assert raw.ttl(key) > 300


async def test_a_write_that_comes_late_is_not_made_after_another_attempt(
    idempotency: Idempotency, room: Room
) -> None:
    late = await first(idempotency, "ann", "k1")
    await idempotency.abandon(late)
    await first(idempotency, "ann", "k1")
    with late.guarding(), pytest.raises(StoreConflict):
        await room.store.create_tenant("acme")
    assert await room.store.list_tenants() == []


async def test_one_operators_key_is_not_anothers(idempotency: Idempotency) -> None:
    for actor, key in (("ann", "ak1"), ("anna", "k1"), ("bob", "ak1")):
        await idempotency.finish(await first(idempotency, actor, key), actor.encode())
    assert await idempotency.begin("ann", "ak1", WRITE) == b"ann"


async def test_an_answer_cannot_be_read_in_the_store_nor_passed_off_as_another(
    idempotency: Idempotency, room: Room, raw: redis.Redis
) -> None:
    for key in ("k1", "k2"):
        attempt = await first(idempotency, "ann", key)
        await idempotency.finish(attempt, f"pw_secret {key}".encode())
    assert b"pw_secret" not in b"".join(everything(raw).values())
    one, two = raw.scan_iter("pw:idempotency:*")
    raw.copy(one, two, replace=True)
    answers = await asyncio.gather(
        *(idempotency.begin("ann", key, WRITE) for key in ("k1", "k2")), return_exceptions=True
    )
    assert sum(isinstance(answer, SealBroken) for answer in answers) == 1
    assert sum(isinstance(answer, bytes) for answer in answers) == 1
    # With another pepper it is not even found.
    await first(Idempotency(room.redis, Peppers(b"x" * 32)), "ann", "k1")


async def test_nothing_is_kept_for_ever(idempotency: Idempotency, raw: redis.Redis) -> None:
    attempt = await first(idempotency, "ann", "k1")
    (key,) = raw.scan_iter("pw:idempotency:*")
    assert 0 < raw.ttl(key) <= 300
    await idempotency.finish(attempt, b"answer")
    assert 300 < raw.ttl(key) <= 24 * 3600
    raw.delete(key)
    await idempotency.finish(attempt, b"too late")
    assert not raw.exists(key)
