"""Health, readiness, metrics, and warming."""

from __future__ import annotations

import httpx
import pytest
from tenants.store import Change

from tests.app.conftest import MODEL, World, eventually


async def get(world: World, path: str) -> httpx.Response:
    async with httpx.AsyncClient(base_url=world.base_url) as client:
        return await client.get(path)


async def test_readiness_follows_the_engine_loop_and_health_does_not(world: World) -> None:
    assert (await get(world, "/readyz")).json() == {"status": "ready"}
    world.engine.down = True
    assert (await get(world, "/readyz")).status_code == 503
    assert (await get(world, "/healthz")).status_code == 200


async def test_a_dead_store_leaves_the_service_ready_but_degraded(world: World) -> None:
    world.store.down = True
    answer = await get(world, "/readyz")
    assert (answer.status_code, answer.json()["status"]) == (200, "degraded")


async def test_metrics_count_tokens_and_show_the_engine(world: World) -> None:
    await world.client().responses.create(model=MODEL, input="hello")
    text = (await get(world, "/metrics")).text
    tokens = float(len("You said: hello") + 1)
    assert f'partywall_tokens_total{{kind="output"}} {tokens}' in text
    assert 'partywall_requests_total{outcome="completed",route="responses"} 1.0' in text
    assert 'partywall_kv_blocks{state="in_use"} 3.0' in text
    assert "partywall_kv_blocks_peak_in_use 7.0" in text
    assert "partywall_engine_preemptions 5.0" in text
    assert "partywall_streams_running 0.0" in text
    world.engine.down = True
    assert "partywall_engine_up 0.0" in (await get(world, "/metrics")).text


async def test_prompts_are_warmed_when_registered_and_after_a_restart(world: World) -> None:
    world.prompts.put("acme", "law", "You are the lawyer of acme. " * 4)
    world.store.queue.put_nowait(Change("prompts", "acme"))
    await eventually(lambda: len(world.prompts.indexes) == 1)
    request = world.engine.requests[0]
    assert request.sampling.max_tokens == 0
    assert request.namespaces.shared_tokens == len(request.prompt)
    response = await world.client().responses.create(model=MODEL, input="x", prompt={"id": "law"})
    assert response.usage is not None
    hits = response.usage.input_tokens_details.cached_tokens
    assert hits == len(request.prompt) // 16 * 16 > 0
    await world.engine.restart()
    await eventually(lambda: len(world.prompts.indexes) == 2)


async def test_a_prompt_that_never_fits_stays_cold_and_stops_no_other(world: World) -> None:
    world.prompts.put("acme", "endless", "word " * 1000)
    world.prompts.put("acme", "law", "You are the lawyer of acme. " * 4)
    world.store.queue.put_nowait(Change("prompts", "acme"))
    await eventually(lambda: len(world.prompts.indexes) == 1)
    assert world.prompts.indexes[0]["name"] == "law"


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
async def test_operators_need_no_key(world: World, path: str) -> None:
    assert (await get(world, path)).status_code == 200
