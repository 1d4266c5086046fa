"""Why less was found than two prompts have in common, which lies with the cache: mutated requests.

What a request says as well is told beside it, as if all had been found.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from app.transport.bounds import Bounds
from tests.app.conftest import MODEL, World, eventually
from tests.app.generation.diagnostics.asker import (
    HARMLESS,
    Asker,
    Body,
    Engine,
    count,
    with_other_input,
)
from tests.app.pooled_engine import NUM_BLOCKS

MUTATIONS: dict[str, Any] = {**HARMLESS, "input_changed": with_other_input}
Between = Callable[[Asker, Engine, Body], Awaitable[None]]
"""What happens between a request and a mutation of it."""


async def flood(asker: Asker, _: Engine, __: Body) -> None:
    """Another tenant's prompts take the place of everything."""
    for _ in range(2):  # more than the pool holds
        body = {"model": MODEL, "input": asker.text(1300, 1300), "max_output_tokens": 4}
        await asker.world.client("umbra").responses.create(**body)


async def flood_for_long(asker: Asker, engine: Engine, body: Body) -> None:
    """So much is lost that no more is known of what was lost first."""
    engine.cores[-1].scheduler.tiers._losses._most = 2
    await flood(asker, engine, body)


async def clear(_: Asker, engine: Engine, __: Body) -> None:
    await engine.clear()


async def lose(_: Asker, engine: Engine, __: Body) -> None:
    """What the engine has, it has no more, and does not know that it had it."""
    await eventually(lambda: engine.cores[-1].is_idle)
    engine.cores[-1].scheduler.pool.forget(range(NUM_BLOCKS))


async def share(asker: Asker, _: Engine, body: Body) -> None:
    """What the conversation begins with is everybody's of the tenant from now on."""
    await asker.world.register("acme", asker.text(12, 12).replace(" ", "-"), body["instructions"])
    async with asyncio.timeout(20):  # for the notice of it
        while not await asker.world.stores.prompts.find_by_text("acme", body["instructions"]):  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def diagnosed(
    asker: Asker, engine: Engine, between: Between, body: Body | None = None, **first: Any
) -> tuple[str, Body]:
    """How a request is mutated, and what it is told then."""
    body = body or asker.body()
    before = await asker.ask(body, **first)
    await between(asker, engine, body)
    mutation = asker.rng.choice(list(MUTATIONS))
    after = await asker.ask(MUTATIONS[mutation](body, asker), before["id"])
    return mutation, after["prompt_cache_diagnostics"]


def check(mutation: str, told: Body, **own: Any) -> None:
    """That both are told: what differs, and what became of the rest."""
    changed = [mutation] if mutation else []
    assert told["details"] == {"changed": changed, **own}
    if mutation == "input_changed":
        assert (told["type"], told["reason"]) == ("cache_miss", mutation)
    else:
        assert told["type"] == "unavailable"


async def check_evicted(world: World, engine: Engine, seed: int, by: str, how: Between) -> None:
    began = int(time.time())
    mutation, told = await diagnosed(Asker(world, seed), engine, how)
    assert began - 1 <= told["details"].pop("evicted_at") <= time.time()
    check(mutation, told, reason="evicted", evicted_by=by)


@count(1)
@pytest.mark.parametrize(("by", "how"), [("pressure", flood), ("deleted", clear)])
async def test_what_was_evicted_is_told_with_its_reason(
    world: World, engine: Engine, seeds: range, by: str, how: Between
) -> None:
    for seed in seeds:
        await check_evicted(world, engine, seed, by, how)


class TestLeases:
    """Where whoever says nothing has a lease, which is over soon."""

    @pytest.fixture
    def limits(self) -> Bounds:
        return Bounds(lease_seconds=1e-6)

    @count(1)
    async def test_what_was_evicted_behind_its_lease_has_expired(
        self, world: World, engine: Engine, seeds: range
    ) -> None:
        for seed in seeds:
            await check_evicted(world, engine, seed, "expired", flood)

    @count(1)
    async def test_what_was_leased_beyond_the_limit_goes_for_that(
        self, world: World, engine: Engine, seeds: range
    ) -> None:
        await world.limit("acme", leased_blocks=0)
        for seed in seeds:
            await check_evicted(world, engine, seed, "own_quota", flood)


@count(2)
@pytest.mark.parametrize(
    ("reason", "how"), [("lost_long_ago", flood_for_long), ("never_seen", lose)]
)
async def test_what_was_lost_long_ago_is_told_apart_from_what_was_never_here(
    world: World, engine: Engine, seeds: range, reason: str, how: Between
) -> None:
    for seed in seeds:
        check(*await diagnosed(Asker(world, seed), engine, how), reason=reason)


@count(2)
async def test_a_prompt_that_others_share_since_is_told(
    world: World, engine: Engine, seeds: range
) -> None:
    for seed in seeds:
        asker = Asker(world, seed)
        body = asker.body() | {"reasoning": None}  # it would come before what is shared
        told = await diagnosed(asker, engine, share, body)
        check(*told, reason="namespace_changed")


@count(2)
async def test_what_was_not_kept_is_told(world: World, engine: Engine, seeds: range) -> None:
    for seed in seeds:
        asker = Asker(world, seed)
        told = await diagnosed(asker, engine, nothing, mode="explicit")
        check(*told, reason="not_kept")


async def nothing(_: Asker, __: Engine, ___: Body) -> None:
    pass


@count(2)
async def test_what_was_not_asked_for_is_told_and_nothing_else(world: World, seeds: range) -> None:
    for seed in seeds:
        asker = Asker(world, seed)
        body = asker.body()
        first = await asker.ask(body)
        mutated = asker.rng.choice(list(MUTATIONS.values()))(body, asker)
        second = await asker.ask(mutated, first["id"], mode="explicit")
        told = {"type": "unavailable", "details": {"changed": [], "reason": "not_asked"}}
        assert second["prompt_cache_diagnostics"] == told


@count(2)
async def test_another_end_user_is_told_so_and_nothing_of_tokens(
    world: World, seeds: range
) -> None:
    for seed in seeds:
        asker = Asker(world, seed)
        body = asker.body()
        first = await asker.ask(body)
        mutation = asker.rng.choice(list(MUTATIONS))
        theirs = MUTATIONS[mutation](body, asker) | {"safety_identifier": asker.text(9, 9)}
        told = (await asker.ask(theirs, first["id"]))["prompt_cache_diagnostics"]
        # What others say is not compared.
        changed = [mutation] if mutation in HARMLESS and mutation else []
        details = {"changed": changed, "reason": "end_user_changed"}
        assert told == {"type": "unavailable", "details": details}


@count(2)
async def test_a_prefix_that_fills_no_block_is_told(
    world: World, engine: Engine, seeds: range
) -> None:
    for seed in seeds:
        asker = Asker(world, seed)
        said = asker.text(1, 30)
        first = await asker.ask({"input": f"a{said}"})
        again = {"input": f"b{said}"}
        told = (await asker.ask(again, first["id"]))["prompt_cache_diagnostics"]
        assert told["reason"] == "input_changed"
        assert "reason" not in told["details"]  # what they have in common is found inside a block
        await engine.clear()
        told = (await asker.ask(again, first["id"]))["prompt_cache_diagnostics"]
        assert told["reason"] == "input_changed"
        assert told["details"]["reason"] == "prefix_shorter_than_block"
