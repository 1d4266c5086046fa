"""Health, readiness, metrics, and warming."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import httpx
import openai
import pytest
from prometheus_client import parser
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import parser as openmetrics

from tests.app.conftest import ADMIN_TOKEN, MODEL, World, eventually


async def get(world: World, path: str, accept: str = "*/*") -> httpx.Response:
    headers = {"accept": accept, "authorization": f"Bearer {ADMIN_TOKEN}"}
    async with httpx.AsyncClient(base_url=world.admin_url) as client:
        return await client.get(path, headers=headers)


async def test_readiness_follows_the_engine_loop_and_health_does_not(world: World) -> None:
    assert (await get(world, "/readyz")).json() == {"status": "ready"}
    world.engine.down = True
    assert (await get(world, "/readyz")).status_code == 503
    assert (await get(world, "/healthz")).status_code == 200


async def test_a_dead_store_leaves_the_service_ready_but_degraded(world: World) -> None:
    with world.outage():
        answer = await get(world, "/readyz")
    assert (answer.status_code, answer.json()["status"]) == (200, "degraded")


async def test_tokens_of_an_answer_that_runs_are_counted_as_they_come(world: World) -> None:
    registry = world.app.state.service.metrics.registry

    def counted(name: str) -> float | None:
        return registry.get_sample_value(f"partywall_{name}_total", {"tenant": "acme"})

    world.engine.hold_after = 5
    answering = asyncio.create_task(world.client().responses.create(model=MODEL, input="hello"))
    await eventually(lambda: counted("generation_tokens") == 5)
    [request] = world.engine.requests
    assert counted("prompt_tokens") == len(request.prompt)
    assert counted("request_success") is None
    world.engine.release()
    usage = (await answering).usage
    assert usage is not None
    assert counted("generation_tokens") == usage.output_tokens
    assert counted("prompt_tokens") == usage.input_tokens == len(request.prompt)


async def test_metrics_count_tokens_and_show_the_engine(world: World) -> None:
    await world.client().responses.create(model=MODEL, input="hello")
    text = (await get(world, "/metrics")).text
    tokens = float(len("You said: hello") + 1)
    assert f'partywall_generation_tokens_total{{tenant="acme"}} {tokens}' in text
    finished = 'partywall_request_success_total{finished_reason="stop",tenant="acme"} 1.0'
    assert finished in text
    assert 'partywall_time_to_first_token_seconds_count{tenant="acme"} 1.0' in text
    assert 'partywall_requests_total{outcome="completed",route="responses"} 1.0' in text
    assert 'partywall_kv_blocks{state="in_use"} 3.0' in text
    assert 'partywall_kv_blocks{state="leased"} 6.0' in text
    assert "partywall_engine_lease_block_seconds_total 17.5" in text
    assert "partywall_engine_leases_broken_total 18.0" in text
    assert "partywall_kv_blocks_peak_in_use 7.0" in text
    assert 'partywall_num_preemptions_total{kind="recompute"} 9.0' in text
    assert 'partywall_host_blocks{state="used"} 8.0' in text
    assert 'partywall_host_blocks{state="total"} 64.0' in text
    counters = ("swapped_out", "swapped_in", "host_hit_blocks", "in_block_tokens", "spared_keys")
    for value, name in enumerate(counters, 10):
        assert f"partywall_engine_{name}_total {value}.0" in text
    assert "partywall_spec_decode_num_draft_tokens_total 15.0" in text
    assert "partywall_spec_decode_num_accepted_tokens_total 16.0" in text
    assert "partywall_streams_running 0.0" in text
    world.engine.down = True
    assert "partywall_engine_up 0.0" in (await get(world, "/metrics")).text


@pytest.mark.parametrize(
    ("accept", "media_type", "parse"),
    [
        ("", "text/plain", parser.text_string_to_metric_families),
        (
            "application/openmetrics-text; version=1.0.0",
            "application/openmetrics-text",
            openmetrics.text_string_to_metric_families,
        ),
    ],
)
async def test_the_official_parsers_read_a_scrape(
    world: World,
    accept: str,
    media_type: str,
    parse: Callable[[str], Iterable[Metric]],
) -> None:
    await world.client().responses.create(model=MODEL, input="hello")
    answer = await get(world, "/metrics", accept)
    assert answer.headers["content-type"].startswith(media_type)
    families = {family.name: family for family in parse(answer.text)}
    assert families["partywall_num_preemptions"].type == "counter"
    assert families["partywall_kv_cache_usage_perc"].type == "gauge"
    latencies = families["partywall_inter_token_latency_seconds"]
    assert latencies.type == "histogram"
    assert {sample.labels["tenant"] for sample in latencies.samples} == {"acme", "other"}


async def test_a_registered_prompt_s_requests_are_counted(world: World) -> None:
    await world.register("acme", "law", "You are the lawyer of acme. " * 4)
    await world.client().responses.create(model=MODEL, input="x", prompt={"id": "law"})
    registry = world.app.state.service.metrics.registry
    labels = {"prompt": "acme/law"}
    assert registry.get_sample_value("partywall_system_prompt_requests_total", labels) == 1


async def test_metrics_show_how_many_tasks_the_loop_has(world: World) -> None:
    async def tasks() -> float:
        await get(world, "/metrics")
        registry = world.app.state.service.metrics.registry
        return float(registry.get_sample_value("partywall_asyncio_tasks") or 0)

    idle = await tasks()
    world.engine.hold_after = 1
    create = world.client().responses.create
    running = [asyncio.create_task(create(model=MODEL, input="hello")) for _ in range(5)]
    await eventually(lambda: len(world.engine.active) == 5)
    assert await tasks() >= idle + 5
    world.engine.release()
    await asyncio.gather(*running)


async def test_refused_requests_are_counted_by_status(world: World) -> None:
    with pytest.raises(openai.BadRequestError):
        await world.client().responses.create(model=MODEL, input="x", previous_response_id="no")
    text = (await get(world, "/metrics")).text
    assert 'partywall_requests_total{outcome="400",route="responses"} 1.0' in text


async def test_prompts_are_warmed_when_registered_and_after_a_restart(world: World) -> None:
    prompt = await world.register("acme", "law", "You are the lawyer of acme. " * 4)
    request = world.engine.requests[0]
    assert request.sampling.max_tokens == 0
    assert request.namespaces.shared_tokens == len(request.prompt)
    index = await world.prompts.newest_index("acme", prompt)
    assert index is not None
    assert len(index.block_hashes) == len(request.prompt) // 16
    response = await world.client().responses.create(model=MODEL, input="x", prompt={"id": "law"})
    assert response.usage is not None
    hits = response.usage.input_tokens_details.cached_tokens
    assert hits == len(request.prompt) // 16 * 16 > 0
    await world.engine.restart()
    await eventually(lambda: len(world.engine.requests) == 3)
    assert world.engine.requests[2].prompt == request.prompt


async def test_a_prompt_that_never_fits_stays_cold_and_stops_no_other(world: World) -> None:
    endless = await world.prompts.put("acme", "endless", "word " * 1000)
    await world.register("acme", "law", "You are the lawyer of acme. " * 4)
    assert await world.prompts.newest_index("acme", endless) is None


async def test_a_prompt_put_again_after_its_deletion_is_warmed_again(world: World) -> None:
    await world.register("acme", "law", "You are the lawyer of acme.")
    await world.prompts.delete("acme", "law")
    await world.register("acme", "law", "You are the lawyer of acme.")


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/version"])
async def test_probes_need_no_token(world: World, path: str) -> None:
    async with httpx.AsyncClient(base_url=world.admin_url) as client:
        assert (await client.get(path)).status_code == 200


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_the_tenants_port_answers_probes(world: World, path: str) -> None:
    async with httpx.AsyncClient(base_url=world.base_url) as client:
        assert (await client.get(path)).status_code == 200


@pytest.mark.parametrize(
    "path", ["/metrics", "/admin/tenants", "/admin/docs", "/admin/openapi.json", "/admin/live"]
)
async def test_the_tenants_port_shows_nothing_of_an_operators(world: World, path: str) -> None:
    for token in (ADMIN_TOKEN, world.keys["acme"]):
        headers = {"authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(base_url=world.base_url, headers=headers) as client:
            assert (await client.get(path)).status_code == 404


async def test_the_operators_port_serves_no_tenant(world: World) -> None:
    async with httpx.AsyncClient(base_url=world.admin_url, headers=world.headers()) as client:
        assert (await client.get("/v1/models")).status_code == 404


async def test_an_engine_in_trouble_is_told_of_as_not_ready(world: World) -> None:
    world.engine.trouble = "Ray's head does not answer"
    answer = await get(world, "/readyz")
    assert answer.status_code == 503
    assert answer.json() == {"status": "unavailable", "reason": "Ray's head does not answer"}
