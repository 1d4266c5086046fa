"""A service that goes down, and the one that starts after it over the same store."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import httpx
from websockets.exceptions import ConnectionClosed

from app.assembly.main import drain
from app.assembly.service import create_app
from app.stores import Stores
from app.transport.bounds import Bounds
from tenants.storage.connection import open_redis
from tenants.storage.embedded import EmbeddedStore
from tests.app.conftest import MODEL, PEPPER, STALL_SECONDS, World, eventually, serving
from tests.app.responses.test_responses_ws import Raw, socket
from tests.app.scripted_engine import ScriptedEngine

LONG = 60.0
AT_ONCE = 0.01


@contextlib.asynccontextmanager
async def draining(world: World, drain_seconds: float) -> AsyncIterator[asyncio.Event]:
    """The world goes down beside the block, which may hurry it, and is waited for."""
    hurry = asyncio.Event()
    going = asyncio.create_task(drain(world.app.state.service, drain_seconds, hurry))
    await eventually(lambda: world.app.state.service.draining.begun)
    try:
        yield hurry
        async with asyncio.timeout(10):
            await going
    finally:
        going.cancel()


@contextlib.asynccontextmanager
async def another(
    world: World, store_server: EmbeddedStore, engine: ScriptedEngine | None = None
) -> AsyncIterator[World]:
    """The service that starts after the world's has stopped, over the same store."""
    engine = engine or ScriptedEngine(world.engine.tokenizer)
    engine.answer = engine.answer or world.engine.answer
    redis = await open_redis(store_server.url, timeout_seconds=STALL_SECONDS)
    stores = Stores.over(redis, PEPPER)
    eyes = world.app.state.service.generations.sight.eyes
    app = create_app(engine, stores, engine.tokenizer, MODEL, Bounds(), eyes=eyes)
    async with serving(app) as (url,):
        yield dataclasses.replace(world, base_url=url, app=app, engine=engine, stores=stores)
    await redis.close()


@contextlib.asynccontextmanager
async def http_of(world: World, tenant: str = "acme") -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(
        base_url=world.base_url, headers=world.headers(tenant), trust_env=False, timeout=20
    ) as client:
        yield client


async def closing(ws: Raw) -> tuple[int, str]:
    """The close code and reason; what comes before them is read over."""
    with contextlib.suppress(ConnectionClosed):
        while True:
            await ws.receive()
    return ws.connection.close_code or 0, ws.connection.close_reason or ""


async def suspended(world: World, tokens: int, **fields: object) -> list[dict[str, Any]]:
    """The events of a stream that a restart interrupts after so many tokens."""
    world.engine.hold_after = tokens
    async with socket(world) as ws:
        await ws.create(**{"input": "Say it.", **fields})
        await eventually(lambda: bool(world.engine.active))
        seen = [await ws.receive() for _ in range(2 if not tokens else 4)]
        async with draining(world, AT_ONCE):
            seen += await ws.turn()
            assert (await closing(ws))[0] == 1012
    return seen
