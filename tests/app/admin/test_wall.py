"""An operator watches the KV blocks: what is streamed equals the books of the engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from transformers import PreTrainedTokenizerBase

from engine.blocks.wall import ANEW
from engine.serve.core import EngineCore
from tests.app.conftest import MODEL, World
from tests.app.pooled_engine import BLOCK_SIZE, NUM_BLOCKS, PooledEngine
from tests.engine.blocks.test_wall import truth
from tests.engine.blocks.watching import Cell, decode


@pytest.fixture
async def engine(tokenizer: PreTrainedTokenizerBase) -> AsyncIterator[PooledEngine]:
    engine = PooledEngine(tokenizer)
    await engine.start()
    yield engine
    await engine.close()


class Reader:
    """Takes in the frames of a streaming answer."""

    def __init__(self, answer: httpx.Response) -> None:
        self._parts = answer.aiter_bytes()
        self._left = b""
        self.cells: list[Cell] = []
        self.owners: list[str] = []
        self.flags: list[int] = []

    async def take(self) -> None:
        """The next frame that is not empty."""
        length = 0
        while length == 0:
            length = int.from_bytes(await self._exactly(4), "big")
        flags, _ = decode(await self._exactly(length), self.cells, self.owners)
        self.flags.append(flags)

    async def until_shows(self, core: EngineCore) -> None:
        while self.cells != truth(core):
            await self.take()

    async def _exactly(self, count: int) -> bytes:
        while len(self._left) < count:
            self._left += await anext(self._parts)
        taken, self._left = self._left[:count], self._left[count:]
        return taken


async def say(world: World, text: str, tenant: str) -> Any:
    return await world.client(tenant).responses.create(
        model=MODEL, input=text, max_output_tokens=40
    )


async def test_the_stream_equals_the_books(
    admin: httpx.AsyncClient, world: World, engine: PooledEngine
) -> None:
    core = engine.cores[-1]
    await say(world, "before anybody looks", "acme")
    async with asyncio.timeout(30), admin.stream("GET", "/wall") as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/octet-stream"
        reader = Reader(answer)
        await reader.take()
        assert reader.flags == [ANEW]
        assert (len(reader.cells), reader.owners) == (NUM_BLOCKS, ["acme"])
        for tenant in ("acme", "umbra"):
            texts = [f"{number} questions of {tenant} " * 6 for number in range(4)]
            await asyncio.gather(*(say(world, text, tenant) for text in texts))
            while (await engine.stats()).running:
                pass
            await reader.until_shows(core)
        assert {cell.owner for cell in reader.cells} == {"", "acme", "umbra"}
    while core.wall._watchers:  # the service tells the engine that its reader has left
        await engine.stats()


async def test_who_is_not_known_any_more_is_told_anew(
    admin: httpx.AsyncClient, world: World, engine: PooledEngine
) -> None:
    await say(world, "something to be forgotten", "acme")
    async with asyncio.timeout(30), admin.stream("GET", "/wall") as answer:
        reader = Reader(answer)
        await reader.take()
        assert reader.owners == ["acme"]
        await engine.forget_tenant("acme")
        (watcher,) = engine.cores[-1].wall._watchers
        await engine.unwatch(watcher)
        while reader.flags[-1] != ANEW or len(reader.flags) == 1:
            await reader.take()
        assert reader.owners == []


async def test_a_stream_ends_when_it_is_to(admin: httpx.AsyncClient, engine: PooledEngine) -> None:
    async with asyncio.timeout(30), admin.stream("GET", "/wall", params={"seconds": 1}) as answer:
        frames = [part async for part in answer.aiter_raw()]
    assert frames
    head = await admin.head("/wall")
    assert (head.status_code, head.content) == (200, b"")
    while engine.cores[-1].wall._watchers:
        await engine.stats()


async def test_it_is_refused_without_token_for_strange_replicas_and_too_many(
    admin: httpx.AsyncClient, engine: PooledEngine
) -> None:
    stranger = await admin.get("/wall", headers={"authorization": "Bearer of-nobody-at-all"})
    assert stranger.status_code == 401
    elsewhere = await admin.get("/wall", params={"replica": 1})
    assert elsewhere.status_code == 409
    assert "replica: there is no number 1" in elsewhere.json()["detail"]
    assert (await admin.get("/wall", params={"seconds": 0})).status_code == 422
    for number in range(8):
        assert await engine.wall(f"somebody {number}")
    crowded = await admin.get("/wall")
    assert crowded.status_code == 429
    assert crowded.json()["code"] == "too_many_watchers"


async def test_requests_are_told_with_the_blocks_that_they_lean_on(
    admin: httpx.AsyncClient, world: World, engine: PooledEngine
) -> None:
    empty = (await admin.get("/wall/requests")).json()
    assert empty == {
        **{"block_size": BLOCK_SIZE, "replicas": 1},
        **{"requests": [], "places": [], "on_disk": {}},
    }
    question = "what the catalog says of anvils " * 4
    await say(world, question, "acme")
    await engine.clear()
    await say(world, question, "acme")
    await say(world, question, "acme")
    again, lost, first = (await admin.get("/wall/requests")).json()["requests"]
    assert [one["state"] for one in (first, lost, again)] == ["finished"] * 3
    assert {one["tenant"] for one in (first, lost, again)} == {"acme"}
    assert first["broke"]["reason"] == "never_seen"
    assert first["broke"]["larger_pool"] is None
    assert lost["broke"]["reason"] == "evicted"
    assert lost["broke"]["evicted_by"] == "deleted"
    assert lost["broke"]["evicted_for"] is None
    assert lost["broke"]["larger_pool"] == 0.0
    assert abs(lost["broke"]["evicted_at"] - time.time()) < 60
    assert again["broke"]["reason"] == "prompt_ends"
    assert again["broke"]["token"] == again["cached_tokens"] > 100
    assert again["lines"] == lost["lines"]
    assert len(again["lines"][0]) == again["blocks"]
    assert "anvils" not in str(again)
    came = [one["asked_at"] for one in (first, lost, again)]
    assert time.time() - 60 < came[0] < came[1] < came[2] <= time.time()
    told = (await admin.get("/wall/requests", params={"cell": again["lines"][0][2]})).json()
    place, _ = told["places"]
    assert (place["tenant"], place["number"], place["blocks"]) == ("acme", 3, again["blocks"])
    assert (place["requests"], place["hits"]) == (1, 1)
    assert 0 <= place["idle_seconds"] <= place["age_seconds"] < 60
    chains = (await admin.get("/tenants/acme/cache")).json()["chains"]
    assert [one["conversation"] for one in chains] == [
        one["conversation"] for one in told["places"]
    ]
    (wrong,) = (await admin.get("/wall/requests?cell=-1")).json()["errors"]
    assert wrong["field"] == "cell"


async def test_requests_of_strange_replicas_are_refused(admin: httpx.AsyncClient) -> None:
    elsewhere = await admin.get("/wall/requests", params={"replica": 1})
    assert elsewhere.status_code == 409
    assert "replica: there is no number 1" in elsewhere.json()["detail"]
    stranger = await admin.get("/wall/requests", headers={"authorization": "Bearer of-nobody"})
    assert stranger.status_code == 401


async def test_what_is_documented_of_it(admin: httpx.AsyncClient) -> None:
    document = (await admin.get("/openapi.json")).json()
    content = document["paths"]["/wall"]["get"]["responses"]["200"]["content"]
    assert list(content) == ["application/octet-stream"]


async def test_what_is_watched_ends_with_the_watchers_token(admin: httpx.AsyncClient) -> None:
    made = (await admin.post("/tokens", json={"name": "screen", "role": "read"})).json()
    headers = {"authorization": f"Bearer {made['admin_token']}"}
    async with asyncio.timeout(20), admin.stream("GET", "/wall", headers=headers) as answer:
        assert answer.status_code == 200
        assert (await admin.delete(f"/tokens/{made['id']}")).status_code == 204
        async for _ in answer.aiter_bytes():
            pass
