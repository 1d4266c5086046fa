from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
import redis
from transformers import PreTrainedTokenizerBase

from app.transport.bounds import Bounds
from tenants import redis_keys
from tenants.at_rest.pepper import digest
from tenants.storage.embedded import EmbeddedStore
from tests.app.conftest import ADMIN_TOKEN, MODEL, PEPPER, World, living
from tests.app.scripted_engine import ScriptedEngine

KNOWN = b"thirty-two bytes that they know."
SAID = "umbra-says-this"


@pytest.fixture
async def world(
    tokenizer: PreTrainedTokenizerBase, store_server: EmbeddedStore
) -> AsyncIterator[World]:
    """Tenants `acme`, whose operator has got at the store, and `umbra`. Nothing is cached."""
    engine, url = ScriptedEngine(tokenizer), store_server.url
    async with living(engine, Bounds(), url, cache_seconds=0, flush_grace_seconds=0) as world:
        yield world


@pytest.fixture
def raw(store_server: EmbeddedStore) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(store_server.url) as client:
        yield client


@pytest.fixture
async def users(world: World) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=world.base_url, trust_env=False) as client:
        yield client


@pytest.fixture
async def operators(world: World) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"authorization": f"Bearer {ADMIN_TOKEN}"}
    async with httpx.AsyncClient(
        base_url=f"{world.admin_url}/admin", trust_env=False, headers=headers
    ) as client:
        yield client


async def ask(users: httpx.AsyncClient, key: str, said: str = SAID) -> httpx.Response:
    body = {"model": MODEL, "input": said}
    headers = {"authorization": f"Bearer {key}"}
    return await users.post("/v1/responses", json=body, headers=headers)


async def status_of(users: httpx.AsyncClient, key: str) -> int:
    """What a key is answered."""
    headers = {"authorization": f"Bearer {key}"}
    return (await users.get("/v1/models", headers=headers)).status_code


def taken(raw: redis.Redis, key: str) -> bytes:
    found = raw.get(key)
    assert isinstance(found, bytes)
    return found


def lookup(api_key: str) -> str:
    """What finds a key: the writer sees which one is new when theirs is made."""
    return redis_keys.api_key(digest(api_key, PEPPER.current))
