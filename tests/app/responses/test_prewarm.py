"""Prompts that are computed before anybody is to answer them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from transformers import PreTrainedTokenizerBase

from tests.app.conftest import MODEL, World
from tests.app.pooled_engine import PooledEngine
from tests.app.responses.conversations.test_api import texts
from tests.app.responses.test_responses_ws import socket

BOOK = "It was the best of times, it was the worst of times. " * 3
PREWARM: Any = {"prewarm": True}


@pytest.fixture
async def engine(tokenizer: PreTrainedTokenizerBase) -> AsyncIterator[PooledEngine]:
    engine = PooledEngine(tokenizer)
    await engine.start()
    yield engine
    await engine.close()
    for core in engine.cores:
        core.scheduler.check()


async def respond(world: World, **fields: Any) -> Any:
    arguments = {"model": MODEL, "input": "hello", "max_output_tokens": 4, **fields}
    return await world.client().responses.create(**arguments)


def prompt(world: World) -> str:
    return str(world.engine.tokenizer.decode(world.engine.requests[-1].prompt))


async def test_a_prewarmed_prompt_has_no_answer_and_is_found(world: World) -> None:
    warm = await respond(world, input=BOOK, prompt_cache_options=PREWARM)
    assert (warm.status, warm.output, warm.output_text) == ("completed", [], "")
    usage = warm.usage
    assert usage.output_tokens == 0
    assert usage.total_tokens == usage.input_tokens > len(BOOK)
    details = usage.input_tokens_details
    assert (details.cached_tokens, details.cache_write_tokens) == (0, usage.input_tokens)
    again = await respond(world, input=BOOK)
    assert again.usage.input_tokens_details.cached_tokens == usage.input_tokens - 1
    kept = await world.client().responses.retrieve(warm.id)
    assert (kept.status, kept.output) == ("completed", [])


async def test_its_stream_has_a_beginning_and_an_end(world: World) -> None:
    async with socket(world) as raw:
        await raw.create(BOOK, generate=False, store=False)
        kinds = [event["type"] for event in await raw.turn()]
        assert kinds == ["response.created", "response.in_progress", "response.completed"]


async def test_only_the_prompt_is_charged(world: World) -> None:
    await world.limit("acme", tokens_per_minute=400)
    warm = await respond(
        world, input="x" * 300, max_output_tokens=300, prompt_cache_options=PREWARM
    )
    await world.metered("acme", 1, warm.usage.input_tokens)


async def test_a_prompt_that_leaves_an_answer_no_room_is_still_a_prompt(world: World) -> None:
    await respond(world, input="x" * 40)
    await world.limit("acme", context_tokens=len(world.engine.requests[-1].prompt))
    await respond(world, input="x" * 40, prompt_cache_options=PREWARM)
    for fields in ({"input": "x" * 40}, {"input": "x" * 41, "prompt_cache_options": PREWARM}):
        with pytest.raises(openai.BadRequestError) as refused:
            await respond(world, **fields)
        assert refused.value.code == "context_length_exceeded"


@pytest.mark.parametrize("on_socket", [True, False])
async def test_what_follows_is_as_if_all_had_been_said_at_once(
    world: World, *, on_socket: bool
) -> None:
    said: list[Any] = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"},
    ]
    more: list[Any] = [{"role": "user", "content": "four"}]
    if on_socket:
        async with socket(world) as raw:
            await raw.create(said, generate=False, store=False, instructions=BOOK)
            warm = (await raw.turn())[-1]["response"]["id"]
            await raw.create(more, previous_response_id=warm, store=False, max_output_tokens=4)
            response = (await raw.turn())[-1]["response"]
            cached = response["usage"]["input_tokens_details"]["cached_tokens"]
    else:
        first = await respond(world, input=said, prompt_cache_options=PREWARM, instructions=BOOK)
        second = await respond(world, input=more, previous_response_id=first.id)
        cached = second.usage.input_tokens_details.cached_tokens
    behind = prompt(world)
    assert cached > len(BOOK)
    await respond(world, input=[*said, *more], instructions=BOOK)
    assert prompt(world) == behind


async def test_the_answer_may_be_all_that_follows(world: World) -> None:
    first = await respond(world, input=BOOK, prompt_cache_options=PREWARM)
    warmed = prompt(world)
    answer = await respond(world, input=[], previous_response_id=first.id)
    assert prompt(world) == warmed
    assert answer.usage.output_tokens == 4
    with pytest.raises(openai.BadRequestError) as refused:
        await respond(world, input=[], previous_response_id=answer.id)
    assert refused.value.param == "input"


async def test_a_later_turn_can_be_prewarmed_as_well(world: World) -> None:
    first = await respond(world, input="one")
    second = await respond(
        world, input="two", previous_response_id=first.id, prompt_cache_options=PREWARM
    )
    warmed = prompt(world)
    await respond(world, input=[], previous_response_id=second.id)
    assert prompt(world) == warmed
    await respond(world, input="two", previous_response_id=first.id)
    assert prompt(world) == warmed


async def test_instructions_can_be_computed_before_anything_is_asked(world: World) -> None:
    first = await respond(world, input=[], instructions=BOOK, prompt_cache_options=PREWARM)
    await respond(world, input="one", previous_response_id=first.id)
    behind = prompt(world)
    await respond(world, input="one", instructions=BOOK)
    assert prompt(world) == behind
    with pytest.raises(openai.BadRequestError) as refused:
        await respond(world, input=[], prompt_cache_options=PREWARM)
    assert refused.value.param == "input"


async def test_a_conversation_has_only_what_was_answered(world: World) -> None:
    client = world.client()
    made = await client.conversations.create()
    await respond(world, input="one", conversation=made.id, prompt_cache_options=PREWARM)
    assert await texts(client, made.id) == []
    await respond(world, input="one", conversation=made.id)
    assert (await texts(client, made.id))[0] == "one"
