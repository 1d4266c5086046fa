"""Background loops fail and run again: alone, and in a service whose store has gone odd."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from app.background import supervisor as supervision
from app.background.supervisor import Supervisor
from app.observe.metrics import Metrics
from tests.app.conftest import ADMIN_TOKEN, MODEL, World, eventually


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "FIRST_DELAY_SECONDS", 0.01)


async def test_a_loop_that_fails_or_ends_is_started_again_and_told() -> None:
    metrics = Metrics()
    supervisor = Supervisor(metrics)
    starts, steady = 0, asyncio.Event()

    async def fragile() -> None:
        nonlocal starts
        starts += 1
        if starts == 1:
            raise ValueError("unforeseen")
        if starts == 2:
            raise asyncio.CancelledError  # of something that it waited for: nobody stops the loop
        if starts == 4:
            steady.set()
            await asyncio.Event().wait()

    async def healthy() -> None:
        await asyncio.Event().wait()

    async with supervisor.running(fragile=fragile, healthy=healthy):
        async with asyncio.timeout(10):
            await steady.wait()
        assert supervisor.failing == ["fragile"]
    failures = metrics.registry.get_sample_value
    assert failures("partywall_loop_failures_total", {"loop": "fragile"}) == 3


async def test_a_failure_is_forgotten_once_the_loop_has_run_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervision, "_REMEMBERED_SECONDS", 0.3)
    supervisor = Supervisor(Metrics())
    failed = False

    async def once() -> None:
        nonlocal failed
        if not failed:
            failed = True
            raise ValueError("unforeseen")
        await asyncio.Event().wait()

    async with supervisor.running(once=once):
        await eventually(lambda: bool(supervisor.failing))
        await eventually(lambda: not supervisor.failing)


async def test_usage_is_metered_again_after_what_nobody_foresaw(world: World) -> None:
    await world.redis.execute("SET", "pw:{acme}:usage", "not a hash")
    answer = await world.client().responses.create(model=MODEL, input="hello")
    assert answer.usage is not None
    supervisor = world.app.state.service.supervisor
    await eventually(lambda: supervisor.failing == ["usage"])
    operator = {"authorization": f"Bearer {ADMIN_TOKEN}"}
    async with httpx.AsyncClient(base_url=world.admin_url, headers=operator) as client:
        ready = await client.get("/readyz")
        assert (ready.status_code, ready.json()["status"]) == (200, "degraded")
        assert "usage" in ready.json()["reason"]
        assert 'partywall_loop_failures_total{loop="usage"}' in (await client.get("/metrics")).text
    await world.redis.execute("DEL", "pw:{acme}:usage")
    await world.metered("acme", 1, answer.usage.total_tokens)
