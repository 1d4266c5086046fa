"""Who may share what: tenants, end users, registered prompts.

On the engine's own scheduler and block pool: what is found is what they find.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import websockets
from msgspec.structs import replace
from transformers import PreTrainedTokenizerBase

from app.transport.bounds import Bounds
from engine.api import TenantShare
from tenants.records import TenantLimits
from tenants.storage.embedded import EmbeddedStore
from tests.app.conftest import MODEL, World, eventually, living
from tests.app.pooled_engine import PooledEngine

LAW = "You are the lawyer of acme. " * 4


async def respond(world: World, tenant: str = "acme", **fields: Any) -> Any:
    arguments = {"model": MODEL, "input": "hello", "max_output_tokens": 4, **fields}
    return await world.client(tenant).responses.create(**arguments)


@pytest.fixture
async def engine(tokenizer: PreTrainedTokenizerBase) -> AsyncIterator[PooledEngine]:
    engine = PooledEngine(tokenizer)
    await engine.start()
    yield engine
    await engine.close()
    for core in engine.cores:
        core.scheduler.check()


@pytest.fixture
def pool(engine: PooledEngine) -> PooledEngine:
    """The engine of the world, by what only this one has."""
    return engine


def cached(response: Any) -> int:
    return response.usage.input_tokens_details.cached_tokens


async def test_another_tenants_response_does_not_exist(world: World) -> None:
    mine = await respond(world)
    with pytest.raises(openai.NotFoundError):
        await world.client("umbra").responses.retrieve(mine.id)
    with pytest.raises(openai.NotFoundError):
        await world.client("umbra").responses.cancel(mine.id)
    with pytest.raises(openai.BadRequestError) as refused:
        await respond(world, "umbra", previous_response_id=mine.id)
    assert refused.value.code == "previous_response_not_found"


async def test_tenants_and_end_users_never_hit_each_others_blocks(world: World) -> None:
    prompt = {"input": "the same long question of everybody in this house"}
    assert cached(await respond(world, **prompt, safety_identifier="ann")) == 0
    assert cached(await respond(world, **prompt, safety_identifier="ann")) > 0
    assert cached(await respond(world, **prompt, safety_identifier="bob")) == 0
    assert cached(await respond(world, **prompt)) == 0
    assert cached(await respond(world, "umbra", **prompt, safety_identifier="ann")) == 0
    assert cached(await respond(world, **prompt, user="bob")) > 0


async def test_a_cache_key_narrows_sharing_and_never_widens_it(world: World) -> None:
    prompt = {"input": "the same long question of everybody in this house"}
    await respond(world, **prompt)
    assert cached(await respond(world, **prompt, prompt_cache_key="a")) == 0
    assert cached(await respond(world, **prompt, prompt_cache_key="a")) > 0
    assert cached(await respond(world, "umbra", **prompt, prompt_cache_key="a")) == 0


async def test_users_of_a_tenant_share_its_registered_prompt_and_nothing_after(
    world: World,
) -> None:
    await world.register("acme", "law", LAW)
    await respond(world, prompt={"id": "law"}, safety_identifier="ann", input="a secret " * 9)
    for fields in (
        {"prompt": {"id": "law"}},
        {"instructions": LAW},
        {"input": [{"role": "system", "content": LAW}, {"role": "user", "content": "x"}]},
    ):
        hits = cached(await respond(world, **fields, safety_identifier=f"not ann: {fields}"))
        shared = world.engine.requests[-1].namespaces.shared_tokens
        assert hits == shared // 16 * 16 > 0
        assert shared == len(
            _ids(world, f"<|im_start|>system\n{LAW}<|im_end|>\n<|im_start|>user\n")
        )
    assert cached(await respond(world, "umbra", instructions=LAW)) == 0
    assert world.engine.requests[-1].namespaces.shared_tokens == 0


async def test_only_the_part_before_the_first_variable_is_shared(world: World) -> None:
    await world.register("acme", "greet", "You help customers of {{shop}} in {{city}}.")
    reference = {"id": "greet", "variables": {"shop": "Ada's", "city": "Ulm"}}
    await respond(world, prompt=reference)
    request = world.engine.requests[-1]
    text = "You help customers of Ada's in Ulm."
    assert world.engine.tokenizer.decode(request.prompt).startswith(f"<|im_start|>system\n{text}")
    head = _ids(world, "<|im_start|>system\nYou help customers of ")
    assert request.namespaces.shared_tokens == len(head)


async def test_the_same_conversation_of_two_tenants_has_no_block_in_common(
    world: World, pool: PooledEngine
) -> None:
    async def blocks(tenant: str) -> set[bytes]:
        await pool.clear()
        await respond(world, tenant, instructions=LAW, input="the same long question " * 4)
        return set(pool.cached)

    mine = await blocks("acme")
    assert len(mine) > 10
    assert await blocks("acme") == mine
    assert not await blocks("umbra") & mine


async def test_a_group_shares_its_prompt_and_nothing_behind_it(
    world: World, pool: PooledEngine
) -> None:
    await found_group(world, "bar", "acme", "umbra")
    await world.register("@bar", "law", LAW)
    await world.stores.tenants.create_tenant("stranger")
    world.keys["stranger"] = (await world.stores.tenants.create_key("stranger", "k"))[1]
    await pool.clear()
    question = {"input": "the same long question of everybody in this house"}
    for fields in ({"prompt": {"id": "law"}}, {"instructions": LAW}):
        await pool.clear()
        assert cached(await respond(world, **fields, **question)) == 0
        hits = cached(await respond(world, "umbra", **fields, **question))
        assert hits == world.engine.requests[-1].namespaces.shared_tokens // 16 * 16 > 0
        again = cached(await respond(world, "umbra", **fields, **question))
        assert again > hits
    assert cached(await respond(world, "stranger", instructions=LAW, **question)) == 0
    with pytest.raises(openai.BadRequestError) as refused:
        await respond(world, "stranger", prompt={"id": "law"})
    assert refused.value.code == "prompt_not_found"


async def test_tenants_of_a_group_share_only_what_is_registered_with_the_group(
    world: World, pool: PooledEngine
) -> None:
    await found_group(world, "bar", "acme", "umbra")
    await world.register("acme", "mine", LAW)
    await world.register("umbra", "mine", LAW)
    await pool.clear()
    assert cached(await respond(world, prompt={"id": "mine"})) == 0
    assert cached(await respond(world, "umbra", prompt={"id": "mine"})) == 0
    assert cached(await respond(world, "umbra", prompt={"id": "mine"}, user="ann")) > 0


async def test_a_tenants_own_prompt_hides_the_groups_of_the_same_name(world: World) -> None:
    await found_group(world, "bar", "acme", "umbra")
    await world.register("@bar", "law", "the group's first")
    await world.register("@bar", "law", "the group's second")
    await world.register("acme", "law", "its own")

    async def text(tenant: str, **reference: Any) -> str:
        await respond(world, tenant, prompt={"id": "law", **reference})
        return str(world.engine.tokenizer.decode(world.engine.requests[-1].prompt))

    assert "its own" in await text("acme")
    assert "the group's second" in await text("umbra")
    assert "the group's first" in await text("umbra", version="1")
    with pytest.raises(openai.BadRequestError, match="version '2'"):
        await text("acme", version="2")


async def test_who_leaves_a_group_goes_on_in_private(world: World) -> None:
    await found_group(world, "bar", "acme", "umbra")
    await world.register("@bar", "law", LAW)
    first = {tenant: await respond(world, tenant, instructions=LAW) for tenant in world.keys}
    await join(world, "acme", None)
    shared = {}
    for tenant, response in first.items():
        answer = await respond(world, tenant, input="more", previous_response_id=response.id)
        shared[tenant] = world.engine.requests[-1].namespaces.shared_tokens
        assert answer.status == "incomplete"
        assert (cached(answer) > 0) is (tenant == "umbra")
    assert shared["acme"] == 0 < shared["umbra"]
    assert cached(await respond(world, instructions=LAW, user="ann")) == 0
    with pytest.raises(openai.BadRequestError) as refused:
        await respond(world, prompt={"id": "law"})
    assert refused.value.code == "prompt_not_found"
    await join(world, "acme", "bar")
    answer = await respond(world, input="more", previous_response_id=first["acme"].id)
    assert cached(answer) > 0


async def test_an_open_socket_follows_its_tenant_into_a_group_and_out_again(world: World) -> None:
    await found_group(world, "bar", "umbra")
    await world.register("@bar", "law", LAW)
    async with (
        asyncio.timeout(10),
        websockets.connect(world.ws_url, additional_headers=world.headers()) as socket,
    ):

        async def hits() -> bool:
            create = {"type": "response.create", "model": MODEL, "instructions": LAW, "input": "x"}
            create |= {"max_output_tokens": 4}
            await socket.send(json.dumps({**create, "user": secrets.token_hex(8)}))
            while True:
                event = json.loads(await socket.recv())
                if event["type"] == "response.incomplete":
                    return bool(event["response"]["usage"]["input_tokens_details"]["cached_tokens"])

        assert not await hits()
        await join(world, "acme", "bar")
        while not await hits():
            pass
        await join(world, "acme", None)
        while await hits():
            pass


async def test_a_tenant_without_cache_never_hits_and_leaves_nothing(
    world: World, pool: PooledEngine
) -> None:
    await found_group(world, "bar", "acme", "umbra")
    await world.register("@bar", "law", LAW)
    question = {"instructions": LAW, "input": "the same long question of everybody here"}
    await edit(world, "umbra", cache="off")
    await eventually(lambda: pool.forgotten == ["umbra"])
    for tenant, hits in (("acme", True), ("umbra", False)):
        before = set(pool.cached)
        await respond(world, tenant, **question)
        assert bool(set(pool.cached) - before) is hits
        assert (cached(await respond(world, tenant, **question)) > 0) is hits


async def test_switching_the_cache_off_takes_out_what_is_there(
    world: World, pool: PooledEngine
) -> None:
    for tenant in ("acme", "umbra"):
        await world.register(tenant, "law", LAW)
        await respond(world, tenant, instructions=LAW)
    assert set(pool.cached.values()) == {"acme", "umbra"}
    await edit(world, "acme", cache="off")
    await eventually(lambda: set(pool.cached.values()) == {"umbra"})


async def test_a_disabled_tenant_is_refused_by_name_and_comes_back(world: World) -> None:
    await edit(world, "acme", status="disabled")
    with pytest.raises(openai.PermissionDeniedError) as refused:
        await respond(world)
    assert refused.value.code == "tenant_disabled"
    with pytest.raises(websockets.InvalidStatus) as denied:
        await websockets.connect(world.ws_url, additional_headers=world.headers())
    assert denied.value.response.status_code == 403
    assert (await respond(world, "umbra")).status == "incomplete"
    await edit(world, "acme", status="active")
    assert (await respond(world)).status == "incomplete"


async def test_who_takes_a_deleted_tenants_name_finds_nothing_of_it(
    engine: PooledEngine, limits: Bounds, store_server: EmbeddedStore
) -> None:
    async with living(engine, limits, store_server.url, flush_grace_seconds=0) as world:
        await world.register("acme", "law", LAW)
        first = await respond(world, instructions=LAW)
        assert (await world.client().responses.retrieve(first.id)).id == first.id
        assert cached(await respond(world, instructions=LAW)) > 0
        await world.stores.tenants.delete_tenant("acme")
        await eventually(lambda: engine.forgotten == ["acme"])
        _, world.keys["acme"] = await world.stores.tenants.create_tenant("acme")
        with pytest.raises(openai.NotFoundError):
            await world.client().responses.retrieve(first.id)
        assert cached(await respond(world, instructions=LAW)) == 0
        assert world.engine.requests[-1].namespaces.shared_tokens == 0


async def test_the_engine_learns_what_a_tenant_may_have(world: World) -> None:
    await edit(
        world,
        "acme",
        weight=2.5,
        reserved_blocks=20,
        limits=TenantLimits(blocks=300, pinned_blocks=40),
    )
    await respond(world)
    share = TenantShare(weight=2.5, reserved_blocks=20, max_blocks=300, max_pinned_blocks=40)
    assert world.engine.requests[-1].share == share
    await respond(world, "umbra")
    assert world.engine.requests[-1].share == TenantShare()


async def found_group(world: World, name: str, *members: str) -> None:
    await world.stores.groups.create(name)
    for member in members:
        await join(world, member, name)


async def join(world: World, tenant: str, group: str | None) -> None:
    await edit(world, tenant, share_group=group)


async def edit(world: World, tenant: str, **fields: Any) -> None:
    await world.stores.tenants.update_tenant(tenant, lambda one: replace(one, **fields))


def _ids(world: World, text: str) -> list[int]:
    return list(world.engine.tokenizer(text, add_special_tokens=False)["input_ids"])
