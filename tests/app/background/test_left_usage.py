"""A process that counts usage may be killed anywhere: each token that was given is paid once."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import date
from itertools import count
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from tenants import redis_keys
from tenants.records import TenantLimits
from tenants.storage.connection import GuardedRedis, open_redis
from tenants.storage.embedded import EmbeddedStore
from tenants.store import TenantStore
from tenants.usage.meter import UsageMeter
from tests.app.background.killed_meter import ADAPTER, OUTPUT_TOKENS, PROMPT_TOKENS, Life
from tests.app.conftest import PEPPER

ALL_LINES = 10_000


class Forks:
    """Processes that are killed at a line, one after the other."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def live(self, life: Life) -> bool:
        """Whether one came to its end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(life) + b"\n")
        status = int(await self._process.stdout.readline())
        assert status in (0, -signal.SIGKILL)
        return status == 0


@asynccontextmanager
async def forking() -> AsyncIterator[Forks]:
    pipe = asyncio.subprocess.PIPE
    command = [sys.executable, "-m", "tests.app.background.killed_meter"]
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    try:
        yield Forks(process)
    finally:
        await process.communicate(b"")


async def killed_at(lines: Iterable[int], url: str, folder: Path, log_bytes: int) -> int:
    """How many processes were killed, each behind so many lines, and their successors as well.

    None is killed behind its end.
    """
    redis, draw = await open_redis(url, 30.0), random.Random(0)
    killed = 0
    async with forking() as forks:
        for number in lines:
            home = folder / f"{number}"
            home.mkdir()
            await redis.execute("FLUSHALL")
            tenant, _ = await TenantStore(redis, PEPPER).create_tenant(
                "acme", edit=lambda one: replace(one, limits=TenantLimits(hard_budget_micros=1000))
            )
            life = Life(url, str(home), tenant.created_at, "serve", number, log_bytes)
            is_over = await forks.live(life)
            killed += not is_over
            for lived in (draw.randrange(400), draw.randrange(400), ALL_LINES, ALL_LINES):
                await forks.live(replace(life, does="recover", lines=lived))
            given = home / "given"
            await check(redis, given.stat().st_size if given.exists() else 0)
            assert list(home.glob("usage/*")) == []
            if is_over:
                break
    await redis.close()
    return killed


async def check(redis: GuardedRedis, given: int) -> None:
    """The tokens that were given are paid for, and nothing is reserved."""
    meter = UsageMeter(redis)
    days = await meter.read("acme", date.min, date.max)
    output, requests = sum(one.output_tokens for one in days), sum(one.requests for one in days)
    assert given <= output <= given + 1
    assert requests == -(-output // OUTPUT_TOKENS)
    assert sum(one.prompt_tokens for one in days) == requests * PROMPT_TOKENS
    assert sum(one.cost_nanos for one in days) == requests * PROMPT_TOKENS + output * 1000
    parts = await meter.read_by_adapter("acme", date.min, date.max)
    assert {part.adapter for part in parts} <= {ADAPTER}
    for counted in ("requests", "prompt_tokens", "output_tokens", "cost_nanos"):
        of_all, of_adapter = (sum(getattr(one, counted) for one in of) for of in (days, parts))
        assert of_all == of_adapter
    for key in (redis_keys.spending("acme"), redis_keys.presumed("acme")):
        assert await redis.execute("EXISTS", key) == 0


async def test_a_kill_between_admission_and_flush_loses_nothing(
    store_server: EmbeddedStore, tmp_path: Path
) -> None:
    lines = random.Random(1).sample(range(900), 20)
    assert await killed_at(lines, store_server.url, tmp_path, 1 << 20)


@pytest.mark.exhaustive
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("first", "log_bytes"), [(0, 1 << 20), (1, 100)])
async def test_a_kill_at_any_line_loses_nothing(
    store_server: EmbeddedStore, tmp_path: Path, first: int, log_bytes: int
) -> None:
    lines = count(first, 3)
    assert await killed_at(lines, store_server.url, tmp_path, log_bytes) > 300
