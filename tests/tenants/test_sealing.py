"""A store of versions that left records in clear: refused as it is, and sealed when told to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis

from tenants import redis_keys
from tenants.at_rest.pepper import Peppers
from tenants.at_rest.sealer import Sealer
from tenants.errors import SealMissing, StoreUnsupported
from tenants.keys.operator_tokens import OperatorTokens
from tenants.records import ShareGroup, Tenant
from tenants.rotation.sealing import Sealed, Sealing
from tenants.storage import schema
from tenants.storage.connection import open_redis
from tenants.storage.embedded import EmbeddedStore
from tenants.storage.schema import check_schema
from tenants.stored.objects import REVISION_BYTES, EditedObjects, SuspendedResponses
from tenants.stored.running import Found, RunningResponses
from tests.tenants.conftest import OpenRoom, Room, everything, who

TEXT = "You keep the secret of the blue lagoon."
REVISION, CONTENT = b"r" * REVISION_BYTES, b"\x81" + TEXT.encode()
STORED = {
    redis_keys.stored_object("acme", "response", "resp_1"): CONTENT,
    redis_keys.stored_object("acme", "conversation", "conv_1"): REVISION + CONTENT,
    redis_keys.stored_object("acme", "suspended", "resp_2"): CONTENT,
    redis_keys.running("acme", "resp_3"): CONTENT,
}


def as_of_old(peppers: Peppers, record: Tenant | ShareGroup, *, is_wrapped: bool) -> bytes:
    """A record in clear, with its secret wrapped, or not even that."""
    fields: dict[str, Any] = msgspec.structs.asdict(record)
    if is_wrapped:
        sealer = Sealer("namespace secrets", *peppers.all)
        fields["namespace_secret"] = sealer.seal(record.namespace_secret, record.owner)
    return msgspec.msgpack.encode(fields)


async def old_store(room: Room, raw: redis.Redis, peppers: Peppers, is_wrapped: bool) -> str:
    """What earlier versions would have left of a tenant in a group; the tenant's key."""
    group = await room.groups.create("law")
    tenant, api_key = await room.store.create_tenant(
        "acme", edit=lambda one: msgspec.structs.replace(one, share_group="law")
    )
    keys = await room.store.list_keys("acme")
    raw.set(redis_keys.meta("acme"), as_of_old(peppers, tenant, is_wrapped=is_wrapped))
    raw.set(redis_keys.meta("@law"), as_of_old(peppers, group, is_wrapped=is_wrapped))
    raw.set(redis_keys.keys("acme"), msgspec.msgpack.encode(keys))
    body = msgspec.msgpack.encode({"text": TEXT, "created_at": 1.0})
    raw.hset(redis_keys.prompts("acme"), "old", msgspec.msgpack.encode({"last": 1, "active": 1}))
    raw.hset(redis_keys.prompt("acme", "old"), "1", body)
    raw.sadd(plain_digest(), "old:1")
    for name, blob in STORED.items():
        raw.set(name, blob, ex=60)
    raw.delete(redis_keys.SCHEMA)
    return api_key


def plain_digest() -> str:
    return redis_keys.prompt_text("acme", sha256(TEXT.encode()).digest())


def sealing(room: Room, peppers: Peppers) -> Sealing:
    return Sealing(room.redis, peppers, room.keyring)


@pytest.fixture
async def room(raw: redis.Redis, redis_url: str, open_room: OpenRoom) -> Room:
    return await open_room(redis_url, cache_seconds=0)


async def test_nothing_in_clear_is_served_whatever_the_store_says_of_itself(
    room: Room, raw: redis.Redis, peppers: Peppers, caplog: pytest.LogCaptureFixture
) -> None:
    key = await old_store(room, raw, peppers, is_wrapped=True)
    for mark in (None, 1, 2):
        if mark is not None:
            raw.set(redis_keys.SCHEMA, mark)
        assert await who(room.store, key) is None
        with pytest.raises(SealMissing, match=r"acme.*partywall store seal"):
            await room.store.get_tenant("acme")
        assert await room.store.list_tenants() == []
        assert await room.groups.list() == []
        assert await room.prompts.find_by_text("acme", TEXT) is None
        assert await room.responses.load("acme", "resp_1") is None
    assert "pw:{acme}:meta is not sealed" in caplog.text


async def test_texts_in_clear_are_refused_beside_sealed_records(
    room: Room, raw: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    await room.store.create_tenant("acme")
    await room.prompts.put("acme", "law", "the true one")
    body = msgspec.msgpack.encode({"text": TEXT, "created_at": 1.0})
    raw.hset(redis_keys.prompt("acme", "law"), "1", body)
    for name, blob in STORED.items():
        raw.set(name, blob, ex=60)
    conversations = EditedObjects(room.redis, room.keyring, "conversation")
    reads: list[Awaitable[object]] = [
        room.prompts.get("acme", "law"),
        room.responses.load("acme", "resp_1"),
        conversations.load("acme", "conv_1"),
        SuspendedResponses(room.redis, room.keyring).take("acme", "resp_2"),
        RunningResponses(room.redis, room.keyring).find("acme", "resp_3"),
    ]
    assert await asyncio.gather(*reads) == [None] * len(reads)
    assert caplog.text.count("is not sealed") == len(reads)


@pytest.mark.parametrize("is_wrapped", [True, False])
async def test_an_old_store_is_refused_and_all_of_it_is_there_once_it_is_sealed(
    room: Room, raw: redis.Redis, peppers: Peppers, is_wrapped: bool
) -> None:
    key = await old_store(room, raw, peppers, is_wrapped)
    with pytest.raises(StoreUnsupported, match="partywall store seal"):
        await check_schema(room.redis)
    await check_schema(room.redis, accepts_older=True)
    found = await sealing(room, peppers).in_clear()
    expected = [redis_keys.meta("@law"), redis_keys.meta("acme"), redis_keys.keys("acme")]
    expected += [f"{redis_keys.prompt('acme', 'old')} 1", *STORED]
    assert sorted(map(str, found)) == sorted(expected)
    assert await sealing(room, peppers).run(found) == Sealed(sealed=len(expected))
    assert await sealing(room, peppers).in_clear() == []
    await check_schema(room.redis)
    principal = await room.store.authenticate(key)
    assert principal is not None
    assert principal.group == await room.groups.get("law")
    prompt = await room.prompts.find_by_text("acme", TEXT)
    assert prompt is not None
    assert (prompt.name, prompt.text) == ("old", TEXT)
    assert not raw.exists(plain_digest())
    assert await room.responses.load("acme", "resp_1") == CONTENT
    conversations = EditedObjects(room.redis, room.keyring, "conversation")
    assert await conversations.load("acme", "conv_1") == REVISION + CONTENT
    assert await SuspendedResponses(room.redis, room.keyring).take("acme", "resp_2") == CONTENT
    running = await RunningResponses(room.redis, room.keyring).find("acme", "resp_3")
    assert running == Found(CONTENT[16:], runs=False), "who runs it comes first"
    assert 0 < raw.ttl(redis_keys.stored_object("acme", "response", "resp_1")) <= 60
    held = b"\0".join(part for pair in everything(raw).items() for part in pair)
    assert b"lagoon" not in held
    assert principal.tenant.namespace_secret not in held


async def test_what_belongs_to_another_is_left_and_named(
    room: Room, raw: redis.Redis, peppers: Peppers
) -> None:
    key = await old_store(room, raw, peppers, is_wrapped=True)
    tenant, _ = await room.store.create_tenant("umbra")
    raw.set(redis_keys.keys("umbra"), raw.get(redis_keys.keys("acme")))  # type: ignore[arg-type]
    raw.set(redis_keys.meta("other"), as_of_old(peppers, tenant, is_wrapped=True))
    raw.set(redis_keys.meta("@law"), b"\x80")
    done = await sealing(room, peppers).run(await sealing(room, peppers).in_clear())
    left = [redis_keys.keys("umbra"), redis_keys.meta("other"), redis_keys.meta("@law")]
    assert sorted(done.left) == sorted(left)
    found = await who(room.store, key)
    assert found is not None
    assert found.id == "acme"


async def test_a_token_of_old_is_held_to_the_tenant_that_is_there(
    room: Room, raw: redis.Redis, peppers: Peppers
) -> None:
    await room.store.create_tenant("acme")
    tokens = OperatorTokens(room.redis, peppers)
    record, token = await tokens.create("ci", "admin", "acme")
    old = msgspec.structs.replace(record, generation=None)
    raw.hset(redis_keys.OPERATOR_TOKENS, record.id, tokens._sealed(old))
    assert await tokens.find(token) is None
    found = await sealing(room, peppers).in_clear()
    assert await sealing(room, peppers).run(found) == Sealed(sealed=1)
    assert await tokens.find(token) == record


async def test_what_was_in_clear_leaves_the_disk_as_well(tmp_path: Path, peppers: Peppers) -> None:
    with EmbeddedStore(tmp_path) as store:
        link = await open_redis(store.url)
        room = Room(link, peppers, cache_seconds=0)
        await room.store.create_tenant("acme")
        name = redis_keys.stored_object("acme", "response", "resp_5")
        await link.execute("SET", name, b"\x81 in clear, a while ago", "EX", 600)

        def on_disk() -> bool:
            files = (path for path in tmp_path.rglob("*") if path.is_file())
            return any(b"a while ago" in path.read_bytes() for path in files)

        async with asyncio.timeout(20):
            while not on_disk():  # noqa: ASYNC110 - the log is written every second
                await asyncio.sleep(0.05)
            found = await sealing(room, peppers).in_clear()
            assert (await sealing(room, peppers).run(found)).sealed == 1
            while on_disk():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert await room.responses.load("acme", "resp_5") == b"\x81 in clear, a while ago"
        await link.close()


async def test_a_new_store_is_marked_and_an_unmarked_one_is_taken_for_old(
    room: Room, raw: redis.Redis
) -> None:
    await check_schema(room.redis)
    assert raw.get(redis_keys.SCHEMA) == str(schema.SCHEMA).encode()
    raw.delete(redis_keys.SCHEMA)
    await room.groups.create("law")
    with pytest.raises(StoreUnsupported, match="version 1"):
        await check_schema(room.redis)
