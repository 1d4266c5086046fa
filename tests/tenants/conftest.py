from __future__ import annotations

import asyncio
import os
import secrets
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import redis
from msgspec.structs import replace
from redis.cluster import RedisCluster

from tenants.adapters.adapters import Adapters
from tenants.at_rest.pepper import Peppers
from tenants.errors import StoreUnavailable
from tenants.groups import ShareGroups
from tenants.keyring import Keyring
from tenants.limits.limiter import NO_LIMITS, Admission, Limiter
from tenants.prompts.system_prompts import SystemPrompts
from tenants.records import ApiKey, Change, ShareGroup, Tenant
from tenants.storage.connection import GuardedRedis, open_redis
from tenants.store import TenantStore
from tenants.stored.files import StoredFiles
from tenants.stored.objects import StoredObjects
from tenants.writes.audit import Audit
from tests.tenants.server import Server

TIMEOUT_SECONDS = 10.0
"""Longer than the product's: a busy machine must not look like an outage."""


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """The server of most tests: `REDIS_URL` if set (all its `pw:` keys are removed!), else ours."""
    given = os.environ.get("REDIS_URL")
    if given:
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="pw-") as folder:
        server = Server(Path(folder))
        server.start()
        yield server.url
        server.kill()


def plain_client(url: str) -> redis.Redis:
    """For tests, the client of a cluster is as that of a server."""
    if "+cluster://" in url:
        return RedisCluster.from_url(url.replace("+cluster", ""))  # type: ignore[return-value]
    return redis.Redis.from_url(url)


@pytest.fixture
def raw(redis_url: str) -> Iterator[redis.Redis]:
    """A plain client, to see what is really in there; each test starts with an empty store."""
    with plain_client(redis_url) as client:
        for key in client.scan_iter("pw:*"):
            client.delete(key)
        yield client


@pytest.fixture
def server() -> Iterator[Server]:
    """A server of the test's own, to be treated badly."""
    with tempfile.TemporaryDirectory(prefix="pw-") as folder:
        server = Server(Path(folder))
        server.start()
        yield server
        server.kill()


class Room:
    """All collaborators over one connection: what one service process has."""

    def __init__(self, link: GuardedRedis, peppers: Peppers, **ages: float) -> None:
        self.redis = link
        self.keyring = Keyring(link, peppers, **ages)
        # Nobody's usage is waited for, but where a test is about that.
        self.store = TenantStore(link, peppers, flush_grace_seconds=0, **ages)
        self.groups = ShareGroups(link, peppers)
        self.prompts = SystemPrompts(link, self.keyring, **ages)
        self.adapters = Adapters(link, self.keyring, **ages)
        self.audit = Audit(link)
        self.responses = StoredObjects(link, self.keyring)
        self.files = StoredFiles(link, self.keyring, NO_LIMITS)


OpenRoom = Callable[..., Awaitable[Room]]


@pytest.fixture
def peppers() -> Peppers:
    return Peppers(secrets.token_bytes(32))


@pytest.fixture
async def open_room(peppers: Peppers) -> AsyncIterator[OpenRoom]:
    """Opens rooms on a URL, like so many service processes."""
    links: list[GuardedRedis] = []

    async def opened(url: str, timeout_seconds: float = TIMEOUT_SECONDS, **ages: float) -> Room:
        links.append(await open_redis(url, timeout_seconds))
        return Room(links[-1], peppers, **ages)

    yield opened
    for link in links:
        await link.close()


@pytest.fixture
async def room(raw: redis.Redis, redis_url: str, open_room: OpenRoom) -> Room:
    return await open_room(redis_url)


@pytest.fixture
def store(room: Room) -> TenantStore:
    return room.store


@asynccontextmanager
async def listening(room: Room) -> AsyncIterator[asyncio.Queue[Change]]:
    """While open, a room hears of changes; they arrive in the queue, the first `resync` is gone."""
    heard: asyncio.Queue[Change] = asyncio.Queue()

    async def listen() -> None:
        async for change in room.store.changes():
            heard.put_nowait(change)

    task = asyncio.create_task(listen())
    try:
        async with asyncio.timeout(20):
            assert (await heard.get()).kind == "resync"
        yield heard
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until `condition` holds; it must within twenty seconds."""
    async with asyncio.timeout(20):
        while not await condition():  # noqa: ASYNC110 - the condition is anything, not an event
            await asyncio.sleep(0.01)


Named = TypeVar("Named", ApiKey, ShareGroup)


def named(name: str) -> Callable[[Named], Named]:
    """An edit that gives a new name."""
    return lambda record: replace(record, name=name)


async def take(limiter: Limiter, tenant: Tenant, request_id: str, tokens: int) -> Admission:
    """Have a request admitted, and its tokens reserved."""
    return await reserve(limiter, await admit(limiter, tenant, request_id), tokens)


async def admit(limiter: Limiter, tenant: Tenant, request_id: str) -> Admission:
    """Have a request admitted."""
    (admission,) = await limiter.admit_all(tenant, [request_id])
    return admission


async def reserve(limiter: Limiter, admission: Admission, tokens: int) -> Admission:
    """Have the tokens of an admitted request reserved."""
    (reserved,) = await limiter.reserve_all([admission], [tokens])
    return reserved


async def who(store: TenantStore, api_key: str) -> Tenant | None:
    """The tenant that a key opens."""
    principal = await store.authenticate(api_key)
    return None if principal is None else principal.tenant


def cut_off(room: Room, monkeypatch: pytest.MonkeyPatch, after: int) -> list[int]:
    """Let `after` more round trips of the room happen, and no others; counts what is left."""
    left = [after]
    for name in ("execute", "pipeline", "transaction"):
        real = getattr(room.redis, name)

        async def limited(*args: object, real: object = real) -> object:
            if left[0] == 0:
                raise StoreUnavailable("cut off")
            left[0] -= 1
            assert callable(real)
            return await real(*args)

        monkeypatch.setattr(room.redis, name, limited)
    return left


def everything(client: redis.Redis) -> dict[bytes, bytes]:
    """Every key of ours with all that it holds, run together."""
    found: dict[bytes, bytes] = {}
    for key in client.scan_iter("pw:*"):
        kind = client.type(key)
        value: Any
        if kind == b"string":
            value = [client.get(key)]
        elif kind == b"hash":
            value = [part for pair in client.hgetall(key).items() for part in pair]
        elif kind == b"set":
            value = client.smembers(key)
        elif kind == b"zset":
            value = client.zrange(key, 0, -1)
        elif kind == b"stream":
            value = [
                part for _, fields in client.xrange(key) for pair in fields.items() for part in pair
            ]
        else:
            raise AssertionError(f"{key!r} is a {kind!r}: teach this function to read it")
        found[key] = b"\0".join(value)
    return found
