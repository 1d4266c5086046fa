"""Why a prompt was found in the cache, or was not: random requests, and mutations of them."""

from __future__ import annotations

from typing import Any

import pytest

from app.generation.comparison import Comparison, compared
from app.prompt.breakpoints import num_common
from app.prompt.conversation import Prompt
from app.request.segments import segments_of
from tests.app.conftest import MODEL, World
from tests.app.generation.diagnostics.asker import (
    HARMLESS,
    Asker,
    Engine,
    count,
    with_other_input,
    with_other_instructions,
)
from tests.app.pooled_engine import BLOCK_SIZE
from tests.app.responses.test_responses_ws import socket

MISSES: dict[str, Any] = {
    "prompt_cache_key_changed": lambda body, asker: body | {"prompt_cache_key": asker.text(9, 9)},
    "tools_changed": lambda body, asker: body | {"tools": [asker.tool()]},
    "reasoning_effort_changed": lambda body, _: body | {"reasoning": {"effort": "high"}},
    "input_changed": with_other_input,
    "input_changed of instructions": with_other_instructions,
}


@count(2)
@pytest.mark.parametrize("kind", MISSES)
async def test_a_prompt_that_differs_is_a_miss_for_that_reason(
    world: World, kind: str, seeds: range
) -> None:
    for seed in seeds:
        asker = Asker(world, seed)
        body = asker.body()
        first = await asker.ask(body)
        before = asker.prompt
        second = await asker.ask(MISSES[kind](body, asker), first["id"])
        told = second["prompt_cache_diagnostics"]
        reason = kind.partition(" ")[0]
        assert (told["type"], told["reason"]) == ("cache_miss", reason)
        assert told["details"]["changed"] == [reason]
        if reason == "prompt_cache_key_changed":
            assert told["comparison_reusable_tokens"] is None
            assert told["cache_missed_tokens"] == len(asker.prompt)
        else:
            reusable = num_common(before, asker.prompt)
            assert told["comparison_reusable_tokens"] == reusable
            assert told["cache_missed_tokens"] == len(asker.prompt) - reusable
            found = second["usage"]["input_tokens_details"]["cached_tokens"]
            assert found >= reusable - BLOCK_SIZE
            assert "reason" not in told["details"]


@count(2)
@pytest.mark.parametrize("kind", HARMLESS)
async def test_what_no_prompt_is_made_of_changes_nothing(
    world: World, kind: str, seeds: range
) -> None:
    for seed in seeds:
        asker = Asker(world, seed)
        body = asker.body()
        first = await asker.ask(body)
        second = await asker.ask(HARMLESS[kind](body, asker), first["id"])
        told = second["prompt_cache_diagnostics"]
        assert told["type"] == "cache_hit"
        assert told["details"] == {"changed": [kind] if kind else []}


@count(2)
async def test_a_conversation_that_goes_on_is_a_hit(world: World, seeds: range) -> None:
    for seed in seeds:
        asker = Asker(world, seed)
        body = asker.body()
        first = await asker.ask(body)
        more = body | {"input": asker.text(), "previous_response_id": first["id"]}
        second = await asker.ask(more, mode="implicit")  # the previous response is compared with
        assert second["prompt_cache_diagnostics"]["type"] == "cache_hit"
        shorter = body | {"input": body["input"][:1]}
        third = await asker.ask(shorter, second["id"])
        assert third["prompt_cache_diagnostics"]["type"] == "cache_hit"


@count(2)
async def test_another_model_finds_nothing(world: World, engine: Engine, seeds: range) -> None:
    for seed in seeds:
        asker = Asker(world, seed)
        body = asker.body()
        first = await asker.ask(body)
        engine.other = True
        second = await asker.ask(with_other_input(body, asker), first["id"])
        engine.other = False
        told = second["prompt_cache_diagnostics"]
        assert (told["type"], told["reason"]) == ("cache_miss", "model_changed")
        assert told["comparison_reusable_tokens"] is None


@count(1)
async def test_a_context_that_is_summed_up_or_cut_is_compacted(world: World, seeds: range) -> None:
    for seed in seeds:
        asker = Asker(world, seed)
        body = asker.body()
        first = await asker.ask(body)
        summed = await world.client().responses.compact(model=MODEL, input=body["input"])
        items = [item.model_dump(exclude_none=True) for item in summed.output]
        more = body | {"input": [*items, {"role": "user", "content": asker.text()}]}
        told = (await asker.ask(more, first["id"]))["prompt_cache_diagnostics"]
        assert (told["type"], told["reason"]) == ("cache_miss", "context_compacted")
        assert told["details"]["changed"] == ["context_compacted"]


async def test_a_context_that_turns_are_left_out_of_is_compacted(world: World) -> None:
    asker = Asker(world, 0)
    await world.limit("acme", context_tokens=600)
    before: str | None = None
    for _ in range(3):
        body = {"input": asker.text(100, 100), "previous_response_id": before}
        before = (await asker.ask(body))["id"]
    body |= {"previous_response_id": before, "truncation": "auto", "input": asker.text(300, 300)}
    told = (await asker.ask(body, before))["prompt_cache_diagnostics"]
    assert (told["type"], told["reason"]) == ("cache_miss", "context_compacted")
    assert told["comparison_reusable_tokens"] > 100


async def test_of_another_namespace_nothing_is_compared(world: World) -> None:
    asker = Asker(world, 0)
    first = await asker.ask(asker.body())
    turn = await world.app.state.service.history.load("acme", first["id"])
    theirs = {
        name: segments_of(
            world.tenants[name], world.engine.requests[-1], world.engine.info, 10, {"key": None}
        )
        for name in ("acme", "umbra")
    }
    found = compared(turn, theirs["acme"], Prompt(turn.ids), theirs["umbra"], world.engine.info)
    assert found == Comparison(changed=[], own="namespace_changed")
    found = compared(turn, theirs["acme"], Prompt(turn.ids), theirs["acme"], world.engine.info)
    assert found.own is None


async def test_a_response_that_is_not_the_tenants_is_not_found(world: World) -> None:
    asker = Asker(world, 0)
    body = asker.body()
    theirs = await world.client("umbra").responses.create(
        model=MODEL, input="hello", max_output_tokens=4
    )
    for name in (theirs.id, "resp_" + "0" * 32, "anything"):
        told = (await asker.ask(body, name))["prompt_cache_diagnostics"]
        assert told == {"type": "comparison_response_not_found"}


async def test_it_is_told_to_those_that_ask_and_as_the_client_types_it(world: World) -> None:
    client = world.client()
    first = await client.responses.create(model=MODEL, input="hello", max_output_tokens=4)
    assert first.prompt_cache_diagnostics is None
    second = await client.responses.create(
        model=MODEL,
        input="hello there",
        max_output_tokens=4,
        prompt_cache_options={"comparison_response_id": first.id},
    )
    assert second.prompt_cache_diagnostics is not None
    assert second.prompt_cache_diagnostics.type == "cache_miss"
    assert second.prompt_cache_options is not None
    assert second.prompt_cache_options.comparison_response_id == first.id
    kept = await client.responses.retrieve(second.id)
    assert kept.prompt_cache_diagnostics == second.prompt_cache_diagnostics


async def test_a_socket_compares_with_what_it_alone_knows(world: World) -> None:
    async with socket(world) as raw:
        await raw.create("hello to all of you", store=False, max_output_tokens=4)
        first = (await raw.turn())[-1]["response"]["id"]
        fields = {"max_output_tokens": 4, "prompt_cache_options": {"comparison_response_id": first}}
        await raw.create("hello to all of you", store=False, **fields)
        told = (await raw.turn())[-1]["response"]["prompt_cache_diagnostics"]
        assert told["type"] == "cache_hit"
