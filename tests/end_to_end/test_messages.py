"""An agent over the Messages API, on the real engine: what it marks is computed once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from bench.common.service import Service, running_service
from tests.bench.conftest import save_model

MARK = {"type": "ephemeral"}
RULES = "You are a careful programmer. Read before you write, and run what you have written. " * 8
TURNS = 30
BLOCK_SIZE = 16


@pytest.fixture(scope="module")
def small_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = save_model(tmp_path_factory.mktemp("model") / "tiny", 32, 1, context=16_384)
    with running_service(["--model", str(folder), "--dtype", "float32"]) as service:
        yield service


def tool(number: int) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    return {"name": f"tool_{number}", "description": "Does one thing.", "input_schema": schema}


def marked(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text, "cache_control": MARK}]


def call(number: int) -> list[dict[str, Any]]:
    """What the model has done in a turn, and what came of it."""
    use = {"type": "tool_use", "id": f"toolu_{number}", "name": "tool_3", "input": {"path": "a.py"}}
    result = {"type": "tool_result", "tool_use_id": use["id"], "content": f"line {number}\n" * 9}
    said = [{"type": "text", "text": f"Step {number}."}, use]
    return [{"role": "assistant", "content": said}, {"role": "user", "content": [result]}]


async def test_each_turn_of_an_agent_reads_all_up_to_its_last_mark(small_service: Service) -> None:
    key = small_service.create_tenant("agents")
    turns: list[dict[str, Any]] = [{"role": "user", "content": "Mend the test."}]
    before = 0
    async with anthropic.AsyncAnthropic(api_key=key, base_url=small_service.url) as client:
        for number in range(TURNS):
            last = turns[-1]["content"]
            begun = last if isinstance(last, list) else [{"type": "text", "text": last}]
            ending = {**begun[-1], "cache_control": MARK}
            asked = [*turns[:-1], {"role": "user", "content": [*begun[:-1], ending]}]
            fields: dict[str, Any] = {
                "model": "tiny",
                "system": marked(RULES),
                "tools": [*map(tool, range(19)), {**tool(19), "cache_control": MARK}],
                "messages": asked,
            }
            counted = await client.messages.count_tokens(**fields)
            async with client.messages.stream(max_tokens=4, **fields) as stream:
                usage = (await stream.get_final_message()).usage
            read, written = usage.cache_read_input_tokens, usage.cache_creation_input_tokens
            assert read is not None
            assert written is not None
            assert usage.input_tokens + read + written == counted.input_tokens
            assert read >= before - BLOCK_SIZE
            before = read + written
            turns += call(number)
    assert before > TURNS * 50
