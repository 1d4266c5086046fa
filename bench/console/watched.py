"""A wall to look at: the console's pages, and a pool whose blocks come and go, without a service.

What is told is what `/admin/wall` tells, as often and as much at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Final

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from app.console.pages import console_routes
from bench.service.wall import PoolLoad, pool_core, whole
from engine.serve.core import EngineCore

_TICKS_A_SECOND: Final = 5
_OPERATOR: Final = {"name": "bench", "role": "admin", "tenant": None}
_NO_REQUESTS: Final = {
    "requests": [],
    "places": [],
    "block_size": 16,
    "replicas": 1,
    "on_disk": {},
}


@contextlib.asynccontextmanager
async def watched_pool(num_blocks: int, changes: int) -> AsyncIterator[str]:
    """Where the console of a full pool is, of which so many blocks are taken a second."""
    core = pool_core(num_blocks)
    load = PoolLoad(core.scheduler.pool, seed=5)
    load.grow(num_blocks)
    busy = asyncio.create_task(_keep_busy(load, changes))
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(_app(core), log_level="error", lifespan="off"))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        busy.cancel()
        server.should_exit = server.force_exit = True
        await serving


async def _keep_busy(load: PoolLoad, changes: int) -> None:
    while True:
        load.grow(changes // _TICKS_A_SECOND)
        await asyncio.sleep(1 / _TICKS_A_SECOND)


def _app(core: EngineCore) -> Starlette:
    async def me(_: Request) -> JSONResponse:
        return JSONResponse(_OPERATOR)

    async def requests(_: Request) -> JSONResponse:
        return JSONResponse(_NO_REQUESTS)

    async def wall(_: Request) -> StreamingResponse:
        return StreamingResponse(_frames(core), media_type="application/octet-stream")

    return Starlette(
        routes=[
            *console_routes(),
            Route("/admin/me", me),
            Route("/admin/wall", wall),
            Route("/admin/wall/requests", requests),
        ]
    )


async def _frames(core: EngineCore) -> AsyncIterator[bytes]:
    for frame in whole(core):
        yield len(frame).to_bytes(4, "big") + frame
    while True:
        await asyncio.sleep(1 / _TICKS_A_SECOND)
        frame = core.wall.frame("bench")
        yield len(frame).to_bytes(4, "big") + frame
