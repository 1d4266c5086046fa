"""The store dies and comes back under a running service: a real server, killed and restarted."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import httpx
import pytest
import redis
from websockets.asyncio.client import connect

from app.limits import admission
from app.transport.bounds import Bounds
from tenants.keys import api_keys
from tenants.records import Change
from tenants.storage import changes
from tests.app.conftest import ADMIN_TOKEN, MODEL, World, eventually, living
from tests.app.scripted_engine import ScriptedEngine
from tests.tenants.server import Server

RESPONSE = {"model": MODEL, "input": "hello"}
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture
def server() -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="pw-") as folder:
        server = Server(Path(folder))
        server.start()
        yield server
        server.kill()


@pytest.fixture
async def world(
    server: Server, engine: ScriptedEngine, limits: Bounds, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    """Every look at a tenant goes to the store: what works without it was known before."""
    monkeypatch.setattr(admission, "HEARTBEAT_SECONDS", 0.2)
    async with living(engine, limits, server.url, cache_seconds=0) as world:
        yield world


Full = Callable[[], contextlib.AbstractContextManager[None]]


@pytest.fixture
def full(server: Server) -> Full:
    """Within it, the store has no memory for another write."""

    @contextlib.contextmanager
    def filled() -> Iterator[None]:
        with redis.Redis.from_url(server.url) as operator:
            operator.config_set("maxmemory", 1)
            yield
            operator.config_set("maxmemory", 0)

    return filled


@pytest.fixture
async def http(world: World) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=world.base_url, trust_env=False, timeout=30) as client:
        # From here on the tenant is known.
        assert (await ask(client, world)).status_code == 200
        yield client


async def ask(client: httpx.AsyncClient, world: World, **fields: object) -> httpx.Response:
    headers = world.headers()
    return await client.post("/v1/responses", json={**RESPONSE, **fields}, headers=headers)


async def answer_on_socket(world: World) -> str:
    """The type of the last event of a response over a new socket."""
    async with connect(world.ws_url, additional_headers=world.headers(), proxy=None) as socket:
        await socket.send(json.dumps({"type": "response.create", **RESPONSE}))
        while True:
            kind: str = json.loads(await socket.recv())["type"]
            if kind in ("error", "response.completed", "response.failed"):
                return kind


async def back(client: httpx.AsyncClient) -> None:
    """Wait until the service has noticed that the store is there again."""
    async with asyncio.timeout(20):
        while (await client.get("/readyz")).json() != {"status": "ready"}:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def limit(world: World, **limits: int) -> None:
    """Limit the tenant; back when the service has heard of it, and knows nothing of it any more."""
    heard: list[Change] = []
    world.redis.add_listener(heard.append)
    await world.limit("acme", **limits)
    # The writer's own notice, and the one that goes round.
    await eventually(lambda: sum(change.kind == "tenant" for change in heard) == 2)


async def test_known_tenants_chat_on_and_everything_is_back_by_itself(
    world: World, http: httpx.AsyncClient, server: Server
) -> None:
    unknown = {"authorization": f"Bearer {world.keys['umbra']}"}
    server.kill()
    for _ in range(3):
        assert (await ask(http, world, store=False)).status_code == 200
        chat = await http.post("/v1/chat/completions", json=CHAT, headers=world.headers())
        assert chat.status_code == 200
        stream = await ask(http, world, store=False, stream=True)
        assert "event: response.completed" in stream.text
        assert await answer_on_socket(world) == "response.completed"
        refused = await http.post("/v1/responses", json=RESPONSE, headers=unknown)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "store_unavailable"
        assert int(refused.headers["retry-after"]) >= 1
        assert (await http.get("/readyz")).json()["status"] == "degraded"
    server.start()
    await back(http)
    assert (await http.post("/v1/responses", json=RESPONSE, headers=unknown)).status_code == 200
    wrong = {"authorization": f"Bearer {api_keys.generate()}"}
    assert (await http.post("/v1/responses", json=RESPONSE, headers=wrong)).status_code == 401


async def test_admin_writes_are_refused_and_work_again_when_the_store_is_back(
    world: World, http: httpx.AsyncClient, server: Server
) -> None:
    operator = {"authorization": f"Bearer {ADMIN_TOKEN}"}
    server.kill()
    refused = await http.post(
        f"{world.admin_url}/admin/tenants", json={"id": "nova"}, headers=operator
    )
    assert refused.status_code == 503
    assert refused.json()["code"] == "store_unavailable"
    server.start()
    await back(http)
    created = await http.post(
        f"{world.admin_url}/admin/tenants", json={"id": "nova"}, headers=operator
    )
    assert created.status_code == 201
    fresh = {"authorization": f"Bearer {created.json()['api_key']}"}
    assert (await http.post("/v1/responses", json=RESPONSE, headers=fresh)).status_code == 200


async def test_limits_fall_to_a_local_estimate_and_come_back(
    world: World, http: httpx.AsyncClient, server: Server
) -> None:
    await limit(world, requests_per_minute=5)
    assert (await ask(http, world)).status_code == 200
    server.kill()
    local = [(await ask(http, world, store=False)).status_code for _ in range(8)]
    # The estimate cannot know what the store has counted, but it never allows more than a minute's.
    assert local[0] == 200
    assert local[-1] == 429
    assert local.count(200) <= 5
    server.start()
    await back(http)
    assert (await ask(http, world)).headers["x-ratelimit-limit-requests"] == "5"


async def test_usage_is_kept_and_handed_in_later_and_only_once(
    world: World, http: httpx.AsyncClient, server: Server
) -> None:
    each = (await ask(http, world, store=False)).json()["usage"]["total_tokens"]
    server.kill()
    for _ in range(5):
        assert (await ask(http, world, store=False)).status_code == 200
    server.start()
    await back(http)
    assert (await ask(http, world)).status_code == 200
    # The first of them made the tenant known.
    await world.metered("acme", requests=8, tokens=8 * each)


async def test_a_stream_that_ends_in_the_outage_holds_no_place_for_ever(
    world: World, http: httpx.AsyncClient, server: Server
) -> None:
    await limit(world, concurrent_streams=1)
    world.engine.hold_after = 2
    running = asyncio.create_task(ask(http, world, store=False))
    await eventually(lambda: bool(world.engine.active))
    assert (await ask(http, world)).status_code == 429
    server.kill()
    world.engine.release()
    assert (await running).status_code == 200
    server.start()
    await back(http)
    async with asyncio.timeout(20):
        while (await ask(http, world)).status_code != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def test_a_full_store_takes_no_admin_writes_and_says_so(
    world: World, http: httpx.AsyncClient, full: Full
) -> None:
    operator = {"authorization": f"Bearer {ADMIN_TOKEN}"}
    tenants = f"{world.admin_url}/admin/tenants"
    writes = (
        ("POST", tenants, {"id": "nova"}),
        ("PATCH", f"{tenants}/acme", {"name": "Acme"}),
        ("POST", f"{tenants}/acme/keys", {"name": "another"}),
        ("PUT", f"{tenants}/acme/prompts/rules", {"text": "Be brief."}),
        ("POST", f"{world.admin_url}/admin/groups", {"id": "resellers"}),
    )
    with full():
        for method, url, body in writes:
            for headers in (operator, operator | {"idempotency-key": url[-8:]}):
                refused = await http.request(method, url, json=body, headers=headers)
                problem = refused.json()
                assert (refused.status_code, problem["code"]) == (503, "store_unavailable")
                assert "full" in problem["detail"]
                assert int(refused.headers["retry-after"]) >= 1
        assert (await http.get(f"{tenants}/nova", headers=operator)).status_code == 404
        assert (await http.get(f"{tenants}/acme", headers=operator)).json()["name"] == "acme"
        health = (await http.get(f"{world.admin_url}/readyz")).json()
        assert health["status"] == "degraded"
        assert "full" in health["reason"]
    await back(http)
    for method, url, body in writes:
        done = await http.request(
            method, url, json=body, headers=operator | {"idempotency-key": url[-8:]}
        )
        assert done.status_code in (200, 201)


async def test_a_full_disk_is_told_while_known_tenants_chat_on_and_no_loop_fails(
    world: World, http: httpx.AsyncClient, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "_SILENCE_SECONDS", 0.05)
    await limit(world, requests_per_minute=1000)  # the service has heard, and waits anew
    operator = {"authorization": f"Bearer {ADMIN_TOKEN}"}
    tenants, metrics = f"{world.admin_url}/admin/tenants", f"{world.admin_url}/metrics"
    with server.failing_disk():
        refused = await http.post(tenants, json={"id": "nova"}, headers=operator)
        assert (refused.status_code, refused.json()["code"]) == (503, "store_unavailable")
        assert "cannot write to its disk" in refused.json()["detail"]
        assert (await ask(http, world, store=False)).status_code == 200
        health = (await http.get(f"{world.admin_url}/readyz")).json()
        assert (health["status"], "its disk" in health["reason"]) == ("degraded", True)
        assert "partywall_store_up 0.0" in (await http.get(metrics, headers=operator)).text
        await asyncio.sleep(0.2)  # several pings of the listener's are refused
    await back(http)
    assert world.app.state.service.supervisor.failing == []
    assert "partywall_store_up 1.0" in (await http.get(metrics, headers=operator)).text
    created = await http.post(tenants, json={"id": "nova"}, headers=operator)
    assert created.status_code == 201


async def test_what_makes_room_is_done_in_a_full_store_and_audited(
    world: World, http: httpx.AsyncClient, full: Full
) -> None:
    operator = {"authorization": f"Bearer {ADMIN_TOKEN}"}
    with full():
        deleted = await http.delete(f"{world.admin_url}/admin/tenants/umbra", headers=operator)
        assert deleted.status_code == 200
        entries = await http.get(f"{world.admin_url}/admin/audit", headers=operator)
    assert entries.json()["entries"][0]["action"] == "tenant.delete"


async def test_chats_go_on_under_a_full_store_and_all_of_them_are_metered(
    world: World, http: httpx.AsyncClient, full: Full, caplog: pytest.LogCaptureFixture
) -> None:
    each = (await ask(http, world, store=False)).json()["usage"]["total_tokens"]
    await limit(world, requests_per_minute=1000, tokens_per_minute=100_000, concurrent_streams=1)
    unknown = {"authorization": f"Bearer {world.keys['umbra']}"}
    with full():
        kept = await ask(http, world)
        assert kept.status_code == 200
        for _ in range(2):
            assert (await ask(http, world, store=False)).status_code == 200
        chat = await http.post("/v1/chat/completions", json=CHAT, headers=world.headers())
        assert chat.json()["usage"]["total_tokens"] == each
        assert await answer_on_socket(world) == "response.completed"
        # What a full store can still be read for works as ever.
        assert (await http.post("/v1/responses", json=RESPONSE, headers=unknown)).status_code == 200
        # What it does not take is here, and the log says that it is nowhere else.
        path = f"/v1/responses/{kept.json()['id']}"
        assert (await http.get(path, headers=world.headers())).json() == kept.json()
        assert f"response {kept.json()['id']} is kept in memory only" in caplog.text
        await eventually(lambda: "usage is kept here until the store takes it" in caplog.text)
    await back(http)
    # The first made the tenant known.
    await world.metered("acme", requests=7, tokens=7 * each)
    await world.metered("umbra", requests=1, tokens=each)
    assert caplog.text.count("usage is kept here") == 1
    assert (await ask(http, world)).headers["x-ratelimit-limit-tokens"] == "100000"
