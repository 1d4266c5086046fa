"""A store that dies, stalls and comes back: known tenants stay known, nothing waits for long."""

from __future__ import annotations

import asyncio
from datetime import date

import pytest
import redis
from msgspec.structs import replace

from tenants.at_rest.pepper import Peppers
from tenants.errors import StoreReadOnly, StoreUnavailable
from tenants.idempotency import Idempotency
from tenants.keys import api_keys
from tenants.limits.limiter import Limiter, LimitExceeded
from tenants.records import Change, TenantLimits
from tenants.storage import changes, connection
from tenants.stored.objects import SuspendedResponses
from tenants.usage.meter import UsageMeter
from tests.tenants.conftest import (
    TIMEOUT_SECONDS,
    OpenRoom,
    Room,
    admit,
    cut_off,
    eventually,
    listening,
    take,
    who,
)
from tests.tenants.server import Server

STALL_SECONDS = 3.0
"""How long a call waits for a stalled server; a busy machine alone must not take that long."""


async def known_room(
    open_room: OpenRoom, server: Server, timeout_seconds: float = TIMEOUT_SECONDS, **ages: float
) -> tuple[Room, str]:
    """A room that has just seen a tenant's key and prompt."""
    room = await open_room(server.url, timeout_seconds, **ages)
    _, key = await room.store.create_tenant("acme")
    await room.prompts.put("acme", "law", "one")
    await room.store.authenticate(key)
    await room.prompts.get("acme", "law")
    await room.prompts.find_by_text("acme", "one")
    return room, key


async def test_known_keys_and_prompts_outlive_the_store_and_others_are_unavailable(
    server: Server, open_room: OpenRoom
) -> None:
    room, key = await known_room(open_room, server, cache_seconds=0)
    server.kill()
    for _ in range(3):
        assert await room.store.authenticate(key) is not None
        assert await room.prompts.get("acme", "law") is not None
        assert await room.prompts.find_by_text("acme", "one") is not None
        with pytest.raises(StoreUnavailable):
            await room.store.authenticate(api_keys.generate())
        with pytest.raises(StoreUnavailable):
            await room.prompts.get("acme", "tax")
        assert await room.store.authenticate("no key at all") is None


async def test_writes_and_lists_say_that_the_store_is_down(
    server: Server, open_room: OpenRoom
) -> None:
    room, _ = await known_room(open_room, server)
    server.kill()
    for call in (
        lambda: room.store.ping(),
        lambda: room.store.create_tenant("umbra"),
        lambda: room.store.list_tenants(),
        lambda: room.store.rotate_key("acme"),
        lambda: room.store.delete_tenant("acme"),
        lambda: room.store.create_key("acme", "laptop"),
        lambda: room.store.list_keys("acme"),
        lambda: room.groups.create("law"),
        lambda: room.groups.list(),
        lambda: room.audit.read(),
        lambda: UsageMeter(room.redis).read("acme", date.min, date.max),
        lambda: SuspendedResponses(room.redis, room.keyring).take("acme", "resp_1"),
        lambda: Idempotency(room.redis, Peppers(b"p" * 32)).begin("ann", "k1", b"write"),
        lambda: room.prompts.put("acme", "law", "two"),
        lambda: room.prompts.list("acme"),
        lambda: room.prompts.delete("acme", "law"),
        lambda: room.responses.save("acme", "resp_1", b"blob", 60),
        lambda: room.responses.load("acme", "resp_1"),
    ):
        with pytest.raises(StoreUnavailable):
            await call()


async def test_everything_works_again_when_the_server_is_back(
    server: Server, open_room: OpenRoom
) -> None:
    room, key = await known_room(open_room, server, cache_seconds=0)
    server.kill()
    with pytest.raises(StoreUnavailable):
        await room.store.ping()
    server.start()

    async def back() -> bool:
        try:
            await room.store.ping()
        except StoreUnavailable:
            return False
        return True

    await eventually(back)
    _, new = await room.store.rotate_key("acme")
    assert await room.store.authenticate(new) is not None
    assert await room.store.authenticate(key) is None


async def test_a_known_key_is_forgotten_after_the_time_it_may_be_stale(
    server: Server, open_room: OpenRoom
) -> None:
    room, key = await known_room(open_room, server, cache_seconds=0, stale_seconds=0.2)
    server.kill()

    async def forgotten() -> bool:
        try:
            await room.store.authenticate(key)
        except StoreUnavailable:
            return True
        return False

    await eventually(forgotten)


async def test_a_stalled_server_holds_nobody_up(server: Server, open_room: OpenRoom) -> None:
    room, key = await known_room(open_room, server, STALL_SECONDS, cache_seconds=0)
    server.stall()
    # One after the other: with a deadline for each call but no circuit breaker they would need
    # twenty times three seconds.
    async with asyncio.timeout(30):
        for _ in range(20):
            assert await room.store.authenticate(key) is not None
        with pytest.raises(StoreUnavailable):
            await room.store.ping()


async def test_many_callers_at_once_do_not_queue_up_behind_a_stalled_server(
    server: Server, open_room: OpenRoom
) -> None:
    room, key = await known_room(open_room, server, STALL_SECONDS, cache_seconds=0)
    server.stall()
    async with asyncio.timeout(30):
        for _ in range(3):
            found = await asyncio.gather(*(room.store.authenticate(key) for _ in range(500)))
            assert None not in found


async def test_a_server_that_takes_too_long_is_told_from_one_that_is_gone(
    server: Server, open_room: OpenRoom
) -> None:
    room = await open_room(server.url, timeout_seconds=0.2)
    with pytest.raises(StoreUnavailable, match="does not answer: timeout"):
        await room.redis.execute("BLPOP", "pw:nothing", 2)


async def test_more_callers_than_connections_are_all_served_in_their_turn(
    server: Server, open_room: OpenRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    # All of them take longer than the deadline of one, however fast this machine is.
    monkeypatch.setattr(connection, "_QUEUE_SECONDS", 60.0)
    room = await open_room(server.url, timeout_seconds=5.0)
    calls = (room.redis.execute("BLPOP", "pw:nothing", 0.1) for _ in range(2000))
    assert await asyncio.gather(*calls) == [None] * 2000
    await room.store.ping()


async def test_a_server_that_is_slow_for_too_many_is_not_taken_for_one_that_is_gone(
    server: Server, open_room: OpenRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_QUEUE_SECONDS", 0.1)
    room = await open_room(server.url)
    waits = [asyncio.create_task(room.redis.execute("BLPOP", "pw:nothing", 1)) for _ in range(64)]
    await asyncio.sleep(0.05)
    with pytest.raises(StoreUnavailable, match="too many"):
        await room.store.ping()
    assert await asyncio.gather(*waits) == [None] * 64
    await room.store.ping()


async def test_look_ups_of_one_key_at_once_are_one(
    server: Server, open_room: OpenRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    room, key = await known_room(open_room, server, cache_seconds=0)
    left = cut_off(room, monkeypatch, after=5)
    found = await asyncio.gather(*(room.store.authenticate(key) for _ in range(4000)))
    assert None not in found
    assert left[0] > 0


REFUSALS = {
    "OOM": ("CONFIG", "SET", "maxmemory", "1"),
    "NOREPLICAS": ("CONFIG", "SET", "min-replicas-to-write", "1"),
    "READONLY": ("REPLICAOF", "127.0.0.1", "1"),
}


@pytest.mark.parametrize("refusal", REFUSALS)
async def test_a_server_that_refuses_writes_is_an_outage_of_writes(
    server: Server, open_room: OpenRoom, refusal: str
) -> None:
    room, key = await known_room(open_room, server, cache_seconds=0)
    meter, limiter = UsageMeter(room.redis), Limiter(room.redis)
    await room.redis.execute(*REFUSALS[refusal])
    for write in (
        lambda: room.store.ping(),
        lambda: room.store.create_tenant("umbra"),
        lambda: room.responses.save("acme", "resp_1", b"blob", 60),
        lambda: Idempotency(room.redis, Peppers(b"p" * 32)).begin("ann", "k1", b"write"),
    ):
        with pytest.raises(StoreUnavailable):
            await write()
    found = await who(room.store, key)
    assert found is not None
    meter.add("acme", requests=1)
    await meter.flush()
    limited = replace(found, limits=TenantLimits(requests_per_minute=1, tokens_per_minute=100))
    admission = await take(limiter, limited, "r1", 100)
    with pytest.raises(LimitExceeded):
        await admit(limiter, limited, "r2")
    await limiter.settle(admission, 60)
    await limiter.renew([])


async def test_a_server_busy_with_a_script_is_an_outage(
    server: Server, open_room: OpenRoom
) -> None:
    room, key = await known_room(open_room, server, cache_seconds=0)
    await room.redis.execute("CONFIG", "SET", "busy-reply-threshold", "1")
    with redis.Redis.from_url(server.url) as client:
        script = asyncio.create_task(asyncio.to_thread(client.eval, "while true do end", 0))
        await asyncio.sleep(0.2)
        try:
            with pytest.raises(StoreUnavailable, match="BUSY"):
                await room.store.ping()
            assert await room.store.authenticate(key) is not None
        finally:
            await room.redis.execute("SCRIPT", "KILL")
            with pytest.raises(redis.ResponseError):
                await script
    await room.store.ping()


async def test_a_caller_that_is_cancelled_harms_no_other(
    server: Server, open_room: OpenRoom
) -> None:
    room, key = await known_room(open_room, server, cache_seconds=0)
    for after in range(30):
        task = asyncio.create_task(room.store.authenticate(key))
        for _ in range(after):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        tenant = await who(room.store, key)
        assert tenant is not None
        assert await room.store.get_tenant("acme") == tenant


async def test_a_revocation_that_went_unheard_counts_once_the_connection_is_back(
    server: Server, open_room: OpenRoom
) -> None:
    room, key = await known_room(open_room, server, cache_seconds=3600)
    async with listening(room) as heard:
        assert await room.store.authenticate(key) is not None
        server.kill()
        server.start()
        operator = await open_room(server.url)
        await operator.store.rotate_key("acme")
        async with asyncio.timeout(20):
            while (await heard.get()).kind != "resync":
                pass

        async def dead() -> bool:
            return await room.store.authenticate(key) is None

        await eventually(dead)
        # And from then on notices arrive as before.
        await operator.prompts.put("acme", "law", "two")
        async with asyncio.timeout(20):
            while (await heard.get()).kind != "prompts":
                pass


async def test_losing_the_notices_does_not_lose_known_tenants(
    server: Server, open_room: OpenRoom
) -> None:
    room, key = await known_room(open_room, server, cache_seconds=3600)
    async with listening(room):
        assert await room.store.authenticate(key) is not None
        server.kill()

        async def noticed() -> bool:
            try:
                await room.store.ping()
            except StoreUnavailable:
                return True
            return False

        await eventually(noticed)
        for _ in range(50):
            assert await room.store.authenticate(key) is not None
            await asyncio.sleep(0.02)


async def test_an_outage_is_one_line_in_the_log_however_often_it_is_tried(
    server: Server,
    open_room: OpenRoom,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(changes, "_RECONNECT_SECONDS", 0.01)

    def lines() -> list[str]:
        return [record.getMessage() for record in caplog.records if "not heard" in record.msg]

    async def told() -> bool:
        return bool(lines())

    room, _ = await known_room(open_room, server)
    async with listening(room) as heard:
        for _ in range(2):
            caplog.clear()
            server.kill()
            await eventually(told)
            await asyncio.sleep(0.2)
            assert len(lines()) == 1
            assert lines()[0].partition(": ")[2], "there is a reason"
            server.start()
            assert (await asyncio.wait_for(heard.get(), 20)).kind == "resync"


async def test_notices_come_from_a_server_whose_disk_is_full(
    server: Server,
    open_room: OpenRoom,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(changes, "_SILENCE_SECONDS", 0.05)
    room, key = await known_room(open_room, server, cache_seconds=0)
    async with listening(room) as heard:
        with server.failing_disk():
            with pytest.raises(StoreReadOnly, match="disk"):
                await room.store.ping()
            await asyncio.sleep(0.2)  # several pings of the listener's are refused
            assert await room.store.authenticate(key) is not None
            await room.redis.execute(*changes.publication(Change(kind="prompts")))
            assert (await asyncio.wait_for(heard.get(), 20)).kind == "prompts"
        await room.store.create_tenant("umbra")
        assert (await asyncio.wait_for(heard.get(), 20)).kind == "tenant"
    assert "not heard" not in caplog.text


async def test_a_notice_that_nobody_understands_is_taken_as_any_change(
    server: Server, open_room: OpenRoom
) -> None:
    room, _ = await known_room(open_room, server)
    async with listening(room) as heard:
        for notice in (b"\xff\x00", b"{}", b'{"kind": "moon", "tenant_id": "acme"}'):
            await room.redis.execute("PUBLISH", "pw:changes", notice)
            assert (await asyncio.wait_for(heard.get(), 20)).kind == "resync"
