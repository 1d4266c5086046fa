"""Whether a head that dies or stands still is noticed; the test plays the head."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from tests.app.cluster.door.test_fleet import eventually

pytest.importorskip("grpc", reason="needs the extra partywall[cluster]")

import grpc.aio

from app.cluster.door import ray_head as health
from app.cluster.door.ray_head import HeadWatch

Answer = Callable[[bytes, object], Awaitable[bytes]]


async def serving(_: bytes, __: object) -> bytes:
    return b"\x08\x01"


async def halted(_: bytes, __: object) -> bytes:
    await asyncio.sleep(60)
    return b""


@asynccontextmanager
async def head(answer: Answer, port: int = 0) -> AsyncIterator[int]:
    server = grpc.aio.server()
    check = grpc.unary_unary_rpc_method_handler(answer)
    handler = grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": check})
    server.add_generic_rpc_handlers((handler,))
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield bound
    finally:
        await server.stop(None)


@pytest.mark.parametrize("second", [None, halted], ids=["killed", "halted"])
async def test_a_head_that_does_not_answer_is_lost_until_it_does(
    second: Answer | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "_LOOK_SECONDS", 0.05)
    watch = HeadWatch()
    async with head(serving) as port:
        running = asyncio.create_task(watch.run(f"127.0.0.1:{port}"))
        await asyncio.sleep(0.2)
        assert not watch.is_lost
    if second is not None:
        async with head(second, port):
            await eventually(lambda: watch.is_lost)
    await eventually(lambda: watch.is_lost)
    async with head(serving, port):
        await eventually(lambda: not watch.is_lost)
    running.cancel()


async def test_a_head_that_cannot_be_asked_for_want_of_certificates_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(health, "_LOOK_SECONDS", 0.05)
    monkeypatch.setenv("RAY_USE_TLS", "1")
    monkeypatch.setenv("RAY_TLS_CA_CERT", "/nowhere")
    watch = HeadWatch()
    async with head(serving) as port:
        watching = asyncio.create_task(watch.run(f"127.0.0.1:{port}"))
        await eventually(lambda: watch.is_lost)
        monkeypatch.delenv("RAY_USE_TLS")
        await eventually(lambda: not watch.is_lost)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
