"""Writes that are sent twice are made once."""

from __future__ import annotations

import asyncio

import pytest
import redis
from cryptography.exceptions import InvalidTag

from tenants.errors import InvalidField, StoreConflict
from tenants.idempotency import Idempotency
from tests.tenants.conftest import Room, everything

WRITE, OTHER_WRITE = b"w" * 32, b"o" * 32


@pytest.fixture
def idempotency(room: Room, pepper: bytes) -> Idempotency:
    return Idempotency(room.redis, pepper)


async def test_the_second_of_two_equal_writes_finds_the_answer_of_the_first(
    idempotency: Idempotency, room: Room, pepper: bytes
) -> None:
    assert await idempotency.begin("ann", "k1", WRITE) is None
    await idempotency.finish("ann", "k1", b"answer \x00\xff")
    for process in (idempotency, Idempotency(room.redis, pepper)):
        assert await process.begin("ann", "k1", WRITE) == b"answer \x00\xff"
    assert await idempotency.begin("ann", "k2", WRITE) is None


async def test_another_write_under_the_same_key_is_refused_by_name(
    idempotency: Idempotency,
) -> None:
    await idempotency.begin("ann", "k1", WRITE)
    for _ in range(2):
        with pytest.raises(InvalidField) as caught:
            await idempotency.begin("ann", "k1", OTHER_WRITE)
        assert caught.value.field == "Idempotency-Key"
        await idempotency.finish("ann", "k1", b"answer")
    assert await idempotency.begin("ann", "k1", WRITE) == b"answer"


async def test_of_several_equal_writes_at_once_one_is_made(idempotency: Idempotency) -> None:
    outcomes = await asyncio.gather(
        *(idempotency.begin("ann", "k1", WRITE) for _ in range(10)), return_exceptions=True
    )
    assert outcomes.count(None) == 1
    assert sum(isinstance(outcome, StoreConflict) for outcome in outcomes) == 9


async def test_a_write_that_was_not_made_can_be_tried_again(idempotency: Idempotency) -> None:
    assert await idempotency.begin("ann", "k1", WRITE) is None
    with pytest.raises(StoreConflict):
        await idempotency.begin("ann", "k1", WRITE)
    await idempotency.abandon("ann", "k1")
    assert await idempotency.begin("ann", "k1", WRITE) is None


async def test_one_operators_key_is_not_anothers(idempotency: Idempotency) -> None:
    for actor, key in (("ann", "ak1"), ("anna", "k1"), ("bob", "ak1")):
        assert await idempotency.begin(actor, key, WRITE) is None
        await idempotency.finish(actor, key, actor.encode())
    assert await idempotency.begin("ann", "ak1", WRITE) == b"ann"


async def test_an_answer_cannot_be_read_in_the_store_nor_passed_off_as_another(
    idempotency: Idempotency, room: Room, raw: redis.Redis
) -> None:
    for key in ("k1", "k2"):
        await idempotency.begin("ann", key, WRITE)
        await idempotency.finish("ann", key, f"pw_secret {key}".encode())
    assert b"pw_secret" not in b"".join(everything(raw).values())
    one, two = raw.scan_iter("pw:idempotency:*")
    raw.copy(one, two, replace=True)
    answers = await asyncio.gather(
        *(idempotency.begin("ann", key, WRITE) for key in ("k1", "k2")), return_exceptions=True
    )
    assert sum(isinstance(answer, InvalidTag) for answer in answers) == 1
    assert sum(isinstance(answer, bytes) for answer in answers) == 1
    # With another pepper it is not even found.
    assert await Idempotency(room.redis, b"x" * 32).begin("ann", "k1", WRITE) is None


async def test_nothing_is_kept_for_ever(idempotency: Idempotency, raw: redis.Redis) -> None:
    await idempotency.begin("ann", "k1", WRITE)
    (key,) = raw.scan_iter("pw:idempotency:*")
    assert 0 < raw.ttl(key) <= 300
    await idempotency.finish("ann", "k1", b"answer")
    assert 300 < raw.ttl(key) <= 24 * 3600
    raw.delete(key)
    await idempotency.finish("ann", "k1", b"too late")
    assert not raw.exists(key)
