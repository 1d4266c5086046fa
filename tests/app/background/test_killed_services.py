"""Services killed under load: what clients had is what they pay, and no budget is overdrawn."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import date
from pathlib import Path

import httpx
import pytest
from msgspec.structs import replace

from app.stores import Stores
from tenants import redis_keys
from tenants.records import TenantLimits
from tenants.storage.connection import GuardedRedis, open_redis
from tenants.storage.embedded import EmbeddedStore
from tests.app.background.killed_service import PRICES
from tests.app.conftest import MODEL, PEPPER

STREAMS = 12
BUDGETS = {"acme": None, "umbra": None, "nova": 2_000, "terra": 20_000}
"""Hard ones, in millionths: some are spent long before the last kill."""


class Services:
    """One after the other, over one store and one data folder."""

    def __init__(self, process: asyncio.subprocess.Process, url: str, folder: Path) -> None:
        self._process = process
        self._line = f"{url} {folder}\n".encode()
        self._pid = 0

    async def start(self) -> str:
        """Where the next one serves."""
        assert self._process.stdin is not None
        self._process.stdin.write(self._line)
        self._pid = int(await self._told())
        return await self._told()

    async def kill(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        assert await self._told() == "over"

    async def _told(self) -> str:
        assert self._process.stdout is not None
        return (await self._process.stdout.readline()).decode().strip()


@asynccontextmanager
async def services(url: str, folder: Path) -> AsyncIterator[Services]:
    pipe = asyncio.subprocess.PIPE
    command = [sys.executable, "-m", "tests.app.background.killed_service"]
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    try:
        yield Services(process, url, folder)
    finally:
        await process.communicate(b"")


class Load:
    """Clients of a service, and what they have had: tokens and streams by tenant."""

    def __init__(self, base_url: str, keys: dict[str, str], draw: random.Random) -> None:
        self._base_url = base_url
        self._keys = keys
        self._draw = draw
        self.had: Counter[str] = Counter()
        self.streams: Counter[str] = Counter()
        self.refused = 0
        self.answered = asyncio.Event()

    async def run(self) -> None:
        """Ask until the service is gone."""
        async with httpx.AsyncClient(base_url=self._base_url, timeout=30) as client:
            await asyncio.gather(*(self._ask_on(client) for _ in range(STREAMS)))

    async def _ask_on(self, client: httpx.AsyncClient) -> None:
        with suppress(httpx.TransportError):
            while True:
                await self._ask(client, self._draw.choice([*self._keys]))

    async def _ask(self, client: httpx.AsyncClient, tenant: str) -> None:
        body = {
            "model": MODEL,
            "prompt": "on and",
            "max_tokens": self._draw.randint(1, 60),
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        headers = {"authorization": f"Bearer {self._keys[tenant]}"}
        async with client.stream("POST", "/v1/completions", json=body, headers=headers) as answer:
            if answer.status_code == 429:
                self.refused += 1
                await asyncio.sleep(0.01)
                return
            self.streams[tenant] += 1
            tokens = 0
            try:
                async for line in answer.aiter_lines():
                    if line.startswith("data: {"):
                        usage = json.loads(line[len("data: ") :]).get("usage")
                        tokens = max(tokens, usage["completion_tokens"] if usage else 0)
                        if tokens:
                            self.answered.set()
            finally:
                self.had[tenant] += tokens


class Books:
    """What the store says, beside what clients had."""

    def __init__(self, stores: Stores, redis: GuardedRedis, folder: Path) -> None:
        self._stores = stores
        self._redis = redis
        self._folder = folder
        self.paid: Counter[str] = Counter()
        self.slack = 0

    async def check(self, load: Load) -> None:
        """Once all that was left is booked: to the token, but for the step that was on its way."""
        async with asyncio.timeout(20):
            while len(list(self._folder.glob("*.slots"))) > 1:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        for tenant, budget in BUDGETS.items():
            days = await self._stores.usage.read(tenant, date.min, date.max)
            paid = sum(day.output_tokens for day in days)
            more = paid - self.paid[tenant] - load.had[tenant]
            assert 0 <= more <= STREAMS
            self.paid[tenant], self.slack = paid, self.slack + more
            cost = sum(day.cost_nanos for day in days)
            prompts = sum(day.prompt_tokens for day in days)
            assert cost == prompts * PRICES.input + paid * PRICES.output
            assert budget is None or cost <= budget * 1000
            assert await self._redis.execute("EXISTS", redis_keys.spending(tenant)) == 0


async def kill_services(kills: int, url: str, folder: Path, seed: int) -> tuple[Books, int]:
    """Have so many be killed at random points, and check behind each."""
    draw, journals = random.Random(seed), folder / "usage"
    redis = await open_redis(url, 30.0)
    await redis.execute("FLUSHALL")
    stores = Stores.over(redis, PEPPER)
    keys = {}
    for tenant, budget in BUDGETS.items():
        limits = TenantLimits(hard_budget_micros=budget)
        _, keys[tenant] = await stores.tenants.create_tenant(
            tenant, edit=lambda one, limits=limits: replace(one, limits=limits)
        )
    books, refused = Books(stores, redis, journals), 0
    async with services(url, journals) as running:
        base_url = await running.start()
        for number in range(kills):
            load = Load(base_url, keys, draw)
            asking = asyncio.create_task(load.run())
            if number % 2 == 0:  # else perhaps before anything was answered
                await load.answered.wait()
            await asyncio.sleep(draw.uniform(0.05, 0.6))
            await running.kill()
            await asking
            refused += load.refused
            base_url = await running.start()
            await books.check(load)
        await running.kill()
    await redis.close()
    return books, refused


async def test_what_clients_had_before_a_kill_is_what_they_pay(
    store_server: EmbeddedStore, tmp_path: Path
) -> None:
    books, _ = await kill_services(3, store_server.url, tmp_path, seed=1)
    assert books.paid.total() > 0


@pytest.mark.exhaustive
@pytest.mark.timeout(1200)
async def test_two_hundred_kills_under_load_lose_nothing_and_overdraw_no_budget(
    store_server: EmbeddedStore, tmp_path: Path
) -> None:
    books, refused = await kill_services(200, store_server.url, tmp_path, seed=2)
    print(f"tokens {books.paid}, of these not seen by clients {books.slack}, refused {refused}")
    assert refused > 0
