"""A demonstration shows what it says, one at a time, and leaves nothing, whatever ends it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import httpx
import pytest
from msgspec import structs
from transformers import PreTrainedTokenizerBase

from app.background.demonstration import Demonstration
from tenants.demonstrations import Demonstrated
from tests.app.conftest import MODEL, STALL_SECONDS, World, eventually
from tests.app.pooled_engine import PooledEngine

TENANTS = ["demo-ana", "demo-ben", "demo-cleo"]
HERE = "/demonstration"
NUM_BLOCKS = 480


@pytest.fixture
async def engine(tokenizer: PreTrainedTokenizerBase) -> AsyncIterator[PooledEngine]:
    engine = PooledEngine(tokenizer, NUM_BLOCKS)
    await engine.start()
    yield engine
    await engine.close()


@pytest.fixture
def demonstration(world: World) -> Demonstration:
    found: Demonstration = world.app.state.service.demonstration
    found.beat_seconds = 2.0
    return found


async def over(admin: httpx.AsyncClient) -> list[str]:
    """Wait for its end; what it has said."""
    async with asyncio.timeout(60):
        while (state := (await admin.get(HERE)).json())["running"]:
            pass
    return [one["text"] for one in state["captions"]]


async def tenants(admin: httpx.AsyncClient) -> list[str]:
    return [one["id"] for one in (await admin.get("/tenants")).json()["tenants"]]


async def test_it_shows_all_and_leaves_nothing(
    admin: httpx.AsyncClient, engine: PooledEngine, demonstration: Demonstration
) -> None:
    demonstration.beat_seconds = 0.5
    assert (await admin.get(HERE)).json()["by"] is None
    begun = await admin.post(HERE)
    assert begun.status_code == 202, begun.text
    assert begun.json()["running"]
    assert begun.json()["tenants"] == TENANTS
    again = await admin.post(HERE)
    assert (again.status_code, again.json()["code"]) == (409, "no_demonstration")
    said = await over(admin)
    for word in ("Sharing", "A fork", "Pressure", "An eviction", "That was it"):
        assert any(one.startswith(word) for one in said), (word, said)
    assert await tenants(admin) == ["acme", "umbra"]
    assert engine.cached == {}, "their blocks are gone"
    stats = await engine.stats()
    assert stats.blocks_in_use == 0
    assert stats.copied_blocks > 0, "a fork has copied what both would write"
    assert stats.preemptions > 0, "and one was preempted for the other"
    ana, umbra = [
        [one for one in engine.requests if one.tenant == tenant] for tenant in (TENANTS[0], "umbra")
    ]
    assert umbra == []
    assert len(ana) == 3
    assert {one.share.max_blocks for one in ana} == {60}
    assert len({one.namespaces.private_key for one in engine.requests}) == 3
    for tenant in TENANTS:
        assert (await admin.get(f"/tenants/{tenant}/usage")).status_code == 404
    worth = (await admin.get("/sharing")).json()
    assert (worth["total"]["today"]["requests"], worth["tenants"]) == (0, []), "it was for nobody"
    audited = (await admin.get("/audit")).json()["entries"]
    assert len([one for one in audited if "demo-" in str(one)]) == 2 * len(TENANTS)


async def test_requests_that_come_meanwhile_find_none_of_its_blocks_and_go_first(
    admin: httpx.AsyncClient, world: World, engine: PooledEngine, demonstration: Demonstration
) -> None:
    assert (await admin.post(HERE)).is_success
    await eventually(lambda: bool(engine.requests))
    share = engine.requests[0].share
    assert share.weight < 1
    answer = await world.client().responses.create(model=MODEL, input="hello", max_output_tokens=2)
    assert answer.status == "incomplete"
    assert (await admin.delete(HERE)).status_code == 204
    await over(admin)


async def test_it_is_ended_early(admin: httpx.AsyncClient, demonstration: Demonstration) -> None:
    assert (await admin.delete(HERE)).status_code == 204, "there is none"
    demonstration.beat_seconds = 60.0
    assert (await admin.post(HERE)).is_success
    async with asyncio.timeout(20):
        while TENANTS[0] not in await tenants(admin):
            pass
    assert (await admin.delete(HERE)).status_code == 204
    said = await over(admin)
    assert len(said) <= 1
    assert await tenants(admin) == ["acme", "umbra"]


async def test_what_a_killed_process_has_left_is_removed(
    admin: httpx.AsyncClient, world: World, demonstration: Demonstration
) -> None:
    now = time.time()
    left = Demonstrated(by="ann", tenants=TENANTS, began_at=now - 100, ends_at=now + 100)
    store = world.stores.tenants
    assert await world.stores.demonstrations.begin(left)
    await store.create_tenant(TENANTS[0], "Demonstration")
    await store.create_tenant(TENANTS[1], "A customer")
    elsewhere = await admin.delete(HERE)
    assert (elsewhere.status_code, elsewhere.json()["code"]) == (409, "demonstration_elsewhere")
    await demonstration._look()
    assert TENANTS[0] in await tenants(admin), "it may still run"
    await world.stores.demonstrations.end(left)
    dead = structs.replace(left, ends_at=now - 50)
    assert await world.stores.demonstrations.begin(dead)
    await demonstration._look()
    assert await tenants(admin) == ["acme", TENANTS[1], "umbra"], "who is called so stays"
    assert await world.stores.demonstrations.current() is None
    refused = await admin.post(HERE)
    assert refused.status_code == 409
    assert "There is a tenant called demo-ben already" in refused.json()["detail"]


async def test_what_a_store_that_is_away_keeps_from_being_removed_is_removed_later(
    admin: httpx.AsyncClient, world: World, demonstration: Demonstration
) -> None:
    demonstration.beat_seconds = 60.0
    assert (await admin.post(HERE)).is_success
    async with asyncio.timeout(20):
        while TENANTS[2] not in await tenants(admin):
            pass
    with world.outage():
        assert demonstration._playing is not None
        demonstration._playing.cancel()
        await eventually(lambda: demonstration._playing is None)
        await asyncio.sleep(2 * STALL_SECONDS)
    assert "demonstration" not in world.app.state.service.supervisor.failing
    async with asyncio.timeout(20):
        while (state := await admin.get(HERE)).is_error or state.json()["running"]:
            await demonstration._look()
            await asyncio.sleep(0.1)
    assert await tenants(admin) == ["acme", "umbra"]


async def test_it_pushes_nobody_out(
    admin: httpx.AsyncClient, world: World, demonstration: Demonstration
) -> None:
    for number in range(12):
        await world.client().responses.create(
            model=MODEL, input=f"{number} bottles of beer " * 30, max_output_tokens=2
        )
    refused = await admin.post(HERE)
    assert refused.status_code == 409
    assert "It needs 180 free blocks" in refused.json()["detail"]


async def test_who_may_only_read_begins_none(admin: httpx.AsyncClient, world: World) -> None:
    made = (await admin.post("/tokens", json={"name": "ann", "role": "read"})).json()
    headers = {"authorization": f"Bearer {made['admin_token']}"}
    assert (await admin.post(HERE, headers=headers)).status_code == 403
    assert (await admin.get(HERE, headers=headers)).status_code == 200
