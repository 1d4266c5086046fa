"""Sockets and streams end with the key or the tenant that they belong to, and no others do."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace
from transformers import PreTrainedTokenizerBase

from app.limits.connections import Connected, Connections
from app.stores import Stores
from app.wire.errors import ApiError
from tenants.records import ApiKey, Principal, TenantLimits
from tenants.storage.connection import GuardedRedis, open_redis
from tenants.storage.embedded import EmbeddedStore
from tests.app.conftest import PEPPER, STALL_SECONDS, eventually
from tests.app.scripted_engine import ScriptedEngine


@dataclass
class FakeStream:
    ended_by: list[ApiError] = field(default_factory=list)

    def fail(self, error: ApiError) -> None:
        self.ended_by.append(error)

    @property
    def codes(self) -> list[str]:
        return [error.code for error in self.ended_by]


@dataclass
class FakeSocket:
    closed: list[tuple[int, str]] = field(default_factory=list)

    async def close(self, code: int, reason: str) -> None:
        self.closed.append((code, reason))


@dataclass
class Replica:
    """The connections of one service process, over a connection to the store of its own."""

    redis: GuardedRedis
    stores: Stores
    engine: ScriptedEngine
    connections: Connections
    noticed: int = 0

    async def listen(self) -> None:
        async for change in self.stores.tenants.changes():
            self.connections.notice(change)
            self.noticed += 1


@contextlib.asynccontextmanager
async def running_replica(url: str, tokenizer: PreTrainedTokenizerBase) -> AsyncIterator[Replica]:
    redis = await open_redis(url, timeout_seconds=STALL_SECONDS)
    stores = Stores.over(redis, PEPPER)
    engine = ScriptedEngine(tokenizer)
    connections = Connections(stores.tenants, stores.groups, stores.limiter, engine)
    replica = Replica(redis, stores, engine, connections)
    tasks = [asyncio.create_task(connections.run()), asyncio.create_task(replica.listen())]
    await eventually(lambda: replica.noticed > 0)
    try:
        yield replica
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await redis.close()


@pytest.fixture
async def replica(
    store_server: EmbeddedStore, tokenizer: PreTrainedTokenizerBase
) -> AsyncIterator[Replica]:
    redis = await open_redis(store_server.url)
    await redis.execute("FLUSHALL")
    await redis.close()
    async with running_replica(store_server.url, tokenizer) as one:
        yield one


async def new_tenant(replica: Replica, tenant_id: str) -> Principal:
    _, api_key = await replica.stores.tenants.create_tenant(tenant_id)
    return await signed_in(replica, api_key)


async def signed_in(replica: Replica, api_key: str) -> Principal:
    principal = await replica.stores.tenants.authenticate(api_key)
    assert principal is not None
    return principal


async def everything_reviewed(replica: Replica) -> None:
    """Return when the replica has acted on all that was written before."""
    name = f"fence-{secrets.token_hex(4)}"
    fence = FakeStream()
    principal = await new_tenant(replica, name)
    with replica.connections.stream(principal, fence.fail):
        await replica.stores.tenants.revoke_key(name, principal.key.id)
        await eventually(lambda: bool(fence.ended_by))


async def test_a_revoked_keys_connections_end_and_those_of_other_keys_go_on(
    replica: Replica,
) -> None:
    tenants, connections = replica.stores.tenants, replica.connections
    acme = await new_tenant(replica, "acme")
    umbra = await new_tenant(replica, "umbra")
    _, api_key = await tenants.create_key("acme", "second")
    second = await signed_in(replica, api_key)
    doomed, kept, stranger = FakeStream(), FakeStream(), FakeStream()
    socket, kept_socket = FakeSocket(), FakeSocket()
    with (
        connections.stream(acme, doomed.fail),
        connections.stream(second, kept.fail),
        connections.stream(umbra, stranger.fail),
    ):
        async with (
            connections.socket(acme, socket.close),
            connections.socket(second, kept_socket.close),
        ):
            await tenants.revoke_key("acme", acme.key.id)
            await eventually(lambda: bool(doomed.ended_by and socket.closed))
            await tenants.revoke_key("acme", second.key.id)
            await eventually(lambda: bool(kept.ended_by and kept_socket.closed))
    assert doomed.codes == kept.codes == ["invalid_api_key"]
    assert socket.closed == [(1008, "This API key is no longer valid.")]
    assert not stranger.ended_by


async def test_every_replica_ends_what_it_has(
    replica: Replica, store_server: EmbeddedStore, tokenizer: PreTrainedTokenizerBase
) -> None:
    acme = await new_tenant(replica, "acme")
    here, there = FakeStream(), FakeStream()
    async with running_replica(store_server.url, tokenizer) as other:
        with (
            replica.connections.stream(acme, here.fail),
            other.connections.stream(acme, there.fail),
        ):
            await replica.stores.tenants.revoke_key("acme", acme.key.id)
            await eventually(lambda: here.codes == there.codes == ["invalid_api_key"])


async def test_a_disabled_tenants_connections_end_and_other_tenants_go_on(
    replica: Replica,
) -> None:
    acme = await new_tenant(replica, "acme")
    umbra = await new_tenant(replica, "umbra")
    doomed, kept, socket = FakeStream(), FakeStream(), FakeSocket()
    with (
        replica.connections.stream(acme, doomed.fail),
        replica.connections.stream(umbra, kept.fail),
    ):
        async with replica.connections.socket(acme, socket.close):
            await replica.stores.tenants.update_tenant(
                "acme", lambda tenant: replace(tenant, status="disabled")
            )
            await eventually(lambda: bool(doomed.ended_by and socket.closed))
    assert [(error.status, error.code) for error in doomed.ended_by] == [(403, "tenant_disabled")]
    assert socket.closed == [(1008, "This tenant is disabled.")]
    assert not kept.ended_by


async def test_a_deleted_tenants_connections_end_and_the_engine_forgets_it(
    replica: Replica,
) -> None:
    acme = await new_tenant(replica, "acme")
    doomed, forgotten = FakeStream(), replica.engine.forgotten
    with replica.connections.stream(acme, doomed.fail):
        deletion = asyncio.create_task(replica.stores.tenants.delete_tenant("acme"))
        await eventually(lambda: doomed.codes == ["invalid_api_key"])
        await everything_reviewed(replica)
        assert set(forgotten) == {"acme"}
        forgotten.clear()
    # What the stream has left in the cache since then goes with it.
    await eventually(lambda: forgotten == ["acme"])
    deletion.cancel()


async def test_the_engine_forgets_a_tenant_once_when_its_cache_is_switched_off(
    replica: Replica,
) -> None:
    tenants, forgotten = replica.stores.tenants, replica.engine.forgotten
    _, acme_key = await tenants.create_tenant("acme")
    acme = await signed_in(replica, acme_key)
    with replica.connections.stream(acme, FakeStream().fail):
        await tenants.update_tenant("acme", lambda tenant: replace(tenant, weight=2.0))
        await everything_reviewed(replica)
        assert not forgotten
        await tenants.update_tenant("acme", lambda tenant: replace(tenant, cache="off"))
        await everything_reviewed(replica)
        assert forgotten == ["acme"]
        await tenants.update_tenant("acme", lambda tenant: replace(tenant, weight=3.0))
        await everything_reviewed(replica)
        assert forgotten == ["acme"]
    await eventually(lambda: forgotten == ["acme", "acme"])
    current = await signed_in(replica, acme_key)
    for principal, leaves_blocks in ((current, False), (acme, True)):
        forgotten.clear()
        with replica.connections.stream(principal, FakeStream().fail):
            await everything_reviewed(replica)
            assert not forgotten
        await everything_reviewed(replica)
        assert bool(forgotten) is leaves_blocks


async def test_a_key_ends_when_it_expires_also_when_that_was_decided_later(
    replica: Replica,
) -> None:
    tenants = replica.stores.tenants
    await new_tenant(replica, "acme")
    soon, later = time.time() + 0.2, time.time() + 3600
    streams: dict[str, FakeStream] = {}
    with contextlib.ExitStack() as stack:
        for name, expires_at in (("short", soon), ("long", later), ("prolonged", soon)):
            record, api_key = await tenants.create_key("acme", name, expires_at=expires_at)
            streams[name] = FakeStream()
            principal = await signed_in(replica, api_key)
            stack.enter_context(replica.connections.stream(principal, streams[name].fail))
            if name == "prolonged":
                await tenants.update_key(
                    "acme", record.id, lambda key: replace(key, expires_at=later)
                )
            if name == "long":
                long_key = record.id
        await eventually(lambda: streams["short"].codes == ["invalid_api_key"])
        assert not streams["long"].ended_by
        end = time.time() + 0.1
        await tenants.update_key("acme", long_key, lambda key: replace(key, expires_at=end))
        await eventually(lambda: streams["long"].codes == ["invalid_api_key"])
        assert not streams["prolonged"].ended_by


async def test_after_a_rotation_the_old_key_lives_as_long_as_the_overlap(replica: Replica) -> None:
    acme = await new_tenant(replica, "acme")
    old, new = FakeStream(), FakeStream()
    with replica.connections.stream(acme, old.fail):
        _, api_key = await replica.stores.tenants.rotate_key("acme", overlap_seconds=0.2)
        with replica.connections.stream(await signed_in(replica, api_key), new.fail):
            await eventually(lambda: old.codes == ["invalid_api_key"])
            assert not new.ended_by


async def test_a_key_revoked_while_its_request_was_on_its_way_ends_it(replica: Replica) -> None:
    acme = await new_tenant(replica, "acme")
    await replica.stores.tenants.revoke_key("acme", acme.key.id)
    await everything_reviewed(replica)
    late = FakeStream()
    with replica.connections.stream(acme, late.fail):
        await eventually(lambda: late.codes == ["invalid_api_key"])


async def test_a_lost_notice_is_made_up_for(replica: Replica, store_server: EmbeddedStore) -> None:
    acme = await new_tenant(replica, "acme")
    operator = await open_redis(store_server.url)
    stream = FakeStream()
    with replica.connections.stream(acme, stream.fail):
        await operator.execute("CLIENT", "KILL", "TYPE", "pubsub")
        await Stores.over(operator, PEPPER).tenants.revoke_key("acme", acme.key.id)
        await eventually(lambda: stream.codes == ["invalid_api_key"])
    await operator.close()


async def test_connections_outlive_an_outage_of_the_store_unless_their_key_expires(
    replica: Replica, store_server: EmbeddedStore
) -> None:
    acme = await new_tenant(replica, "acme")
    _, api_key = await replica.stores.tenants.create_key(
        "acme", "short", expires_at=time.time() + 1.5
    )
    short = await signed_in(replica, api_key)
    kept, expired = FakeStream(), FakeStream()
    with (
        replica.connections.stream(acme, kept.fail),
        replica.connections.stream(short, expired.fail),
    ):
        os.kill(store_server.server_pid, signal.SIGSTOP)
        try:
            await eventually(lambda: expired.codes == ["invalid_api_key"])
        finally:
            os.kill(store_server.server_pid, signal.SIGCONT)
        assert not kept.ended_by
        operator = await open_redis(store_server.url)
        await Stores.over(operator, PEPPER).tenants.revoke_key("acme", acme.key.id)
        await operator.close()
        await eventually(lambda: kept.codes == ["invalid_api_key"])


async def test_a_review_that_fails_is_tried_again(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    acme = await new_tenant(replica, "acme")
    list_keys = replica.stores.tenants.list_keys
    failures = iter([RuntimeError("a bug")])

    async def failing_once(tenant_id: str) -> list[ApiKey]:
        for failure in failures:
            raise failure
        return await list_keys(tenant_id)

    monkeypatch.setattr(replica.stores.tenants, "list_keys", failing_once)
    stream = FakeStream()
    with replica.connections.stream(acme, stream.fail):
        await replica.stores.tenants.revoke_key("acme", acme.key.id)
        await eventually(lambda: stream.codes == ["invalid_api_key"])
    assert next(failures, None) is None


async def test_a_connections_principal_follows_its_tenant(replica: Replica) -> None:
    acme = await new_tenant(replica, "acme")
    await replica.stores.groups.create("law")
    async with replica.connections.socket(acme, FakeSocket().close) as connection:
        await replica.stores.tenants.update_tenant(
            "acme", lambda tenant: replace(tenant, weight=4.0, share_group="law")
        )
        await eventually(lambda: connection.principal.tenant.weight == 4.0)
        assert connection.principal.group is not None
        await replica.stores.tenants.update_tenant(
            "acme", lambda tenant: replace(tenant, share_group=None)
        )
        await eventually(lambda: connection.principal.group is None)


async def test_a_tenant_opens_as_many_sockets_as_it_may(replica: Replica) -> None:
    acme = await new_tenant(replica, "acme")
    umbra = await new_tenant(replica, "umbra")
    limited = replace(acme.tenant, limits=TenantLimits(sockets=1))
    acme, connections = replace(acme, tenant=limited), replica.connections
    async with connections.socket(acme, FakeSocket().close):
        with pytest.raises(ApiError) as refused:
            await connections.socket(acme, FakeSocket().close).__aenter__()
        assert (refused.value.status, refused.value.code) == (429, "sockets_exceeded")
        async with connections.socket(umbra, FakeSocket().close):
            assert connections.snapshot()["acme"] == Connected(sockets=1, streams=0)
    async with connections.socket(acme, FakeSocket().close):
        pass
    assert connections.snapshot() == {}
