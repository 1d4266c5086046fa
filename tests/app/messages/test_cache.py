"""`cache_control` is a breakpoint and a lease, and usage says what came of it."""

from __future__ import annotations

import anthropic
import pytest

from tests.app.conftest import World
from tests.app.messages.asking import ASKED, create, prompt
from tests.app.messages.test_tools import TOOL

LONG = "All that is known of the house. " * 20
MARK = {"type": "ephemeral"}


def before(world: World) -> list[str]:
    """The texts before the last request's breakpoints; the last one is where an answer begins."""
    asked = world.engine.requests[-1]
    return [str(world.engine.tokenizer.decode(asked.prompt[:end])) for end in asked.cache.ends]


async def test_a_marked_prefix_is_written_once_and_then_read(world: World) -> None:
    system = [{"type": "text", "text": LONG, "cache_control": MARK}]
    usage = (await create(world, system=system)).usage
    assert usage.cache_creation_input_tokens > len(LONG) - 16
    assert usage.cache_creation.ephemeral_5m_input_tokens == usage.cache_creation_input_tokens
    assert usage.cache_read_input_tokens == 0
    assert before(world)[0].endswith(LONG)
    again = (await create(world, system=system)).usage
    assert again.cache_creation_input_tokens == 0
    assert again.cache_read_input_tokens >= usage.cache_creation_input_tokens
    for one in (usage, again):
        parts = one.input_tokens + one.cache_creation_input_tokens + one.cache_read_input_tokens
        assert parts == len(world.engine.requests[-1].prompt)


async def test_without_a_mark_nothing_is_said_to_be_kept(world: World) -> None:
    usage = (await create(world, system=LONG)).usage
    assert usage.cache_creation_input_tokens == 0
    assert (await create(world, system=LONG)).usage.cache_read_input_tokens > 0


@pytest.mark.parametrize(("ttl", "seconds"), [(None, 300.0), ("5m", 300.0), ("1h", 3600.0)])
async def test_a_lifetime_is_a_lease(world: World, ttl: str | None, seconds: float) -> None:
    mark = MARK if ttl is None else {**MARK, "ttl": ttl}
    system = [{"type": "text", "text": LONG, "cache_control": mark}]
    usage = (await create(world, system=system)).usage
    assert world.engine.requests[-1].cache.lease_s == seconds
    written = usage.cache_creation.ephemeral_1h_input_tokens
    assert written == (usage.cache_creation_input_tokens if ttl == "1h" else 0)
    assert usage.cache_creation_input_tokens > 0


async def test_a_lifetime_is_what_the_tenant_may_have(world: World) -> None:
    await world.limit("acme", lease_seconds=60)
    mark = {**MARK, "ttl": "1h"}
    system = [{"type": "text", "text": LONG, "cache_control": mark}]
    usage = (await create(world, system=system)).usage
    assert usage.cache_creation.ephemeral_1h_input_tokens == 0
    assert usage.cache_creation.ephemeral_5m_input_tokens > 0


async def test_each_kind_of_block_may_end_a_prefix(world: World) -> None:
    use = {"type": "tool_use", "id": "t", "name": "get_weather", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "sunny"}
    turns = [
        ASKED,
        {"role": "assistant", "content": [{**use, "cache_control": MARK}]},
        {"role": "user", "content": [{**result, "cache_control": MARK}]},
    ]
    tool = {**TOOL, "cache_control": MARK}
    await create(world, system="Be brief.", messages=turns, tools=[tool])
    tools, calls, results, _ = before(world)
    assert "get_weather" in tools
    assert tools.endswith("<|im_start|>user\n")
    assert "</tool_call>" in calls
    assert "sunny" not in calls
    assert results.endswith("sunny")


async def test_the_top_level_mark_is_the_last_block(world: World) -> None:
    await create(world, cache_control=MARK)
    assert before(world)[0].endswith("hello")
    assert prompt(world).startswith(before(world)[0])


async def test_more_than_four_marks_are_refused(world: World) -> None:
    marked = [{"type": "text", "text": "x", "cache_control": MARK}] * 5
    with pytest.raises(anthropic.BadRequestError, match="5 blocks"):
        await create(world, system=marked)
