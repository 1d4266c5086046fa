"""What tenants have of the cache, with the engine's own scheduler and block pool.

Only the model is simulated: what it computes depends on what lies in the blocks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace
from transformers import PreTrainedTokenizerBase

from engine.api import EngineError, TenantStats
from tenants.records import TenantLimits
from tests.app.conftest import MODEL, World
from tests.app.pooled_engine import BLOCK_SIZE, PooledEngine

LAW = "You are the lawyer of acme, and of nobody else. " * 6
TAX = "You know about taxes, and of nothing else at all. " * 6
NOTHING = TenantStats(
    running=0,
    waiting=0,
    blocks_held=0,
    blocks_shared=0,
    blocks_cached=0,
    blocks_pinned=0,
    served=0.0,
)


@pytest.fixture
async def engine(tokenizer: PreTrainedTokenizerBase) -> AsyncIterator[PooledEngine]:
    engine = PooledEngine(tokenizer)
    await engine.start()
    yield engine
    await engine.close()
    for core in engine.cores:
        core.scheduler.check()


async def respond(world: World, tenant: str, **fields: Any) -> int:
    """How many tokens of a request were found in the cache."""
    arguments = {"input": "hello", "max_output_tokens": 4, "store": False} | fields
    answer = await world.client(tenant).responses.create(model=MODEL, **arguments)
    assert answer.status == "incomplete"
    assert answer.usage is not None
    return answer.usage.input_tokens_details.cached_tokens


async def stats_of(world: World, tenant: str) -> TenantStats:
    return (await world.app.state.service.engine.stats()).tenants.get(tenant, NOTHING)


async def edit(world: World, tenant: str, **fields: Any) -> None:
    await world.stores.tenants.update_tenant(tenant, lambda one: replace(one, **fields))


async def flood(world: World, tenant: str) -> None:
    """Long prompts, all different, that would fill the pool several times over."""
    for number in range(8):
        await respond(world, tenant, input=f"{number} is another long story. " * 30)


async def test_tenants_never_find_each_others_blocks_and_always_their_own(world: World) -> None:
    question = {"instructions": LAW, "input": "the same long question of everybody here"}
    assert await respond(world, "acme", **question) == 0
    before = await stats_of(world, "acme")
    assert await respond(world, "umbra", **question) == 0
    assert (await stats_of(world, "umbra")).blocks_cached == before.blocks_cached > 20
    assert await stats_of(world, "acme") == before
    assert await respond(world, "acme", **question) > 0
    assert await respond(world, "umbra", **question) > 0


async def test_a_groups_prompt_is_computed_once_for_all_its_members(world: World) -> None:
    group = await world.stores.groups.create("bar")
    for tenant in ("acme", "umbra"):
        await edit(world, tenant, share_group="bar")
    await world.register(group.owner, "law", LAW)
    question = {"prompt": {"id": "law"}, "input": "the same long question of everybody here"}
    hits = [await respond(world, tenant, **question) for tenant in ("acme", "umbra")]
    index = await world.app.state.service.warmer.warm(group.owner, "law")
    assert hits == [len(index.block_hashes) * BLOCK_SIZE] * 2
    assert await respond(world, "umbra", **question) > hits[0]


async def test_a_tenant_without_cache_never_hits_and_leaves_nothing(world: World) -> None:
    await edit(world, "umbra", cache="off")
    question = {"instructions": LAW, "input": "the same long question of everybody here"}
    for tenant, caches in (("acme", True), ("umbra", False)):
        await respond(world, tenant, **question)
        assert (await respond(world, tenant, **question) > 0) is caches
        assert ((await stats_of(world, tenant)).blocks_cached > 0) is caches


async def test_a_burst_takes_nobodys_pinned_prompt_and_everybody_elses(world: World) -> None:
    prompts = world.stores.prompts
    for name, text in (("law", LAW), ("tax", TAX)):
        await world.register("acme", name, text)
    await prompts.set_pinned("acme", "law", True)
    index = await world.app.state.service.warmer.warm("acme", "law")
    await flood(world, "umbra")
    assert (await stats_of(world, "acme")).blocks_pinned == len(index.block_hashes)
    whole = len(index.block_hashes) * BLOCK_SIZE
    assert await respond(world, "acme", prompt={"id": "law"}) == whole
    shared = await respond(world, "acme", prompt={"id": "tax"})
    assert shared < BLOCK_SIZE, (
        "more is left than the head of the pinned prompt that both begin with"
    )
    await prompts.set_pinned("acme", "law", False)
    await world.app.state.service.warmer.warm("acme", "law")
    await flood(world, "umbra")
    assert await respond(world, "acme", prompt={"id": "law"}) == 0


@pytest.mark.parametrize("reserved_blocks", [0, 40])
async def test_a_burst_leaves_a_tenant_the_blocks_that_are_reserved_for_it(
    world: World, reserved_blocks: int
) -> None:
    await edit(world, "acme", reserved_blocks=reserved_blocks)
    question = {"instructions": LAW, "input": "a question"}
    await respond(world, "acme", **question)
    await flood(world, "umbra")
    assert (await respond(world, "acme", **question) > 0) is (reserved_blocks > 0)


async def test_a_pin_beyond_the_tenants_quota_is_refused_and_harms_nobody(world: World) -> None:
    await edit(world, "acme", limits=TenantLimits(pinned_blocks=3))
    prompt = await world.prompts.put("acme", "law", LAW)
    await world.prompts.set_pinned("acme", prompt.name, True)
    warmer = world.app.state.service.warmer
    with pytest.raises(EngineError, match="pin"):
        await warmer.warm("acme", "law")
    assert (await stats_of(world, "acme")).blocks_pinned == 0
    await edit(world, "acme", limits=TenantLimits(pinned_blocks=50))
    await warmer.warm("acme", "law")
    assert (await stats_of(world, "acme")).blocks_pinned > 3


async def test_nothing_of_a_deleted_tenant_stays_in_the_pool(world: World) -> None:
    await world.register("acme", "law", LAW)
    await world.prompts.set_pinned("acme", "law", True)
    for tenant in ("acme", "umbra"):
        await respond(world, tenant, instructions=LAW)
    kept = await stats_of(world, "umbra")
    assert (await stats_of(world, "acme")).blocks_cached > 0
    deletion = asyncio.create_task(world.stores.tenants.delete_tenant("acme"))
    async with asyncio.timeout(10):
        while await stats_of(world, "acme") != NOTHING:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    deletion.cancel()
    assert await stats_of(world, "umbra") == kept
