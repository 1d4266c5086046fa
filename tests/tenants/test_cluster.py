"""The store in a Redis Cluster of three real servers: each write has keys at several of them."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import msgspec
import pytest
import redis
from msgspec.structs import replace

from app.doctor.store import check_store
from app.settings import Settings
from tenants import redis_keys
from tenants.at_rest.pepper import Peppers
from tenants.errors import (
    GroupExists,
    InvalidField,
    StoreConflict,
    StoreError,
    StoreUnavailable,
    TenantExists,
    TenantNotFound,
)
from tenants.idempotency import Attempt, Idempotency
from tenants.keys.operator_tokens import OperatorTokens
from tenants.storage import slots
from tenants.storage.connection import Script, open_redis
from tenants.stored.files import NewFile
from tests.tenants.adapters.putting import put
from tests.tenants.cluster_servers import NUM_SERVERS, ClusterServers
from tests.tenants.conftest import OpenRoom, Room, cut_off, eventually, everything, listening

_FROM_EVERY_SLOT = 3 * NUM_SERVERS


@pytest.fixture(scope="module")
def servers() -> Iterator[ClusterServers]:
    with tempfile.TemporaryDirectory(prefix="pw-") as folder:
        servers = ClusterServers(Path(folder))
        yield servers
        servers.close()


@pytest.fixture
def redis_url(servers: ClusterServers) -> str:
    return servers.url


def left_in(raw: redis.Redis) -> set[bytes]:
    """What there is but for the audit, and the marks of steps, which expire."""
    names = {key for key in everything(raw) if not key.startswith(b"pw:step:")}
    assert all(raw.ttl(key) > 0 for key in raw.scan_iter("pw:step:*"))
    return names - {redis_keys.AUDIT.encode(), redis_keys.PEPPER.encode()}


def at_server(room: Room, number: int) -> str:
    """A tenant's id whose slot is at one of the servers."""
    slots_of_one = 16384 / NUM_SERVERS
    ids = (f"tenant-{one}" for one in count())
    return next(
        one for one in ids if room.redis.slot_of(redis_keys.meta(one)) // slots_of_one == number
    )


async def test_what_an_operator_writes_is_there_for_all(
    room: Room, redis_url: str, open_room: OpenRoom, raw: redis.Redis
) -> None:
    other = await open_room(redis_url, cache_seconds=3600)
    group = await room.groups.create("law")
    names = [f"acme-{number}" for number in range(_FROM_EVERY_SLOT)]
    async with listening(other) as heard:
        for name in names:
            tenant, api_key = await room.store.create_tenant(
                name, edit=lambda one: replace(one, share_group="law")
            )
            assert (await heard.get()).tenant_id == name
            found = await other.store.authenticate(api_key)
            assert found is not None
            assert (found.tenant, found.group) == (tenant, group)
            new, new_key = await room.store.rotate_key(name)
            assert (await heard.get()).kind == "keys"
            assert await other.store.authenticate(api_key) is None
            found = await other.store.authenticate(new_key)
            assert found is not None
            assert found.key == new
        await room.prompts.put("acme-0", "head", "one")
        assert (await heard.get()).kind == "prompts"
        await put(room.adapters, "acme-1")
        assert (await heard.get()).kind == "adapters"
    tenant = await room.store.get_tenant("acme-2")
    kept = await room.files.put(tenant, NewFile(b"a cat", "cat.png", "vision", 60))
    assert [piece async for piece in other.files.read("acme-2", kept)] == [b"a cat"]
    assert await room.groups.members("law") == names
    assert [tenant.id for tenant in await other.store.list_tenants()] == names
    assert {entry.owner for entry in await room.audit.read()} == {"@law", *names}
    with pytest.raises(StoreConflict, match="has members"):
        await room.groups.delete("law")
    for name in names:
        await other.store.delete_tenant(name)
    await other.groups.delete("law")
    assert left_in(raw) == set()
    actions = [entry.action for entry in await room.audit.read(limit=1000)]
    assert len(actions) == 4 + 3 * _FROM_EVERY_SLOT  # each once


async def test_a_write_cut_off_anywhere_is_finished_by_whoever_starts(
    room: Room,
    redis_url: str,
    open_room: OpenRoom,
    monkeypatch: pytest.MonkeyPatch,
    raw: redis.Redis,
) -> None:
    await room.groups.create("law")
    finished = 0
    for after in range(60):
        name = f"acme-{after}"
        dying = await open_room(redis_url)
        left = cut_off(dying, monkeypatch, after)
        creation = dying.store.create_tenant(name, edit=lambda one: replace(one, share_group="law"))
        await asyncio.gather(creation, return_exceptions=True)
        if left[0] > 0:
            break
        # Two at once, and neither does what the other has done.
        await asyncio.gather(slots.finish_all(room.redis), slots.finish_all(room.redis))
        is_there = raw.exists(redis_keys.meta(name)) == 1
        listed = [tenant.id for tenant in await room.store.list_tenants()]
        assert (name in listed) == is_there
        lines = await room.audit.read(owner=name)
        assert [line.action for line in lines] == ["tenant.create"] * is_there
        keys = [key.digest for key in await room.store.list_keys(name)] if is_there else []
        assert {one.decode() for one in raw.scan_iter("pw:key:*")} >= set(
            map(redis_keys.api_key, keys)
        )
        assert not raw.exists(redis_keys.unfinished(name))
        finished += is_there
    assert left[0] > 0
    assert 2 < finished < after - 2


async def test_a_deletion_cut_off_anywhere_is_finished_by_another(
    room: Room,
    redis_url: str,
    open_room: OpenRoom,
    monkeypatch: pytest.MonkeyPatch,
    raw: redis.Redis,
) -> None:
    for after in range(60):
        await room.groups.create("law")
        await room.store.create_tenant("acme", edit=lambda one: replace(one, share_group="law"))
        dying = await open_room(redis_url)
        left = cut_off(dying, monkeypatch, after)
        deletion = dying.store.delete_tenant("acme")
        (outcome,) = await asyncio.gather(deletion, return_exceptions=True)
        if isinstance(outcome, StoreUnavailable):
            await room.store.delete_tenant("acme")
        await room.groups.delete("law")
        await slots.finish_all(room.redis)
        left_over = left_in(raw) - {redis_keys.UNFINISHED.encode()}  # announced, never decided
        assert left_over == set()
        if left[0] > 0:
            break
    assert left[0] > 0
    lines = [entry.action for entry in await room.audit.read(limit=1000)]
    assert lines.count("tenant.delete") == after + 1


async def test_who_writes_there_has_whoever_starts_run_commands(
    room: Room, raw: redis.Redis
) -> None:
    """As docs/security.md says of a writer: with the service's rights, and in Redis alone."""
    steps = [[("SET", "pw:{acme}:theirs", "written")]]
    raw.hset(redis_keys.unfinished("acme"), "1-theirs", msgspec.msgpack.encode(steps))
    raw.zadd(redis_keys.UNFINISHED, {"acme 1-theirs": 0})
    await slots.finish_all(room.redis)
    assert raw.get("pw:{acme}:theirs") == b"written"


async def test_what_others_changed_in_between_is_not_overwritten(room: Room) -> None:
    await room.groups.create("law")
    with pytest.raises(GroupExists):
        await room.groups.create("law")
    created = await asyncio.gather(
        *(room.store.create_tenant("acme") for _ in range(3)), return_exceptions=True
    )
    assert sorted(isinstance(one, TenantExists) for one in created) == [False, True, True]
    await asyncio.gather(*(room.store.create_key("acme", f"key {one}") for one in range(5)))
    assert len(await room.store.list_keys("acme")) == 6
    with pytest.raises(InvalidField, match="share group"):
        await room.store.update_tenant("acme", lambda one: replace(one, share_group="none"))


async def test_a_write_is_made_once_under_an_idempotency_key(room: Room, peppers: Peppers) -> None:
    writes = Idempotency(room.redis, peppers)
    attempt = await writes.begin("ann", "k", b"write")
    assert isinstance(attempt, Attempt)
    with attempt.guarding():
        with pytest.raises(TenantNotFound):
            await room.store.delete_tenant("acme")
        await room.store.create_tenant("acme")
    with pytest.raises(StoreConflict, match="has made its change"):
        await writes.begin("ann", "k", b"write")
    other = await writes.begin("ann", "l", b"write")
    assert isinstance(other, Attempt)
    with other.guarding(), pytest.raises(StoreError):
        await room.store.create_tenant("acme")
    await writes.abandon(other)  # which has come to nothing
    assert isinstance(await writes.begin("ann", "l", b"write"), Attempt)


async def test_a_script_runs_for_all_where_some_servers_know_it(room: Room) -> None:
    script = Script("return redis.call('INCR', KEYS[1])")
    keys = [redis_keys.meta(at_server(room, number)) for number in range(NUM_SERVERS)]
    await room.redis.run_script_on_each(script, [([keys[0]], [])])
    await room.redis.run_script_on_each(script, [([key], []) for key in keys])
    assert await room.redis.pipeline(*(("GET", key) for key in keys)) == [b"2", b"1", b"1"]


@pytest.mark.exhaustive  # two seconds until a server counts as lost
async def test_a_lost_server_is_no_trouble_of_the_others_tenants(
    room: Room, servers: ClusterServers, redis_url: str, open_room: OpenRoom
) -> None:
    names = [at_server(room, number) for number in range(NUM_SERVERS)]
    for name in names:
        await room.store.create_tenant(name)
    hasty = await open_room(redis_url, 2.0)
    servers.stall(1)
    try:
        for _ in range(3):  # the first waits, and then the circuit is open
            with pytest.raises(StoreUnavailable):
                await hasty.store.get_tenant(names[1])
            assert (await hasty.store.get_tenant(names[0])).id == names[0]
            assert (await hasty.store.get_tenant(names[2])).id == names[2]
    finally:
        servers.resume(1)

    async def is_back() -> bool:
        try:
            return (await hasty.store.get_tenant(names[1])).id == names[1]
        except StoreUnavailable:
            return False

    await eventually(is_back)


async def test_a_cluster_that_is_not_there_is_an_error_without_the_password() -> None:
    with pytest.raises(StoreUnavailable) as caught:
        await open_redis("redis+cluster://user:hunter2@127.0.0.1:1", 0.3)
    assert "127.0.0.1:1" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    with pytest.raises(InvalidField, match="redis_url"):
        await open_redis("redis+cluster://host/1")


async def test_a_look_at_what_redis_tells_of_itself_asks_a_server_of_the_cluster(
    redis_url: str,
) -> None:
    first, *others = await check_store(Settings(redis_url=redis_url))
    assert (first.part, first.grade) == ("Redis", "ok")
    assert [check.part for check in others] == ["Redis memory", "Redis files", "Redis clock"]


async def test_tokens_of_operators_are_there_for_all(
    room: Room, redis_url: str, open_room: OpenRoom, peppers: Peppers
) -> None:
    here = OperatorTokens(room.redis, peppers)
    there = OperatorTokens((await open_room(redis_url)).redis, peppers)
    record, token = await here.create("ci")
    other, _ = await there.create("other")
    assert await there.find(token) == record
    await there.revoke(record.id)
    assert await here.find(token) is None
    assert await here.list() == [other]
    actions = [entry.action for entry in await room.audit.read()]
    assert actions == ["token.revoke", "token.create", "token.create"]
