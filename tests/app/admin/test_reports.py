"""What an operator reads: usage as JSON and CSV, and the live view."""

from __future__ import annotations

import csv
import io
from datetime import UTC, date, datetime

import httpx
import websockets
from msgspec import structs

from engine.client import FleetFigures, ReplicaFigures
from tenants.usage.meter import UsageMeter
from tests.app.admin.problem import fields
from tests.app.conftest import MODEL, World, eventually
from tests.tenants.adapters.putting import put

USAGE = "/tenants/acme/usage"


async def used_on(world: World, day: date, tenant: str = "acme", **counts: int) -> None:
    """Usage, as a service would have handed it in on that day."""
    noon = datetime(day.year, day.month, day.day, 12, tzinfo=UTC).timestamp()
    meter = UsageMeter(world.redis, clock=lambda: noon)
    meter.add(tenant, **counts)
    await meter.flush()


async def test_usage_is_told_by_day_as_json_and_csv(admin: httpx.AsyncClient, world: World) -> None:
    await used_on(world, date(2026, 1, 31), requests=2, prompt_tokens=30, output_tokens=5)
    await used_on(world, date(2026, 2, 1), requests=1, prompt_tokens=10, cached_tokens=8)
    document = (await admin.get(USAGE)).json()
    assert [day["day"] for day in document["usage"]] == ["2026-01-31", "2026-02-01"]
    assert document["usage"][0] == {
        "day": "2026-01-31",
        "requests": 2,
        "prompt_tokens": 30,
        "cached_tokens": 0,
        "cache_write_tokens": 0,
        "computed_tokens": 0,
        "output_tokens": 5,
        "lease_block_seconds": 0,
        "stream_seconds": 0.0,
        "cost": "0.000000000",
    }
    for answer in (
        await admin.get(USAGE, params={"format": "csv"}),
        await admin.get(USAGE, headers={"accept": "text/csv, application/json;q=0.5"}),
    ):
        assert answer.headers["content-type"].startswith("text/csv")
        lines = list(csv.DictReader(io.StringIO(answer.text)))
        assert lines == [
            {key: str(value) for key, value in day.items()} for day in document["usage"]
        ]
    both = {"accept": "text/csv"}
    assert (await admin.get(USAGE, params={"format": "json"}, headers=both)).json() == document


async def test_usage_with_adapters_is_told_by_adapter_and_to_no_other_tenant(
    admin: httpx.AsyncClient, world: World
) -> None:
    world.engine.linears = {"model.q_proj": (8, 8)}
    await world.stores.groups.create("guild")
    await admin.patch("/tenants/acme", json={"share_group": "guild"})
    for owner, name in (("acme", "rhyme"), ("@guild", "judge"), ("umbra", "rhyme")):
        await put(world.stores.adapters, owner, name)
    tokens = 0
    for model in (MODEL, f"{MODEL}:rhyme", f"{MODEL}:judge", f"{MODEL}:rhyme"):
        answer = await world.client().responses.create(model=model, input="hello")
        assert answer.usage is not None
        tokens += answer.usage.total_tokens
    await world.metered("acme", 4, tokens)
    of_day = (await admin.get(USAGE)).json()["usage"][0]
    document = (await admin.get(f"{USAGE}/adapters")).json()
    told = {line["adapter"]: line for line in document["usage"]}
    assert {name: line["requests"] for name, line in told.items()} == {
        "@guild/judge": 1,
        "rhyme": 2,
    }
    assert told["rhyme"]["prompt_tokens"] == of_day["prompt_tokens"] // 2
    assert told["rhyme"]["output_tokens"] == of_day["output_tokens"] // 2
    assert 0 < told["rhyme"]["stream_seconds"] < of_day["stream_seconds"]
    answer = await admin.get(f"{USAGE}/adapters", params={"format": "csv"})
    assert "acme-usage-by-adapter.csv" in answer.headers["content-disposition"]
    assert list(csv.DictReader(io.StringIO(answer.text))) == [
        {key: str(value) for key, value in line.items()} for line in document["usage"]
    ]
    nobodys = {"since": "2026-03-02", "until": "2026-03-01"}
    assert fields(await admin.get(f"{USAGE}/adapters", params=nobodys), 422) == ["until"]
    others = await admin.get("/tenants/umbra/usage/adapters")
    assert others.json() == {"tenant": "umbra", "currency": None, "usage": []}
    assert (await admin.get("/tenants/nobody/usage/adapters")).status_code == 404
    metrics = world.app.state.service.metrics.registry
    labels = {"tenant": "acme", "adapter": "@guild/judge"}
    count = metrics.get_sample_value("partywall_adapter_requests_total", labels)
    assert count == 1


async def test_usage_is_told_of_the_days_asked_for(admin: httpx.AsyncClient, world: World) -> None:
    for day in range(1, 6):
        await used_on(world, date(2026, 3, day), requests=day)

    async def days(**asked: str) -> list[int]:
        answer = await admin.get(USAGE, params=asked)
        return [day["requests"] for day in answer.json()["usage"]]

    assert await days(since="2026-03-02", until="2026-03-04") == [2, 3, 4]
    assert await days(since="2026-03-04") == [4, 5]
    assert await days(until="2026-03-01") == [1]
    assert await days(since="2026-04-01") == []
    wrong = {"since": "2026-03-02", "until": "2026-03-01"}
    assert fields(await admin.get(USAGE, params=wrong), 422) == ["until"]


async def test_the_usage_of_all_tenants_is_told_at_once_as_json_and_csv(
    admin: httpx.AsyncClient, world: World
) -> None:
    await used_on(world, date(2026, 1, 31), requests=2, prompt_tokens=30)
    await used_on(world, date(2026, 2, 1), requests=1, prompt_tokens=10, cost_nanos=5)
    await used_on(world, date(2026, 2, 1), "umbra", requests=4)
    await world.stores.tenants.create_tenant("idle")
    days = {"since": "2026-01-31", "until": "2026-02-02"}
    document = (await admin.get("/usage", params=days)).json()
    assert {name: document[name] for name in days} == days
    assert document["next"] is None
    acme, umbra = document["usage"]
    assert (acme["tenant"], acme["requests"], acme["prompt_tokens"]) == ("acme", 3, 40)
    assert (acme["cost"], umbra["tenant"], umbra["requests"]) == ("0.000000005", "umbra", 4)
    answer = await admin.get("/usage", params={**days, "format": "csv"})
    assert "usage-2026-01-31-2026-02-02.csv" in answer.headers["content-disposition"]
    assert answer.text.startswith("tenant,requests,prompt_tokens,")
    assert list(csv.DictReader(io.StringIO(answer.text))) == [
        {key: str(value) for key, value in line.items()} for line in document["usage"]
    ]
    of_month = (await admin.get("/usage", params={"until": "2026-02-02"})).json()
    assert of_month["since"] == "2026-02-01"
    assert [line["requests"] for line in of_month["usage"]] == [1, 4]
    first = (await admin.get("/usage", params={**days, "limit": 1})).json()
    assert (first["usage"], first["next"]) == ([acme], "acme")
    others = (await admin.get("/usage", params={**days, "after": "acme"})).json()
    assert (others["usage"], others["next"]) == ([umbra], None)


async def test_the_usage_of_all_is_bounded_and_for_who_sees_all(
    admin: httpx.AsyncClient, world: World
) -> None:
    answer = await admin.get("/usage", params={"since": "2025-01-01", "until": "2026-01-01"})
    assert fields(answer, 422) == ["since"]
    answer = await admin.get("/usage", params={"limit": 10_001})
    assert fields(answer, 422) == ["limit"]
    made = await admin.post("/tokens", json={"name": "bob", "role": "read", "tenant": "acme"})
    bearing = {"authorization": f"Bearer {made.json()['admin_token']}"}
    assert (await admin.get("/usage", headers=bearing)).status_code == 403


async def test_a_chat_is_in_the_usage_and_in_the_export_of_a_deleted_tenant(
    admin: httpx.AsyncClient, world: World
) -> None:
    response = await world.client().responses.create(model=MODEL, input="hello")
    assert response.usage is not None
    await world.metered("acme", 1, response.usage.total_tokens)
    (today,) = (await admin.get(USAGE)).json()["usage"]
    assert (today["requests"], today["output_tokens"]) == (1, response.usage.output_tokens)
    assert (await admin.delete("/tenants/acme")).json()["usage"] == [today]
    assert world.engine.forgotten == ["acme"]


async def test_the_live_view_shows_streams_sockets_and_blocks_by_tenant(
    admin: httpx.AsyncClient, world: World
) -> None:
    await admin.put("/tenants/umbra/prompts/desk", json={"text": "Be brief and friendly. " * 3})
    await admin.post("/tenants/umbra/prompts/desk/pin")
    world.engine.hold_after = 2
    async with websockets.connect(
        world.ws_url, additional_headers=world.headers("acme"), proxy=None
    ) as socket:
        await socket.send('{"type": "response.create", "input": "hello"}')
        await eventually(lambda: bool(world.engine.active))
        live = (await admin.get("/live")).json()
        world.engine.release()
    tenants = {one["id"]: one for one in live["tenants"]}
    assert (tenants["acme"]["sockets"], tenants["acme"]["streams"]) == (1, 1)
    assert (tenants["acme"]["running"], tenants["umbra"]["running"]) == (1, 0)
    pinned = tenants["umbra"]["blocks_pinned"]
    assert pinned == live["engine"]["blocks_pinned"] > 0
    assert (tenants["umbra"]["sockets"], tenants["acme"]["blocks_pinned"]) == (0, 0)
    assert live["engine"]["blocks_total"] == world.engine.info.num_blocks


async def test_the_live_view_works_while_the_engine_does_not(
    admin: httpx.AsyncClient, world: World
) -> None:
    world.engine.down = True
    async with websockets.connect(
        world.ws_url, additional_headers=world.headers("acme"), proxy=None
    ):
        live = (await admin.get("/live")).json()
    assert live["engine"] is None
    assert [(one["id"], one["sockets"]) for one in live["tenants"]] == [("acme", 1)]


async def test_the_live_view_shows_each_replica_and_where_requests_went(
    admin: httpx.AsyncClient, world: World
) -> None:
    alone = (await admin.get("/live")).json()
    assert (alone["replicas"], alone["routing"]) == ([], None)
    stats = structs.replace(
        await world.engine.stats(),
        running=3,
        blocks_in_use=16,
        blocks_total=64,
        prompt_tokens=100,
        cached_tokens=80,
    )
    rest = {"engine_restarts": 2, "index_lag_seconds": 0.5, "events_lost": 1}
    world.engine.fleet = FleetFigures(
        replicas=[
            ReplicaFigures(name="a1", stats=stats, is_up=True, **rest),  # type: ignore[arg-type]
            ReplicaFigures(name="b2", stats=None, is_up=False, **rest),  # type: ignore[arg-type]
        ],
        num_wanted=3,
        routed={"residency": 7, "load": 5, "random": 1},
        index_blocks=9,
        streams_moved=4,
    )
    live = (await admin.get("/live")).json()
    up, down = live["replicas"]
    said = {"running": 3, "queued": stats.waiting, "queue_seconds": stats.queue_seconds}
    assert up == {"id": "a1", "up": True, "kv_in_use": 0.25, "hit_rate": 0.8} | said | rest
    unknown = dict.fromkeys((*said, "kv_in_use", "hit_rate"))
    assert down == {"id": "b2", "up": False} | unknown | rest
    assert live["routing"] == {
        "replicas_wanted": 3,
        "residency": 7,
        "load": 5,
        "random": 1,
        "index_blocks": 9,
        "streams_moved": 4,
    }
    scraped = (await admin.get(f"{world.admin_url}/metrics")).text
    assert 'partywall_replica_up{replica="b2"} 0.0' in scraped
    assert 'partywall_requests_routed_total{by="residency"} 7.0' in scraped
    world.engine.fleet = None
    assert "partywall_replica_" not in (await admin.get(f"{world.admin_url}/metrics")).text
