"""An agent over the Messages API, on the real engine: what it marks is computed once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from transformers import AutoTokenizer

from bench.common.service import Service, running_service
from tests.app.reasoning import OPENED
from tests.bench.conftest import save_model

MARK = {"type": "ephemeral"}
RULES = "You are a careful programmer. Read before you write, and run what you have written. " * 8
TURNS = 30
BLOCK_SIZE = 16


@pytest.fixture(scope="module", params=["as it is", "reasons"])
def small_service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Service, bool]]:
    """A service, and whether its model reasons before it answers."""
    folder = save_model(tmp_path_factory.mktemp("model") / "tiny", 32, 1, context=16_384)
    reasons = request.param == "reasons"
    if reasons:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        tokenizer.chat_template = OPENED
        tokenizer.save_pretrained(folder)
    with running_service(["--model", str(folder), "--dtype", "float32"]) as service:
        yield service, reasons


def tool(number: int) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    return {"name": f"tool_{number}", "description": "Does one thing.", "input_schema": schema}


def marked(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text, "cache_control": MARK}]


def called(number: int, thoughts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the model has done in a turn, after `thoughts`, and what came of it."""
    use = {"type": "tool_use", "id": f"toolu_{number}", "name": "tool_3", "input": {"path": "a.py"}}
    result = {"type": "tool_result", "tool_use_id": use["id"], "content": f"line {number}\n" * 9}
    said = [*thoughts, {"type": "text", "text": f"Step {number}."}, use]
    return [{"role": "assistant", "content": said}, {"role": "user", "content": [result]}]


def asked(turns: list[dict[str, Any]], *, reasons: bool) -> dict[str, Any]:
    """What an agent sends: the same rules and tools, and all turns up to a mark on the last."""
    *before, last = turns
    content = last["content"]
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
    ending = {**blocks[-1], "cache_control": MARK}
    return {
        "model": "tiny",
        "system": marked(RULES),
        "tools": [*map(tool, range(19)), {**tool(19), "cache_control": MARK}],
        "messages": [*before, {"role": "user", "content": [*blocks[:-1], ending]}],
        "thinking": {"type": "adaptive" if reasons else "disabled"},
    }


async def test_each_turn_of_an_agent_reads_all_up_to_its_last_mark(
    small_service: tuple[Service, bool],
) -> None:
    service, reasons = small_service
    turns: list[dict[str, Any]] = [{"role": "user", "content": "Mend the test."}]
    before = 0
    async with anthropic.AsyncAnthropic(
        api_key=service.create_tenant("agents"), base_url=service.url
    ) as client:
        for number in range(TURNS):
            fields = asked(turns, reasons=reasons)
            counted = await client.messages.count_tokens(**fields)
            async with client.messages.stream(max_tokens=4, **fields) as stream:
                message = await stream.get_final_message()
            usage = message.usage
            read, written = usage.cache_read_input_tokens, usage.cache_creation_input_tokens
            assert read is not None
            assert written is not None
            assert usage.input_tokens + read + written == counted.input_tokens
            assert read >= before - BLOCK_SIZE
            assert usage.output_tokens_details is not None
            assert usage.output_tokens_details.thinking_tokens == (4 if reasons else 0)
            before = read + written
            thoughts = [one.model_dump() for one in message.content if one.type == "thinking"]
            assert bool(thoughts) == reasons
            turns += called(number, thoughts)
    assert before > TURNS * 50
