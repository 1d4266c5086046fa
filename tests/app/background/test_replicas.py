"""Limits hold for a deployment: two service processes over one store, and 32 clients at once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import date

import httpx
import msgspec
import pytest

from app.stores import Stores
from tenants.records import TenantLimits
from tenants.storage.connection import open_redis
from tenants.storage.embedded import EmbeddedStore
from tests.app.conftest import MODEL, PEPPER
from tests.app.replica import Replica

CLIENTS = 32
PATIENCE = 8


@dataclass
class Deployment:
    """A tenant of a deployment, and a client of each of its processes."""

    stores: Stores
    tenant_id: str
    processes: list[httpx.AsyncClient]
    statuses: list[int] = field(default_factory=list)

    async def ask(self, client: int, **fields: object) -> int:
        """The tokens that a stream has used, or 0 where it was refused."""
        body = {"model": MODEL, "input": "x" * 40, "stop": ["said"], "stream": True, **fields}
        process = self.processes[client % len(self.processes)]
        answer = await process.post("/v1/responses", json=body)
        self.statuses.append(answer.status_code)
        if answer.status_code != 200:
            return 0
        *_, last = (line for line in answer.text.splitlines() if line.startswith("data: {"))
        return int(json.loads(last[6:])["response"]["usage"]["total_tokens"])

    @contextlib.asynccontextmanager
    async def hold(self, client: int) -> AsyncIterator[int]:
        """The status of a stream that stays open while the context does."""
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "stream": True}
        process = self.processes[client % len(self.processes)]
        async with process.stream("POST", "/v1/chat/completions", json=body) as answer:
            yield answer.status_code

    async def metered(self, tokens: int) -> None:
        """Wait until the usage of all processes adds up to `tokens`; it never says more."""
        async with asyncio.timeout(10):
            while True:
                days = await self.stores.usage.read(self.tenant_id, date.min, date.max)
                counted = sum(day.prompt_tokens + day.output_tokens for day in days)
                assert counted <= tokens
                if counted == tokens:
                    return
                await asyncio.sleep(0.05)


@pytest.fixture(scope="module")
def urls(store_server: EmbeddedStore) -> Iterator[list[str]]:
    replicas = [Replica(store_server.url) for _ in range(2)]
    yield [replica.url() for replica in replicas]
    for replica in replicas:
        replica.stop()


@contextlib.asynccontextmanager
async def deployed(
    urls: list[str], server: EmbeddedStore, tenant_id: str, limits: TenantLimits
) -> AsyncIterator[Deployment]:
    """A new tenant with `limits`."""
    redis = await open_redis(server.url, 10.0)
    stores = Stores.over(redis, PEPPER)
    _, api_key = await stores.tenants.create_tenant(
        tenant_id, edit=lambda tenant: msgspec.structs.replace(tenant, limits=limits)
    )
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(redis.close)
        processes = [
            await stack.enter_async_context(
                httpx.AsyncClient(
                    base_url=url,
                    headers={"authorization": f"Bearer {api_key}"},
                    limits=httpx.Limits(max_connections=CLIENTS),
                    timeout=30,
                    trust_env=False,
                )
            )
            for url in urls
        ]
        yield Deployment(stores, tenant_id, processes)


async def test_two_processes_never_pass_a_tenants_tokens_of_a_minute(
    urls: list[str], store_server: EmbeddedStore
) -> None:
    limits = TenantLimits(tokens_per_minute=6000)
    async with deployed(urls, store_server, "minute", limits) as deployment:

        async def client(number: int) -> int:
            used, refusals = 0, 0
            while refusals < PATIENCE:
                # Far more is reserved than used: the rest must come back for others.
                tokens = await deployment.ask(number, max_output_tokens=200)
                used += tokens
                refusals = 0 if tokens else refusals + 1
                await asyncio.sleep(0 if tokens else 0.03)
            return used

        began = time.monotonic()
        used = sum(await asyncio.gather(*map(client, range(CLIENTS))))
        elapsed = time.monotonic() - began
        assert set(deployment.statuses) == {200, 429}
        assert 3000 < used <= 6000 * (1 + elapsed / 60)
        await deployment.metered(used)


async def test_two_processes_never_pass_a_tenants_concurrent_streams(
    urls: list[str], store_server: EmbeddedStore
) -> None:
    limits = TenantLimits(concurrent_streams=8)
    async with deployed(urls, store_server, "streams", limits) as deployment:
        for _ in range(2):
            num_held = 0
            async with asyncio.timeout(20):
                # What has ended makes room, as soon as its process knows that its reader has left.
                while num_held < 8:
                    async with contextlib.AsyncExitStack() as stack:
                        holds = (deployment.hold(n) for n in range(CLIENTS))
                        answers = await asyncio.gather(*map(stack.enter_async_context, holds))
                        num_held = answers.count(200)
                        assert num_held <= 8
                        assert answers.count(429) == CLIENTS - num_held


async def test_without_limits_every_client_is_served(
    urls: list[str], store_server: EmbeddedStore
) -> None:
    async with deployed(urls, store_server, "free", TenantLimits()) as deployment:
        used = await asyncio.gather(*map(deployment.ask, range(CLIENTS)))
        assert all(used)
        await deployment.metered(sum(used))


async def status_in_time(ask: Callable[[], Awaitable[httpx.Response]], status: str) -> None:
    """Wait until the response has `status`; what another process knows is written behind."""
    async with asyncio.timeout(10):
        while True:
            answer = await ask()
            if answer.status_code == 200 and answer.json()["status"] == status:
                return
            await asyncio.sleep(0.02)


async def answered_in_time(ask: Callable[[], Awaitable[httpx.Response]], status: int) -> None:
    async with asyncio.timeout(10):
        while (await ask()).status_code != status:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_a_running_response_is_shown_and_cancelled_by_any_process(
    urls: list[str], store_server: EmbeddedStore
) -> None:
    body = {"model": MODEL, "input": "x" * 40, "stream": True}
    async with (
        deployed(urls, store_server, "anywhere", TenantLimits()) as deployment,
        deployed(urls, store_server, "stranger", TenantLimits()) as stranger,
        deployment.processes[0].stream("POST", "/v1/responses", json=body) as answer,
    ):
        events = answer.aiter_lines()
        while not (line := await anext(events)).startswith("data: "):
            pass
        path = f"/v1/responses/{json.loads(line[6:])['response']['id']}"
        other = deployment.processes[1]
        await status_in_time(lambda: other.get(path), "in_progress")
        refused = await other.get(path, params={"stream": "true"})
        error = refused.json()["error"]
        assert (refused.status_code, error["code"]) == (409, "response_runs_elsewhere")
        assert refused.headers["retry-after"]
        for process in stranger.processes:
            assert (await process.get(path)).status_code == 404
            assert (await process.get(path, params={"stream": "true"})).status_code == 404
            assert (await process.post(f"{path}/cancel")).status_code == 404
        assert (await other.get(path)).json()["status"] == "in_progress"
        cancelled = await other.post(f"{path}/cancel")
        assert (cancelled.status_code, cancelled.json()["status"]) == (200, "cancelled")
        *_, last, _, done, _ = [line async for line in events]
        assert json.loads(last[6:])["response"]["status"] == "cancelled"
        assert done == "data: [DONE]"
        for process in deployment.processes:
            assert (await process.get(path)).json() == cancelled.json()
            assert (await process.post(f"{path}/cancel")).json() == cancelled.json()
        assert (await other.delete(path)).json()["deleted"]
        for process in deployment.processes:  # the other one hears of it
            await answered_in_time(lambda process=process: process.get(path), 404)
            assert (await process.get(f"{path}/input_items")).status_code == 404


@pytest.mark.exhaustive
async def test_a_response_of_a_killed_process_is_told_to_have_failed_within_seconds(
    urls: list[str], store_server: EmbeddedStore
) -> None:
    dying = Replica(store_server.url)
    body = {"model": MODEL, "input": "x" * 40, "background": True}
    async with deployed([dying.url(), urls[0]], store_server, "dying", TenantLimits()) as both:
        doomed, other = both.processes
        path = f"/v1/responses/{(await doomed.post('/v1/responses', json=body)).json()['id']}"
        await status_in_time(lambda: other.get(path), "in_progress")
        dying.kill()
        begun = time.monotonic()
        await status_in_time(lambda: other.get(path), "failed")
        assert time.monotonic() - begun < 8
        refused = await other.get(path, params={"stream": "true"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (410, "response_lost")


async def test_a_conversation_is_one_and_the_same_in_every_process(
    urls: list[str], store_server: EmbeddedStore
) -> None:
    async with deployed(urls, store_server, "talking", TenantLimits()) as deployment:
        here, other = deployment.processes
        made = (await here.post("/v1/conversations", json={})).json()["id"]
        body = {"model": MODEL, "input": "one", "conversation": made}
        async with here.stream("POST", "/v1/responses", json=body | {"stream": True}) as answer:
            events = answer.aiter_lines()
            while not (line := await anext(events)).startswith("data: "):
                pass
            refused = await other.post("/v1/responses", json=body)
            assert refused.json()["error"]["code"] == "conversation_locked"
            running = json.loads(line[6:])["response"]["id"]
            await other.post(f"/v1/responses/{running}/cancel")
            assert [line async for line in events]
        short = body | {"max_output_tokens": 3}
        for process in (other, here):
            assert (await process.post("/v1/responses", json=short)).status_code == 200
        listed = (await other.get(f"/v1/conversations/{made}/items")).json()["data"]
        said = [item["content"][0]["text"] for item in reversed(listed)]
        assert said == ["one", "You", "one", "You"]
