"""What a model reasons, over the Messages API: shown, omitted, bounded and brought back."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anthropic
import pytest

from tenants.storage.embedded import EmbeddedStore
from tests.app.conftest import World
from tests.app.messages.asking import create, prompt, stream
from tests.app.reasoning import KEPT, reasoning_world

ANSWER = "<think>\nIs it?\n</think>\n\nIt is."
ADAPTIVE = {"type": "adaptive"}


@pytest.fixture
async def world(store_server: EmbeddedStore) -> AsyncIterator[World]:
    async with reasoning_world(KEPT, store_server.url) as world:
        world.engine.answer = ANSWER
        yield world


async def test_thinking_is_a_block_before_the_text(world: World) -> None:
    message = await create(world, thinking=ADAPTIVE)
    thought, said = message.content
    assert (thought.thinking, said.text) == ("Is it?", "It is.")
    assert message.usage.output_tokens_details.thinking_tokens > 0
    events, streamed = await stream(world, thinking=ADAPTIVE)
    assert [block.type for block in streamed.content] == ["thinking", "text"]
    assert (streamed.content[0].thinking, streamed.content[1].text) == ("Is it?", "It is.")
    assert streamed.content[0].signature
    assert [e.type for e in events].index("signature") < [e.type for e in events].index("text")


async def test_without_the_wish_the_model_is_told_not_to(world: World) -> None:
    world.engine.answer = "It is."
    await create(world)
    assert prompt(world).endswith("<think>\n\n</think>\n\n")
    await create(world, thinking={"type": "disabled"})
    assert prompt(world).endswith("<think>\n\n</think>\n\n")
    await create(world, thinking=ADAPTIVE)
    assert prompt(world).endswith("<|im_start|>assistant\n")


async def test_it_comes_back_shown_or_by_its_signature_alone(world: World) -> None:
    omitted = await create(world, thinking={**ADAPTIVE, "display": "omitted"})
    shown = await create(world, thinking=ADAPTIVE)
    assert omitted.content[0].thinking == ""
    _, streamed = await stream(world, thinking={**ADAPTIVE, "display": "omitted"})
    assert streamed.content[0].thinking == ""
    for message in (omitted, shown, streamed):
        turns = [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": message.model_dump()["content"]},
            {"role": "user", "content": "y"},
        ]
        await create(world, messages=turns, thinking=ADAPTIVE)
        assert "<think>\nIs it?\n</think>\n\nIt is." in prompt(world)


async def test_what_another_service_redacted_is_named_as_ignored(world: World) -> None:
    redacted = {"type": "redacted_thinking", "data": "xyz"}
    said = {"role": "assistant", "content": [redacted, {"type": "text", "text": "It is."}]}
    asked = {"role": "user", "content": "x"}
    async with anthropic.AsyncAnthropic(
        api_key=world.keys["acme"], base_url=world.base_url
    ) as asking:
        raw = await asking.messages.with_raw_response.create(
            model="Scripted-1", max_tokens=50, messages=[asked, said, asked]
        )
    assert raw.headers["x-partywall-ignored-fields"] == "messages[1].content[0].data"
    assert "xyz" not in prompt(world)


async def test_a_budget_bounds_what_is_reasoned(world: World) -> None:
    await create(world, max_tokens=2000, thinking={"type": "enabled", "budget_tokens": 1024})
    grammar = world.engine.requests[-1].grammar
    assert grammar is not None
    assert "max_tokens=1024" in grammar.preamble
