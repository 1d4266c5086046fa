"""What who writes to the store can do, and docs/security.md tells: and whom it leaves alone."""

from __future__ import annotations

import httpx
import msgspec
import pytest
import redis

from tenants import redis_keys
from tenants.errors import PepperMismatch, StoreUnsupported
from tenants.records import Change
from tenants.storage.changes import encode
from tenants.storage.schema import check_schema
from tests.app.conftest import PEPPER, World
from tests.app.responses.test_responses_ws import socket
from tests.app.trust.conftest import ask
from tests.tenants.conftest import Room


async def test_junk_under_one_tenants_keys_ends_no_request_of_another(
    world: World, raw: redis.Redis, users: httpx.AsyncClient, operators: httpx.AsyncClient
) -> None:
    """`tests/tenants` has the same of each of the service's loops by itself."""
    await world.limit("umbra", requests_per_minute=1000, concurrent_streams=5)
    clear = ("limits", "streams", "usage", "spending", "stored", "stored-bytes", "generation")
    for name in clear:
        raw.delete(f"pw:{{umbra}}:{name}")
        raw.rpush(f"pw:{{umbra}}:{name}", "junk")
    raw.hset(redis_keys.OUTBOX_MESSAGES, "junk", b"\xff")
    raw.zadd(redis_keys.OUTBOX_DUE, {"junk": 0})
    raw.xadd(redis_keys.AUDIT, {"owner": b"\xff"})
    assert (await ask(users, world.keys["umbra"])).status_code in (200, 500)
    answer = await ask(users, world.keys["acme"])
    assert answer.status_code == 200
    await world.metered("acme", 1, answer.json()["usage"]["total_tokens"])
    assert (await operators.get("/audit")).status_code == 200
    assert world.app.state.service.supervisor.failing == []


async def test_counts_and_the_audit_are_in_clear_and_a_writers_to_change(
    world: World, raw: redis.Redis, operators: httpx.AsyncClient
) -> None:
    raw.hset(redis_keys.usage("umbra"), "2026-01-01:requests", 7)
    raw.delete(redis_keys.AUDIT)
    usage = await operators.get("/tenants/umbra/usage?since=2026-01-01&format=csv")
    assert "2026-01-01,7," in usage.text
    assert (await operators.get("/audit")).json()["entries"] == []


async def test_a_writer_chooses_among_the_versions_of_a_prompt(
    world: World, raw: redis.Redis
) -> None:
    for text in ("one", "two"):
        await world.prompts.put("umbra", "law", text)
    place, name = redis_keys.prompts("umbra"), redis_keys.prompt("umbra", "law")
    raw.hset(place, "law", msgspec.msgpack.encode({"last": 2, "active": 1}))
    found = await Room(world.redis, PEPPER).prompts.get("umbra", "law")
    assert found is not None
    assert (found.version, found.text) == (1, "one")
    first = raw.hget(name, "1")
    assert isinstance(first, bytes)
    raw.hset(name, "2", first)
    assert await Room(world.redis, PEPPER).prompts.get("umbra", "law", 2) is None


async def test_a_writer_tells_webhooks_and_cancels_responses(
    world: World, raw: redis.Redis
) -> None:
    raw.hset(redis_keys.OUTBOX_MESSAGES, "theirs", b"{}")
    raw.zadd(redis_keys.OUTBOX_DUE, {"theirs": 0})
    message = await world.stores.outbox.take()  # and whoever takes it signs it
    assert message is not None
    assert message.id == "theirs"
    world.engine.hold_after = 3
    async with socket(world) as ws:
        await ws.create("go on")
        response_id = (await ws.receive())["response"]["id"]
        notice = Change(kind="cancel", tenant_id="acme", name=response_id)
        raw.publish(redis_keys.CHANGES, encode(notice))
        assert (await ws.turn())[-1]["response"]["status"] == "cancelled"


async def test_a_writer_has_the_next_service_not_start(world: World, raw: redis.Redis) -> None:
    for version in (1, 99):
        raw.set(redis_keys.SCHEMA, version)
        with pytest.raises(StoreUnsupported):
            await check_schema(world.redis)
    raw.set(redis_keys.PEPPER, b"x" * 32)
    with pytest.raises(PepperMismatch):
        await world.stores.tenants.check_pepper()
